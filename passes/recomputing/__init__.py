"""Which activations are kept for backward and which are computed again."""
