"""The shipped cluster files, which the installed tool finds by name."""
