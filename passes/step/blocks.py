"""
The blocks that a model is made of, by the paths of its modules: what `find_layers` takes as layers.

A block is an element of a list of modules: `h.0` for `h.0.attn.q`, else the module itself. Blocks of one list are alike
as a rule. Where they are not (stages of a vision model, each of another number of blocks; a sequence of an encoder and
a head) and have lists of blocks in turn, those are blocks instead: `stages.0.blocks.1`. The elements of an inner list
must have modules of their own and work one after the other: a sequence of linear layers is none, and experts are none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import NameLoc
from xdsl.ir import Operation, SSAValue

from ...dialects.compute import ComputeOp


def layer_of(op: Operation) -> str:
    """The module of the user's model that `op` is from; empty where not known."""
    return op.location.desc.data if isinstance(op.location, NameLoc) else ""


@dataclass(frozen=True)
class Blocks:
    """
    Which block a module belongs to.

    Args:
        opened: the lists of modules whose elements are too unlike to be blocks.
        inner: the lists within those, whose elements are.
    """

    opened: frozenset[str] = frozenset()
    inner: frozenset[str] = frozenset()

    def of(self, module: str) -> str:
        """The block of a module: its path up to the last number that is of a block, or all of it."""
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
    """The blocks of a step, from its ops of forward in order."""
    lists: dict[str, dict[str, list[ComputeOp]]] = {}
    for op in forward:
        parts = layer_of(op).split(".")
        for i, part in enumerate(parts):
            if part.isdigit():
                lists.setdefault(".".join(parts[:i]), {}).setdefault(".".join(parts[: i + 1]), []).append(op)
    unlike = {name for name, blocks in lists.items() if not _are_alike(blocks)}
    inner = {name for name, blocks in lists.items() if _is_inner(name, unlike) and _are_blocks(blocks, forward)}
    opened = {name for name in unlike if any(_is_inner(each, (name,)) for each in inner)}
    return Blocks(frozenset(opened), frozenset(inner))


def _is_inner(name: str, lists: Iterable[str]) -> bool:
    """Whether a list is within an element of one of `lists`."""
    return any(name.startswith(f"{other}.") for other in lists)


def _are_alike(blocks: dict[str, list[ComputeOp]]) -> bool:
    """Whether there are several blocks, which have the same ops in the same modules."""
    found = {tuple((layer_of(op).removeprefix(block), op.name) for op in ops) for block, ops in blocks.items()}
    return len(blocks) > 1 and len(found) == 1


def _are_blocks(blocks: dict[str, list[ComputeOp]], forward: Sequence[ComputeOp]) -> bool:
    """Whether the elements of a list have modules of their own, and each works on what the one before it gives."""
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
