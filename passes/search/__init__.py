"""The search of `search-strategy`: problem, constraints and solvers that choose a signature for every op."""
