"""The pure core: placements, meshes, clusters, sharding rules and cost models, without torch or xDSL ops."""
