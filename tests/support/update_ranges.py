"""Ranges of updates in a profile."""

from collections.abc import Container, Iterable


def without_update(layers: Iterable[str], ranges: Container[str]) -> list[str]:
    """Return the layers without an update range of the layer or of an enclosing module."""

    def has_update(layer: str) -> bool:
        path = layer.split(".")
        modules = ["model", *(".".join(path[: end + 1]) for end in range(len(path)))]
        return any(f"update {module}" in ranges for module in modules)

    return [layer for layer in layers if not has_update(layer)]
