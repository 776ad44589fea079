"""Write `ir/ops/schemas.txt`: the arguments of the op table's ops in the installed torch."""

from __future__ import annotations

from typing import Any

import torch

from ..ir.ops.schema import SCHEMAS
from ..ir.ops.table import op_table


def main() -> int:
    """Write the file; tests/unit/ir/test_schema.py fails if it is out of date."""
    SCHEMAS.write_text(schemas_text(), encoding="utf-8")
    return 0


def schemas_text() -> str:
    """Return the schemas of all torch ops in the op table, sorted by name, without their results."""
    lines = (_line(name) for name, spec in sorted(op_table().items()) if spec.arguments is None)
    return "".join(f"{line}\n" for line in lines)


def _line(name: str) -> str:
    base, _, overload = name.partition(".")
    op: Any = getattr(getattr(torch.ops.aten, base), overload or "default")
    arguments, _, _ = str(op._schema).partition("(")[2].rpartition(") -> ")
    return f"{name}({arguments})"


if __name__ == "__main__":
    raise SystemExit(main())
