"""A step function as passes see it: its ops and values, layers, phases, batch and loops."""
