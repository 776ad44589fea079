"""The division of a step into stages, and the schedules that stages run micro-batches by."""
