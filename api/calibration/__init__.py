"""The ops and clusters that are measured, so that predictions fit the machines of a job."""
