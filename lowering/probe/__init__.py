"""Infer and check the sharding rules of ops by running them on small inputs."""
