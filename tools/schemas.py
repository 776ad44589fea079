"""Write `ir/ops/schemas.txt`: what arguments the installed torch's ops take that the op table has."""

from __future__ import annotations

from typing import Any

import torch

from ..ir.ops.schema import SCHEMAS
from ..ir.ops.table import op_table


def main() -> int:
    """Write the file; tests/unit/ir/test_schema.py says when that is due."""
    SCHEMAS.write_text(schemas_text(), encoding="utf-8")
    return 0


def schemas_text() -> str:
    """The schemas of all ops of torch that the table has, sorted by name, without their results."""
    lines = (_line(name) for name, spec in sorted(op_table().items()) if spec.arguments is None)
    return "".join(f"{line}\n" for line in lines)


def _line(name: str) -> str:
    base, _, overload = name.partition(".")
    op: Any = getattr(getattr(torch.ops.aten, base), overload or "default")
    arguments, _, _ = str(op._schema).partition("(")[2].rpartition(") -> ")
    return f"{name}({arguments})"


if __name__ == "__main__":
    raise SystemExit(main())
