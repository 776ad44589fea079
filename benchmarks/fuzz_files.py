"""
What becomes of mutated cluster and pin files, and of what the project writes itself: plans, records of plans, measured
steps, journals of profiles and checkpoints. Each is used, or refused with one message; none ends in an internal error,
takes longer than 20 s or allocates more than 1 GiB.

    python benchmarks/fuzz_files.py --count 2000 --seed 1
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from _report import parsed, publish

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from hostile_files import KINDS, load_what_is_used, mutants, outcome
from hostile_json import JSON_KINDS, json_mutants


def main() -> None:
    """Use as many mutants of each kind as are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="mutants of each kind (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=(*KINDS, *JSON_KINDS), action="append", help="repeatable; by default all")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where to write the mutants that were not clean")
    parser.add_argument("--seconds", type=float, default=20.0, help="that a file may take (%(default)s)")
    options = parsed(parser, count=5)
    load_what_is_used()
    rows = [_row(kind, options) for kind in options.kind or (*KINDS, *JSON_KINDS)]
    command = f"python benchmarks/fuzz_files.py --count {options.count} --seed {options.seed}"
    publish("fuzz_files", rows, command=command)


def _row(kind: str, options: argparse.Namespace) -> dict[str, Any]:
    if kind in KINDS:
        texts, use = KINDS[kind]
        made = mutants(texts(), options.seed, options.count)
    else:
        use, made = JSON_KINDS[kind][2], json_mutants(kind, options.seed, options.count)
    counts: Counter[str] = Counter()
    longest = 0.0
    for number, text in enumerate(made):
        found = outcome(use, text, seconds=options.seconds)
        counts[found.status] += 1
        longest = max(longest, found.seconds)
        if not found.is_clean and options.keep is not None:
            options.keep.mkdir(parents=True, exist_ok=True)
            name = f"{kind}-{options.seed}-{number}"
            (options.keep / f"{name}.toml").write_bytes(text.encode("utf-8", "surrogatepass"))
            (options.keep / f"{name}.txt").write_text(f"{found.status}: {found.message}\n", encoding="utf-8")
    names = ("used", "refused", "internal", "hang", "memory", "died")
    row = {"kind": kind, "seed": options.seed, "mutants": options.count}
    return {**row, **{name: counts[name] for name in names}, "longest_s": longest}


if __name__ == "__main__":
    main()
