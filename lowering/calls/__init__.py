"""Translate an op of the IR to the torch call that it stands for."""
