"""What runs on a worker: process groups, collectives, executor, profiler, checkpoint."""
