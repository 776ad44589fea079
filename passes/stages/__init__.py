"""The division of a step into stages, and the schedules by which stages run micro-batches."""
