"""The contenders, one library per file. A file is imported only if its library is installed."""
