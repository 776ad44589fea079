"""Which parts of a program Inductor compiles, and how."""
