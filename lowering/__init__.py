"""The borders with torch: the fx graph in, the torch program out, and the interpreter between."""
