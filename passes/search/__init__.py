"""The algorithms that choose a signature for every op."""
