"""The parts of `balance-ratios`: segments of a model, memory limits, and a strategy with new shares."""
