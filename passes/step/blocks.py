"""
The blocks of a model, found from the paths of its modules; `find_layers` takes them as layers.

A block is an element of a list of modules, `h.0` for `h.0.attn.q`; a module outside all lists is a block. The blocks of
one list usually have the same ops. If they differ (stages of a vision model with different numbers of blocks; a
sequence of an encoder and a head) and contain lists of blocks, the blocks of these inner lists are used:
`stages.0.blocks.1`. The elements of an inner list must contain modules and run one after the other, which excludes the
elements of a sequence of linear layers, and experts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import NameLoc
from xdsl.ir import Operation, SSAValue

from ...dialects.compute import ComputeOp


def layer_of(op: Operation) -> str:
    """Return the path of the module in the user's model that `op` is from; empty if unknown."""
    return op.location.desc.data if isinstance(op.location, NameLoc) else ""


@dataclass(frozen=True)
class Blocks:
    """
    A mapping from modules to blocks.

    Args:
        opened: paths of the lists whose elements differ too much to be blocks.
        inner: paths of the lists within `opened` whose elements are blocks.
    """

    opened: frozenset[str] = frozenset()
    inner: frozenset[str] = frozenset()

    def of(self, module: str) -> str:
        """Return the block of a module: its path up to the last index that selects a block, or all of its path."""
        parts = module.split(".")
        numbers = [i for i, part in enumerate(parts) if part.isdigit()]
        if not numbers:
            return module
        end = numbers[0]
        for number in numbers[1:]:
            if ".".join(parts[:end]) not in self.opened:
                break
            if ".".join(parts[:number]) in self.inner:
                end = number
        return ".".join(parts[: end + 1])


def find_blocks(forward: Sequence[ComputeOp]) -> Blocks:
    """Return the blocks of a step, given its forward ops in program order."""
    lists: dict[str, dict[str, list[ComputeOp]]] = {}
    for op in forward:
        parts = layer_of(op).split(".")
        for i, part in enumerate(parts):
            if part.isdigit():
                lists.setdefault(".".join(parts[:i]), {}).setdefault(".".join(parts[: i + 1]), []).append(op)
    unlike = {name for name, blocks in lists.items() if not _are_alike(blocks)}
    inner = {name for name, blocks in lists.items() if _is_inner(name, unlike) and _are_blocks(blocks, forward)}
    opened = {name for name in unlike if any(_is_inner(inner_name, (name,)) for inner_name in inner)}
    return Blocks(frozenset(opened), frozenset(inner))


def _is_inner(name: str, lists: Iterable[str]) -> bool:
    return any(name.startswith(f"{other}.") for other in lists)


def _are_alike(blocks: dict[str, list[ComputeOp]]) -> bool:
    """Return whether there are several blocks, all with the same ops in the same modules."""
    contents = {tuple((layer_of(op).removeprefix(block), op.name) for op in ops) for block, ops in blocks.items()}
    return len(blocks) > 1 and len(contents) == 1


def _are_blocks(blocks: dict[str, list[ComputeOp]], forward: Sequence[ComputeOp]) -> bool:
    """Return whether the elements of a list contain modules, and each uses values of the element before it."""
    if any(all(layer_of(op) == block for op in ops) for block, ops in blocks.items()):
        return False
    number = {op: index for index, ops in enumerate(blocks.values()) for op in ops}
    reached: dict[SSAValue, int] = {}
    following = {0}
    for op in forward:
        before = {reached[value] for value in op.args if value in reached}
        if (own := number.get(op)) is not None:
            following |= {own} if own - 1 in before else set()
            before.add(own)
        if before:
            reached.update(dict.fromkeys(op.outs, max(before)))
    return len(following) == len(blocks)
