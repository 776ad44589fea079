"""The API for training scripts: `parallelize` and `TrainingStep`."""
