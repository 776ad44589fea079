"""Does a plan train as one device would? A reference in eager PyTorch, and comparisons with it."""
