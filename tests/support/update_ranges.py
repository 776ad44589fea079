"""The ranges of a profile that updates are in."""

from collections.abc import Container, Iterable


def without_update(layers: Iterable[str], ranges: Container[str]) -> list[str]:
    """The layers that have no range of an update: neither their own nor that of a module that has them."""

    def has_update(layer: str) -> bool:
        path = layer.split(".")
        modules = ["model", *(".".join(path[: end + 1]) for end in range(len(path)))]
        return any(f"update {module}" in ranges for module in modules)

    return [layer for layer in layers if not has_update(layer)]
