"""The parts of `balance-ratios`: segments of a model, limits of memory, and shares written into a strategy."""
