"""What `balance-ratios` is made of: segments of a model, limits of memory, and shares written into a strategy."""
