"""Run a step, lowered or not, in one process that holds the shards of all devices."""
