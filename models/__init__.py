"""The shipped training steps."""
