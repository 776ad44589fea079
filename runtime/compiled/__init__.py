"""What of a program Inductor compiles, and how."""
