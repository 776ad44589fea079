"""The command lines and the xDSL universe."""
