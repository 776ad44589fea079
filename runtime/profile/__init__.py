"""Measuring a cluster from its ranks: what collectives and ops take there, and the cluster that fits it."""
