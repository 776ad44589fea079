"""
Use mutated cluster files, pin files, and files that the project writes itself: plans, records of plans, measured steps,
journals of profiles and checkpoints. Each must be used, or refused with one message. An internal error, a run of more
than 20 s and an allocation of more than 1 GiB are failures.

    python benchmarks/fuzz_files.py --count 2000 --seed 1
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from _report import arguments, parsed, publish
from hostile_files import KINDS, load_what_is_used, mutants, outcome
from hostile_json import JSON_KINDS, json_mutants


def main() -> None:
    """Use `--count` mutants of each kind, and publish the counts of the results."""
    parser = arguments(__doc__)
    parser.add_argument("--count", type=int, default=2000, help="mutants of each kind (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=(*KINDS, *JSON_KINDS), action="append", help="repeatable (default: all)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="folder for the mutants that failed")
    parser.add_argument("--seconds", type=float, default=20.0, help="time limit per file (%(default)s)")
    options = parsed(parser, count=5)
    load_what_is_used()
    rows = [_row(kind, options) for kind in options.kind or (*KINDS, *JSON_KINDS)]
    command = f"python benchmarks/fuzz_files.py --count {options.count} --seed {options.seed}"
    publish("fuzz_files", rows)


def _row(kind: str, options: argparse.Namespace) -> dict[str, Any]:
    if kind in KINDS:
        texts, use = KINDS[kind]
        items = mutants(texts(), options.seed, options.count)
    else:
        use, items = JSON_KINDS[kind][2], json_mutants(kind, options.seed, options.count)
    counts: Counter[str] = Counter()
    longest = 0.0
    for number, text in enumerate(items):
        result = outcome(use, text, seconds=options.seconds)
        counts[result.status] += 1
        longest = max(longest, result.seconds)
        if not result.is_clean and options.keep is not None:
            options.keep.mkdir(parents=True, exist_ok=True)
            name = f"{kind}-{options.seed}-{number}"
            (options.keep / f"{name}.toml").write_bytes(text.encode("utf-8", "surrogatepass"))
            (options.keep / f"{name}.txt").write_text(f"{result.status}: {result.message}\n", encoding="utf-8")
    names = ("used", "refused", "internal", "hang", "memory", "died")
    row = {"kind": kind, "seed": options.seed, "mutants": options.count}
    return {**row, **{name: counts[name] for name in names}, "longest_s": longest}


if __name__ == "__main__":
    main()
