"""Checking that a plan trains as one device does, against eager PyTorch."""
