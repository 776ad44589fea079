"""Fused ops: what each means in plain torch, and the calls that stand for it."""
