"""The command lines, and the registration of dialects and passes with xDSL."""
