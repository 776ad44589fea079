"""From an op of the IR to the call of torch that it stands for."""
