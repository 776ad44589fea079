"""The xDSL dialects: ops, attributes, verifiers and assembly formats."""
