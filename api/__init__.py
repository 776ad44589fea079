"""What a training script calls: `parallelize` and `TrainingStep`."""
