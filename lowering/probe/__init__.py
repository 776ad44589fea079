"""Finding and checking the sharding rules of ops by running them on small inputs."""
