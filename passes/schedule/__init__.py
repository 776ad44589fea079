"""Moving collectives: what they serve, how they are bucketed, and the order of ops that follows."""
