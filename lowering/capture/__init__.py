"""From a model, a loss and a batch to an fx graph of one training step."""
