"""The dialects and passes that this package registers with xDSL, each imported on demand."""

from functools import partial
from pkgutil import resolve_name

from xdsl.universe import Universe

from ..passes.registry import our_passes

DIALECTS = {"aten": "aten:ATEN", "pipe": "pipe:PIPE", "spmd": "spmd:SPMD", "train": "train:TRAIN"}
"""Dialect -> "module:NAME" in the folder of dialects."""

_FOLDER = __name__.replace("tools.universe", "dialects")

UNIVERSE = Universe(
    all_dialects={name: partial(resolve_name, f"{_FOLDER}.{home}") for name, home in DIALECTS.items()},
    all_passes=our_passes(),
)
