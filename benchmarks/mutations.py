"""
Plant faults in sharding rules, one at a time, and count how many of them the proof of the rules notices.

    python benchmarks/mutations.py [OP ...]

The proof is the test of `tests/soundness/test_rules.py`. `tests/support/mutations.py` defines the mutants, and which of
them are no faults. Missed mutants are listed, and so are mutants that turn out to be true rules, for inspection.
"""

from __future__ import annotations

import multiprocessing
from collections import Counter, defaultdict
from collections.abc import Sequence
from multiprocessing.connection import Connection
from time import perf_counter

from _report import arguments, parsed, publish
from mutations import Fate, fates
from op_samples import OpSample
from soundness import samples_by_op

_FORK = multiprocessing.get_context("fork")

KINDS = ("exchanged", "without", "dropped", "changed", "removed", "everywhere", "not indexed", "linear")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("wanted", nargs="*", metavar="OP", help="only the rules of these ops")
    wanted = parsed(parser, wanted=["relu"]).wanted
    by_row = samples_by_op(wanted)
    counts: dict[str, Counter[Fate]] = defaultdict(Counter)
    listed: dict[Fate, list[str]] = {Fate.MISSED: [], Fate.TRUE: []}
    start = perf_counter()
    for overload, samples in by_row.items():
        for name, fate in _in_processes(samples).items():
            counts[next(kind for kind in KINDS if kind in name)][fate] += 1
            if fate in listed:
                listed[fate].append(f"{overload}: {name}")
                print(fate, overload, name, flush=True)
    total: Counter[Fate] = sum(counts.values(), Counter())
    rows = [_row(kind, fates_of_kind) for kind, fates_of_kind in sorted(counts.items())] + [_row("all", total)]
    rows[-1] |= {"s": round(perf_counter() - start), "rows": len(by_row), **listed}
    publish("mutations", rows, hidden=("s", "rows"))


def _in_processes(samples: Sequence[OpSample]) -> dict[str, Fate]:
    """Return the results of `fates`, run in a process: a fault may kill it, as some kernels trust sizes of operands."""
    fate_of: dict[str, Fate] = {}
    while True:
        receiver, sender = _FORK.Pipe(duplex=False)
        process = _FORK.Process(target=_send_fates, args=(samples, frozenset(fate_of), sender))
        process.start()
        sender.close()
        latest: str | None = None
        try:
            while True:
                name, fate = receiver.recv()
                latest = name
                if fate is not None:
                    fate_of[name] = fate
                    latest = None
        except EOFError:
            process.join()
        if latest is None:
            return fate_of
        fate_of[latest] = Fate.NOTICED


def _send_fates(samples: Sequence[OpSample], known: frozenset[str], sender: Connection) -> None:
    fates(samples, known, lambda name, fate: sender.send((name, fate)))


def _row(kind: str, found: Counter[Fate]) -> dict[str, object]:
    faults = found[Fate.NOTICED] + found[Fate.MISSED]
    share = found[Fate.NOTICED] / faults if faults else 1.0
    counts = {f"count {fate}": found[fate] for fate in Fate}
    return {"mutation": kind, "faults": faults, **counts, "noticed share": share}


if __name__ == "__main__":
    main()
