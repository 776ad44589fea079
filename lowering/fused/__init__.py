"""Fused ops: their definitions in plain torch, and the torch ops that they replace."""
