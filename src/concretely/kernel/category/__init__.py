"""Rows of the categories of n-ary nodes: how they are dealt out, loaded and stored."""
