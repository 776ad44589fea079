"""
Compare Hugging Face models on four gloo ranks with one device: loss, gradients, parameters and state.

    python benchmarks/huggingface.py [--group N] [--docs] [NAME ...]

The default models are all tiny configs of `models/hf/tiny.py`. Each is imported, planned for a mesh of 4 and of 2x2 on
a cluster where splitting pays, and trained for two steps of SGD with momentum in float32. Models that support float64
also run in float64 on 2x2, and three models also run with dropout. The table has the largest errors, measured as in
`api/checking/comparison.py`; the tolerances are 1e-5 and 1e-10. `--docs` writes the table into docs/huggingface.md.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from _report import ROOT, Rows, arguments, parsed, progress, publish, write_between
from split_cluster import split_cluster
from xdsl.dialects.builtin import Float32Type, ModuleOp, TensorType

from shardwright.api.checking.cases import CheckCase, CheckResult, imported
from shardwright.api.checking.check import check_on_ranks
from shardwright.dialects.aten import AtenOp, OpaqueOp
from shardwright.ir.mesh import parse_mesh
from shardwright.models.hf.tiny import TINY
from shardwright.passes.analysis.coverage import coverage

MESHES = ("4", "2x2")
WITH_DROPOUT = ("bert", "gpt2", "vit")
DOCS = ROOT / "docs" / "huggingface.md"
BEGIN, END = "<!-- table: python benchmarks/huggingface.py --docs -->", "<!-- end of table -->"


def is_mixed(doubled: ModuleOp) -> bool:
    """Return whether a step that is imported in float64 computes float32 values, as many do in their loss or norms."""
    results = (value for op in doubled.walk() if isinstance(op, AtenOp | OpaqueOp) for value in op.results)
    used = (value.type for value in results if value.first_use is not None)
    return any(isinstance(type, TensorType) and type.element_type == Float32Type() for type in used)


def case_of(name: str, mesh: str, dtype: torch.dtype, optimizer: str) -> CheckCase:
    """Return the check of a tiny model over two steps."""
    on = parse_mesh(mesh)
    return CheckCase(f"hf:{name}", on, None, dtype, optimizer, steps=2, cluster=split_cluster(on))


def describe(name: str) -> dict[str, Any]:
    """Import a model, and return its import time, its ops, its ops without a rule, and whether it runs in float64."""
    start = time.perf_counter()
    module = imported(case_of(name, "4", torch.float32, "sgd"))
    seconds = time.perf_counter() - start
    ops = coverage(module)
    mixed = is_mixed(imported(case_of(name, "4", torch.float64, "sgd")))
    unruled = ops["replicated"]
    row = {"model": name.removesuffix("-tiny"), "import s": seconds, "tensor ops": ops["tensor_ops"]}
    which = ", ".join(f"{op.removeprefix('aten::')} {count}" for op, count in unruled.items())
    return row | {"without a rule": sum(unruled.values()), "which": which or "-", "float64": not mixed}


def measured(row: dict[str, Any], results: Sequence[CheckResult]) -> dict[str, Any]:
    """Return the row with the errors of its runs and the messages of failed runs."""
    dropping = [result for result in results if "dropout" in result.case.name]
    single = [result for result in results if result.case.dtype is torch.float32 and result not in dropping]
    double = [result for result in results if result.case.dtype is torch.float64]
    kinds = {"loss": "loss", "gradient": "gradients", "parameter": "parameters"}
    errors = {title: _largest(single, kind) for kind, title in kinds.items()}
    failed = [str(result) for result in results if not result.passed]
    columns = {key: value for key, value in row.items() if key != "float64"}
    others = {"float64": _largest(double) if double else "mixed", "dropout": _largest(dropping) if dropping else "-"}
    return {**columns, **errors, **others, "failed": failed}


def _largest(results: Sequence[CheckResult], kind: str | None = None) -> float | None:
    """Return the largest error of one kind, or of all kinds."""
    errors = (error for result in results for error in result.errors)
    return max((error.error for error in errors if kind in (None, error.kind)), default=None)


def run(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Describe and check a group of models in one launch, and yield their rows."""
    rows, cases = [describe(name) for name in names], list[list[CheckCase]]()
    for row in rows:
        name = f"{row['model']}-tiny"
        own = [case_of(name, mesh, torch.float32, "sgd") for mesh in MESHES]
        if row["float64"]:
            own.append(case_of(name, "2x2", torch.float64, "sgd"))
        if row["model"] in WITH_DROPOUT:
            own.append(case_of(f"{name}?dropout=0.1", "2x2", torch.float32, "sgd"))
        cases.append(own)
    results = iter(check_on_ranks([case for checks in cases for case in checks], 4, timeout=1800))
    for row, checks in zip(rows, cases, strict=True):
        yield measured(row, [next(results) for _ in checks])


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    columns = [column for column in rows[0] if column not in ("import s", "failed")]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        # Two digits show how far an error is from its tolerance.
        cells = [f"{row[name]:.2g}" if isinstance(row[name], float) else str(row[name]) for name in columns]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Print the table, write JSON and, with `--docs`, the manual's table. Exit with 1 if a model differs."""
    parser = arguments(__doc__)
    parser.add_argument("--group", type=int, default=6, help="models per launch of four processes (%(default)s)")
    parser.add_argument("--docs", action="store_true", help="write the table into the manual")
    parser.add_argument("names", nargs="*", default=list(TINY), metavar="NAME")
    options = parsed(parser, names=list(TINY)[:1])
    logging.getLogger("shardwright").setLevel(logging.ERROR)
    rows = Rows()
    for start in range(0, len(options.names), options.group):
        rows += map(progress, run(options.names[start : start + options.group]))
    publish("huggingface", rows)
    if options.docs:
        write_between(DOCS, BEGIN, END, f"\n\n{markdown(rows)}\n\n")
    sys.exit(any(row["failed"] for row in rows))


if __name__ == "__main__":
    main()
