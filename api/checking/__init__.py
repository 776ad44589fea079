"""Checks that a plan trains as one device does, by comparison with eager PyTorch."""
