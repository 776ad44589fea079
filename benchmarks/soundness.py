"""
Prove every rule: all signatures of all samples on meshes of 2, 3, 4 and 2x2, with even, uneven and empty shards.

    python benchmarks/soundness.py [OP ...]

Forward runs in float64 on the samples of `tests/support/op_samples.txt`, each with several random inputs;
`benchmarks/opinfo.py` covers the shapes of torch's samples. If autograd has a gradient of the op, its backward ops run
on shards with random signatures and are compared with autograd on full tensors. Operands with another memory order must
give equal results. The script writes `results/soundness.json` and the table of `docs/soundness.md`.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Collection
from time import perf_counter

from _report import ROOT, arguments, parsed, publish, quiet, write_between
from ir_files import context, parse
from op_samples import UNDEFINED, OpSample, op_samples
from proofs import backward_fault, strides_matter

from shardwright.ir.ops.table import op_table
from shardwright.lowering.capture.captured import CaptureError
from shardwright.lowering.interpreter.interpreter import find_function
from shardwright.lowering.interpreter.random_inputs import random_inputs
from shardwright.lowering.probe.soundness import check_op

SEEDS = (0, 1)
DRAWS = 8
"""Number of random assignments of signatures to the ops of a backward."""

_BEGIN, _END = "<!-- table -->\n", "<!-- end of table -->\n"


def samples_by_op(wanted: Collection[str]) -> dict[str, list[OpSample]]:
    """Return the samples of the wanted ops, by default of all."""
    by_row: dict[str, list[OpSample]] = defaultdict(list)
    for sample in op_samples():
        if not wanted or sample.overload in wanted:
            by_row[sample.overload].append(sample)
    return by_row


def main() -> None:
    """Check all rules, print refutations, and write the table."""
    parser = arguments(__doc__)
    parser.add_argument("wanted", nargs="*", metavar="OP", help="only the rules of these ops; no table is written")
    wanted = parsed(parser, wanted=["relu"]).wanted
    quiet()
    by_row = samples_by_op(wanted)
    start = perf_counter()
    rows = [prove(overload, samples) for overload, samples in by_row.items()]
    counts = {column: sum(int(row[column]) for row in rows) for column in rows[0] if column != "op"}
    total: dict[str, str | int] = {"op": f"all {len(rows)}, in {perf_counter() - start:.0f} s", **counts}
    if not wanted:
        missing = op_table().keys() - by_row.keys()
        assert not missing, f"rules without a sample: {', '.join(sorted(missing))}"
        write_table([*rows, total])
        publish("soundness", [*rows, total])


def prove(overload: str, samples: list[OpSample]) -> dict[str, str | int]:
    """Run all checks of one rule, and return their counts."""
    row: dict[str, str | int] = {"op": overload, "samples": len(samples)}
    counts = dict.fromkeys(("signatures", "refuted", "backward", "backward refuted", "by strides"), 0)
    parser = context()
    for sample in samples:
        for seed in SEEDS:
            module = parse(sample.module, parser)
            inputs = random_inputs(find_function(module), seed)
            verdict = check_op(module, inputs, defined=overload not in UNDEFINED)
            counts["signatures"] += verdict.checked
            counts["refuted"] += not verdict.holds
            if verdict.counterexample is not None:
                print(verdict.counterexample, file=sys.stderr)
        try:
            run, fault = backward_fault(sample, DRAWS)
        except (CaptureError, RuntimeError):
            # Autograd reports a missing gradient by various errors; a failure on ranks raises another error.
            run, fault = 0, None
        counts["backward"] += run
        counts["backward refuted"] += fault is not None
        if fault is not None:
            print(fault, file=sys.stderr)
        counts["by strides"] += overload not in UNDEFINED and strides_matter(sample)
    return row | counts


def write_table(rows: list[dict[str, str | int]]) -> None:
    columns = list(rows[0])
    lines = [columns, ["---", *("---:" for _ in columns[1:])], *([str(row[c]) for c in columns] for row in rows)]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    write_between(ROOT / "docs" / "soundness.md", _BEGIN, _END, table)


if __name__ == "__main__":
    main()
