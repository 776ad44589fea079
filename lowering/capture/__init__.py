"""Capture a model, a loss and a batch as an fx graph of one training step."""
