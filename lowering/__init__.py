"""The interfaces with torch: import of fx graphs, generation of torch programs, and an interpreter of the IR."""
