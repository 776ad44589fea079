"""The parts of `duplex`: the loop of a temporal axis, a copy of its ops for each part, and the order of the copies."""
