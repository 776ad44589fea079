"""The dialects and passes that this package registers with xDSL, each imported on demand."""

from functools import partial
from importlib import import_module

from xdsl.ir import Dialect
from xdsl.universe import Universe

from ..passes.registry import our_passes

DIALECTS = {"aten": "aten:ATEN", "pipe": "pipe:PIPE", "spmd": "spmd:SPMD", "train": "train:TRAIN"}
"""Dialect -> "module:NAME" in the folder of dialects."""


def _load(home: str) -> Dialect:
    module, _, name = home.partition(":")
    return getattr(import_module(f"..dialects.{module}", __package__), name)


UNIVERSE = Universe(
    all_dialects={name: partial(_load, home) for name, home in DIALECTS.items()},
    all_passes=our_passes(),
)
