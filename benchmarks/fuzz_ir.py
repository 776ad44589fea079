"""
What becomes of mutated IR: it is read, run through passes and emitted, or refused with one message; none ends in an
internal error, takes longer than 20 s or allocates more than 1 GiB.

    python benchmarks/fuzz_ir.py --count 10000 --seed 1 --jobs 2
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from _report import parsed, publish

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from hostile_files import Outcome, load_what_is_used
from hostile_ir import Mutant, become_of, file_seeds, imported_seeds, mutants, step_seeds

CHUNK = 100
NAMES = ("used", "refused", "internal", "hang", "memory", "died")


def main() -> None:
    """Use as many mutants as are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="mutants in all (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="processes (%(default)s)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where to write the mutants that were not clean")
    parser.add_argument("--seconds", type=float, default=20.0, help="that a mutant may take (%(default)s)")
    options = parsed(parser, count=20)
    load_what_is_used()
    step_seeds()
    imported_seeds()
    sizes = [(options.seed, at, min(CHUNK, options.count - at), options) for at in range(0, options.count, CHUNK)]
    counts: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    longest = 0.0
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("fork")) as pool:
        for found in pool.map(_chunk, sizes):
            for each in found:
                counts[each.status] += 1
                longest = max(longest, each.seconds)
                if not each.is_clean:
                    kinds[_kind(each)] += 1
    command = f"python benchmarks/fuzz_ir.py --count {options.count} --seed {options.seed}"
    row = {"seed": options.seed, "mutants": options.count, **{name: counts[name] for name in NAMES}}
    publish("fuzz_ir", [{**row, "longest_s": longest}], command=command)
    for kind, count in kinds.most_common():
        print(f"{count:5} {kind}")
    sys.exit(1 if kinds else 0)


def _chunk(asked: tuple[int, int, int, argparse.Namespace]) -> list[Outcome]:
    """What becomes of some mutants; those of each chunk are drawn anew."""
    seed, at, count, options = asked
    found: list[Outcome] = []
    seeds = (*file_seeds(), *step_seeds(), *imported_seeds())
    for number, mutant in enumerate(mutants(seeds, seed * 1_000_000 + at, count)):
        found.append(become_of(mutant, seconds=options.seconds))
        if not found[-1].is_clean and options.keep is not None:
            _keep(options.keep, f"{seed}-{at + number}", mutant, found[-1])
    return found


def _keep(folder: Path, name: str, mutant: Mutant, found: Outcome) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.mlir").write_bytes(mutant.text.encode("utf-8", "surrogatepass"))
    said = f"{mutant.seed}\n{mutant.pipeline}\n{_kind(found)}\n{found.status}: {found.message}\n"
    (folder / f"{name}.txt").write_text(said, encoding="utf-8", errors="replace")


def _kind(found: Outcome) -> str:
    """What findings of one cause have in common."""
    place = re.search(r"\[\w+ at [^\]]*\]$", found.message.split("\nhint")[0].strip())
    return place[0] if place else f"{found.status}: {found.message[:160]!r}"


if __name__ == "__main__":
    main()
