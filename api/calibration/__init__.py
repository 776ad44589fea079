"""Measurement of ops and clusters, so that predictions fit the machines of a job."""
