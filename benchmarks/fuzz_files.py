"""
Use mutated IR, cluster files, pin files, and files that the project writes itself: plans, records of plans, measured
steps, journals of profiles and checkpoints. IR is read, passes run on it and a program is emitted. Each mutant must be
used, or refused with one message. An internal error, a run of more than 20 s and an allocation of more than 1 GiB are
failures.

    python benchmarks/fuzz_files.py [--count 2000] [--seed 1] [--kind ir] [--jobs 2]
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from _report import Rows, arguments, parsed, publish
from hostile_files import KINDS, Outcome, load_what_is_used, mutants, outcome
from hostile_ir import become_of, file_seeds, imported_seeds, step_seeds
from hostile_ir import mutants as ir_mutants
from hostile_json import JSON_KINDS, json_mutants

IR = "ir"
ALL = (*KINDS, *JSON_KINDS, IR)
CHUNK = 100
"""Number of mutants that a process uses at a time."""

Task = tuple[str, int, int]
"""Kind of the mutants, their seed, and their number."""


def tried(task: Task, seconds: float) -> Iterator[tuple[str, Outcome]]:
    """Yield the text of each mutant of a task, and its result."""
    kind, seed, count = task
    if kind == IR:
        seeds = (*file_seeds(), *step_seeds(), *imported_seeds())
        for mutant in ir_mutants(seeds, seed, count):
            yield mutant.text, become_of(mutant, seconds=seconds)
        return
    if kind in KINDS:
        texts, use = KINDS[kind]
        items = mutants(texts(), seed, count)
    else:
        use, items = JSON_KINDS[kind][2], json_mutants(kind, seed, count)
    for text in items:
        yield text, outcome(use, text, seconds=seconds)


def results_of(task: Task, seconds: float, keep: Path | None) -> list[Outcome]:
    """Return the results of a task, and keep the mutants that failed in a folder if one is given."""
    results: list[Outcome] = []
    for number, (text, result) in enumerate(tried(task, seconds)):
        results.append(result)
        if not result.is_clean and keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            name = f"{task[0]}-{task[1]}-{number}"
            (keep / f"{name}.{'mlir' if task[0] == IR else 'toml'}").write_bytes(text.encode("utf-8", "surrogatepass"))
            report = f"{_cause(result)}\n{result.status}: {result.message}\n"
            (keep / f"{name}.txt").write_text(report, encoding="utf-8", errors="replace")
    return results


def _cause(result: Outcome) -> str:
    """Return a text that failures with the same cause share."""
    place = re.search(r"\[\w+ at [^\]]*\]$", result.message.split("\nhint")[0].strip())
    return place[0] if place else f"{result.status}: {result.message[:160]!r}"


def main() -> None:
    """Use `--count` mutants of each kind, publish the counts of the results, and exit with 1 if a mutant failed."""
    parser = arguments(__doc__)
    parser.add_argument("--count", type=int, default=2000, help="mutants of each kind (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=ALL, action="append", help="repeatable (default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes (%(default)s)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="folder for the mutants that failed")
    parser.add_argument("--seconds", type=float, default=20.0, help="time limit per mutant (%(default)s)")
    options = parsed(parser, count=5)
    load_what_is_used()
    step_seeds()
    imported_seeds()
    starts = range(0, options.count, CHUNK)
    tasks: list[Task] = [
        (kind, options.seed * 1_000_000 + at, min(CHUNK, options.count - at))
        for kind in options.kind or ALL
        for at in starts
    ]
    results: dict[str, list[Outcome]] = {kind: [] for kind, _, _ in tasks}
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("fork")) as pool:
        run = partial(results_of, seconds=options.seconds, keep=options.keep)
        for (kind, _, _), own in zip(tasks, pool.map(run, tasks), strict=True):
            results[kind] += own
    rows = Rows()
    for kind, own in results.items():
        counts = Counter(result.status for result in own)
        row = {"kind": kind, "seed": options.seed, "mutants": options.count}
        row |= {status: counts[status] for status in ("used", "refused", "internal", "hang", "memory", "died")}
        rows.append({**row, "longest_s": max(result.seconds for result in own)})
    publish("fuzz_files", rows)
    failures = Counter(_cause(result) for own in results.values() for result in own if not result.is_clean)
    for cause, count in failures.most_common():
        print(f"{count:5} {cause}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
