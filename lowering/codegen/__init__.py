"""Generate the program that ranks run from a lowered step."""
