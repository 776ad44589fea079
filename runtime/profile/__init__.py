"""Measuring a cluster from its ranks: the times of collectives and ops, and the cluster fitted to them."""
