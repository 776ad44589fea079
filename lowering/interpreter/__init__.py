"""Running a step, lowered or not, on one process that holds the shards of all devices."""
