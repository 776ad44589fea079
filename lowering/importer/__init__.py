"""From an fx graph to a step function in the IR."""
