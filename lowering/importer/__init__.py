"""Import an fx graph as a step function in the IR."""
