"""Everything that is timed, one library a file; each file is imported only if its library is installed."""
