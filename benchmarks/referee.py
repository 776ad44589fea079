"""
Compare this compiler's searches with the searches of the papers on one set of problems.

    python benchmarks/referee.py [--parts PART ...] [--settings SETTING ...] [--algorithms NAME ...]

There are three parts:

- `settings`: run each algorithm on a setting of each paper. Each algorithm minimizes its own objective; the same passes
  finish its program, and the step is simulated. `auto` is `search-plan`, and `auto over best` must not exceed 1.
- `budget`: cost by seconds of search on AutoDDL's MLP with layers of 32768, 16384, 4096, 2048 and 512 features (figure
  8), on 128 and on 4,096 nodes. Algorithms with a budget run with budgets of 1, 4, 16, and so on.
- `scaling`: seconds by the number of layers, and by the number of devices (HiDup figure 14, HAP figure 19).

In `scaling`, an algorithm that fails, or takes longer than `--seconds`, is not run on larger problems.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from math import inf
from time import perf_counter
from typing import Any

from _plain_plans import step_seconds, tightest
from _report import Rows, arguments, parsed, plot, progress, publish
from _steps import after, planned, prepared
from xdsl.dialects.builtin import DictionaryAttr, FloatAttr, IntegerAttr, ModuleOp
from xdsl.utils.exceptions import PassFailedException

from shardwright.api.training_step import TrainingStep
from shardwright.dialects.step import SEARCH
from shardwright.ir.cluster import Cluster
from shardwright.ir.cluster_file import find_cluster
from shardwright.ir.garbage import collector_paused
from shardwright.ir.mesh import Mesh, parse_mesh
from shardwright.ir.plan_options import ALGORITHMS
from shardwright.ir.submesh import on_mesh
from shardwright.models.mlp import mlp_step
from shardwright.models.registry import training_step
from shardwright.passes.errors import PassError
from shardwright.passes.search_plan import SearchPlanPass
from shardwright.passes.search_strategy import SearchStrategyPass
from shardwright.passes.step.step_view import step_functions

WIDTHS = (32768, 16384, 4096, 2048, 512)
"""Numbers of features of the layers of AutoDDL's MLP (section 4.6)."""

WHOLE_PLANS = ("auto", "anneal")

STRATEGIES = tuple(name for name in ALGORITHMS if name not in (*WHOLE_PLANS, "fixed"))

DUPLEX = ("pareto-dp",)
"""The algorithms whose objective is the time of two interleaved halves of the batch."""

BUDGETED = ("random", "metropolis", "coordinate-descent", "ilp", "astar", "pareto-dp")

PARTS = ("settings", "budget", "scaling")


@dataclass(frozen=True)
class Setting:
    """
    A training step on a shipped cluster, on a mesh of another size if the setting names one, and the paper that has it.
    """

    paper: str
    step: Callable[[], TrainingStep]
    cluster: str
    mesh: str | None = None

    def devices(self) -> Cluster:
        """Return the cluster, on the mesh of the setting if it names one."""
        cluster = find_cluster(self.cluster)
        return on_mesh(cluster, parse_mesh(self.mesh)) if self.mesh is not None else cluster


_MLP = partial(mlp_step, WIDTHS)

SETTINGS: Mapping[str, Setting] = {
    "MLP, 128 nodes": Setting("AutoDDL, figure 8", partial(_MLP, batch=1024), "autoddl-daint-32", "a=8,b=16"),
    "MLP, 4096 nodes": Setting("AutoDDL, figure 8", partial(_MLP, batch=4096), "autoddl-daint-32", "a=64,b=64"),
    "VGG13, 32 nodes": Setting("AutoDDL, figure 7", partial(training_step, "vgg13"), "autoddl-daint-32"),
    "GPT-2, 2x16 A100": Setting("AutoDDL, figure 10", partial(training_step, "gpt2-small"), "autoddl-a100-2x16"),
    "VGG19, 8x8 mixed": Setting("HAP, figure 13", partial(training_step, "vgg19"), "hap-8x8"),
    "ViT, 8x8 mixed": Setting("HAP, figure 13", partial(training_step, "vit-base"), "hap-8x8"),
    "BERT-SGMoE, 2x4 at 10 Gbit/s": Setting("HiDup, figure 9", partial(training_step, "bert-sgmoe"), "hidup-2x4-10g"),
    "VGG19, 8x8": Setting("HiDup, figure 8", partial(training_step, "vgg19"), "hidup-8x8"),
    "GPT-2, 4x4 T4": Setting("AMP, tables 6 and 7", partial(training_step, "gpt2-small"), "amp-homogeneous"),
    "GPT-2, 4x4 mixed": Setting("AMP, tables 8 and 9", partial(training_step, "gpt2-small"), "amp-het-cluster"),
    "GPT-2, 4x4 V100": Setting("cross-mesh, figure 7", partial(training_step, "gpt2-small"), "cross-mesh-p3-4x4"),
}
"""Settings of the papers, by name."""


class OverTime(BaseException):
    """A search reached its time limit. As a `BaseException`, it is no failure of a candidate to `search-plan`."""


@dataclass(frozen=True)
class Outcome:
    """
    The result of one algorithm: seconds of the search alone, the cost by its own objective, the simulated
    step (None if it found no program), and the bytes that the rank with the tightest memory lacks.
    """

    seconds: float
    cost: float | None = None
    step: float | None = None
    excess: float = 0.0
    statistics: Mapping[str, int] | None = None
    why_none: str = ""

    @property
    def counts(self) -> bool:
        """Return whether there is a program that fits in memory."""
        return self.step is not None and not self.excess

    @property
    def columns(self) -> dict[str, Any]:
        """Return the cost and the reason for a missing result as columns of a row."""
        cost = 1e3 * self.cost if self.cost is not None else ""
        return {"own cost ms": cost, "why none": " ".join(self.why_none.split())[:60]}


@lru_cache(maxsize=4)
def imported(name: str) -> ModuleOp:
    """Return the step of a setting, prepared for a search."""
    return prepared(SETTINGS[name].step())


@contextmanager
def limited(seconds: float) -> Generator[None]:
    """Raise OverTime if the block takes longer than `seconds`."""

    def ring(signum: int, frame: object) -> None:
        raise OverTime(f"takes longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run(
    step: ModuleOp, cluster: Cluster, algorithm: str, seconds: float, budget: int | None = None, *, judge: bool = True
) -> Outcome:
    """Run one algorithm for at most `seconds`, and finish and simulate its program if it is to be judged."""
    module = planned(step, cluster)
    began = perf_counter()
    try:
        with limited(seconds), collector_paused():
            if algorithm in WHOLE_PLANS:
                search = SearchPlanPass(algorithm=algorithm, bound_rounds=0)  # pyright: ignore[reportArgumentType]
            else:
                search = SearchStrategyPass(algorithm, budget=budget, explain=True)  # pyright: ignore[reportArgumentType]
            after(module, search)
    except (OverTime, PassError, PassFailedException) as error:
        return Outcome(perf_counter() - began, why_none=str(error))
    spent = perf_counter() - began
    cost, statistics = _told(module)
    if not judge:
        return Outcome(spent, cost, statistics=statistics)
    if algorithm not in WHOLE_PLANS:
        program = "program{mode=duplex parts=2}" if algorithm in DUPLEX else "program"
        try:
            after(module, program)
        except (PassError, PassFailedException) as error:
            return Outcome(spent, cost, statistics=statistics, why_none=str(error))
    peak, memory = tightest(module)
    return Outcome(spent, cost, step_seconds(module), max(peak - memory, 0.0), statistics)


def _told(module: ModuleOp) -> tuple[float | None, dict[str, int]]:
    """Return cost and statistics of the search."""
    (func,) = step_functions(module)
    entries = func.attributes.get(SEARCH)
    if not isinstance(entries, DictionaryAttr):
        return None, {}
    cost = entries.data["cost"]
    assert isinstance(cost, FloatAttr)
    counts = entries.data.get("statistics")
    listed = counts.data.items() if isinstance(counts, DictionaryAttr) else ()
    return cost.value.data, {k: v.value.data for k, v in listed if isinstance(v, IntegerAttr)}


def settings(names: Sequence[str], algorithms: Sequence[str], seconds: float) -> Rows:
    """Return a row for each algorithm on each setting."""
    rows = Rows()
    for name in names:
        setting = SETTINGS[name]
        cluster, outcomes = setting.devices(), dict[str, Outcome]()
        for algorithm in (*algorithms, *WHOLE_PLANS):
            outcomes[algorithm] = outcome = run(imported(name), cluster, algorithm, seconds)
            print(name, algorithm, outcome, file=sys.stderr, flush=True)
        others = [each for key, each in outcomes.items() if key not in ("auto", "eliminate") and each.counts]
        best = min((each.step for each in others if each.step is not None), default=inf)
        for algorithm, outcome in outcomes.items():
            step = outcome.step
            row = {"setting": name, "paper": setting.paper, "algorithm": algorithm}
            row |= {"search s": round(outcome.seconds, 2), **outcome.columns}
            row |= {"step ms": 1e3 * step if step is not None else ""}
            row |= {"fits": "yes" if outcome.counts else "no" if step is not None else "-"}
            row |= {"auto over best": step / best if algorithm == "auto" and step is not None and best < inf else ""}
            rows.append(row | {"statistics": dict(outcome.statistics or {})})
    return rows


def budgets(algorithms: Sequence[str], seconds: float, most: int) -> Rows:
    """Return a row for each algorithm and budget, on AutoDDL's MLP."""
    rows = Rows()
    for name in ("MLP, 128 nodes", "MLP, 4096 nodes"):
        cluster = SETTINGS[name].devices()
        for algorithm in algorithms:
            for budget in _doubled(most) if algorithm in BUDGETED else [None]:
                outcome = run(imported(name), cluster, algorithm, seconds, budget, judge=False)
                row = {"setting": name, "algorithm": algorithm, "budget": budget or "", "search s": outcome.seconds}
                rows.append(progress(row | outcome.columns))
                if outcome.why_none and budget is not None and outcome.seconds >= seconds:
                    break
    return rows


def _doubled(most: int) -> list[int]:
    return [2**power for power in range(0, most.bit_length(), 2) if 2**power <= most]


def scaling(algorithms: Sequence[str], seconds: float, layers: Sequence[int], devices: Sequence[int]) -> Rows:
    """Return the search time of each algorithm by number of layers on 8 devices, and by number of devices for two."""
    rows = Rows()
    too_slow: set[tuple[str, str]] = set()
    for kind, count, number in [*(("layers", 8, n) for n in layers), *(("devices", n, 2) for n in devices)]:
        step = prepared(mlp_step((1024,) * (number + 1), batch=1024))
        cluster = on_mesh(find_cluster("autoddl-daint-32"), Mesh.of(gpu=count))
        for algorithm in algorithms:
            if (kind, algorithm) in too_slow:
                continue
            outcome = run(step, cluster, algorithm, seconds, judge=False)
            at = number if kind == "layers" else count
            row = {"by": kind, "number": at, "algorithm": algorithm, "search s": outcome.seconds}
            rows.append(progress(row | outcome.columns))
            if outcome.why_none:
                too_slow.add((kind, algorithm))
    return rows


def plot_lines(name: str, rows: Rows, panels: str, across: str, up: str) -> None:
    """Write a plot with a panel for each value of one column and a line for each algorithm to `results/NAME.png`."""
    titles = list(dict.fromkeys(row[panels] for row in rows))
    with plot(name, panels=len(titles), title=f"{up} over {across}") as axes:
        for title, panel in zip(titles, axes if len(titles) > 1 else [axes], strict=True):
            for algorithm, points in _lines([row for row in rows if row[panels] == title], across, up):
                panel.plot(*zip(*points, strict=True), ".-", label=algorithm)
            panel.set(title=title, xlabel=across, ylabel=up, xscale="log", yscale="log")
            panel.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _lines(rows: Rows, across: str, up: str) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    for algorithm in dict.fromkeys(row["algorithm"] for row in rows):
        mine = [row for row in rows if row["algorithm"] == algorithm and row[up] != ""]
        # Points stay in the order of budgets or sizes, since seconds need not grow with them.
        if points := [(float(row[across]), float(row[up])) for row in mine]:
            yield algorithm, points


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--algorithms", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument("--seconds", type=float, default=120.0, help="time limit of one search (%(default)s)")
    parser.add_argument("--most", type=int, default=4096, help="largest budget (%(default)s)")
    parser.add_argument("--layers", nargs="+", type=int, default=[1, 2, 4, 8, 16, 24])
    parser.add_argument("--devices", nargs="+", type=int, default=[4, 8, 16, 64])
    quick = {"settings": [], "most": 1, "layers": [1], "devices": [2], "seconds": 5.0, "algorithms": ["eliminate"]}
    options = parsed(parser, **quick)
    if "settings" in options.parts and options.settings:
        rows = settings(options.settings, options.algorithms, options.seconds)
        publish("referee", rows, hidden=("paper",))
    if "budget" in options.parts:
        rows = budgets(options.algorithms, options.seconds, options.most)
        publish("referee_budget", rows)
        plot_lines("referee_budget", rows, "setting", "search s", "own cost ms")
    if "scaling" in options.parts:
        rows = scaling(options.algorithms, options.seconds, options.layers, options.devices)
        publish("referee_scaling", rows)
        plot_lines("referee_scaling", rows, "by", "number", "search s")


if __name__ == "__main__":
    main()
