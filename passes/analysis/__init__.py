"""What passes ask of a program: cost, memory, liveness, simulation."""
