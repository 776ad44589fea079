"""The linear program of ratios finds the optimum of a fine grid of shares."""

import itertools
import random

import pytest

from shardwright.passes.shares.ratios import MemoryLimit, NoShares, Phase, PhaseWork, RatioProblem, solve_ratios

GRID = 200


def random_problem(seed: int, *, limited: bool = False) -> RatioProblem:
    """Return a few phases on three devices of different speeds."""
    draw = random.Random(seed)
    speeds = [draw.uniform(0.2, 2.0) for _ in range(3)]
    phases: list[Phase] = []
    for _ in range(draw.randint(1, 6)):
        amount = draw.uniform(0.0, 2.0)
        work = tuple(PhaseWork(j, draw.uniform(0, 0.1), amount / speed) for j, speed in enumerate(speeds))
        phases.append(Phase(0, draw.uniform(0, 0.1), draw.choice((0.0, draw.uniform(0, 1))), work))
    limits = tuple(MemoryLimit({(0, j): draw.uniform(1e6, 1e9)}, 3e8) for j in range(3)) if limited else ()
    return RatioProblem(3, 1, tuple(phases), limits, least=draw.choice((0.0, 0.1)))


def obeys(problem: RatioProblem, shares: tuple[float, ...], slack: float = 1e-9) -> bool:
    held = (sum(count * shares[j] for (_, j), count in limit.bytes.items()) for limit in problem.limits)
    fits = all(each <= limit.budget * (1 + slack) for each, limit in zip(held, problem.limits, strict=True))
    return fits and min(shares) >= problem.least - slack


def best_of_grid(problem: RatioProblem) -> float | None:
    """Return the least time on a grid of shares; None if no share obeys the limits."""
    pairs = ((i, j) for i, j in itertools.product(range(GRID + 1), repeat=2) if i + j <= GRID)
    points = ((i / GRID, j / GRID, (GRID - i - j) / GRID) for i, j in pairs)
    return min((problem.seconds((point,)) for point in points if obeys(problem, point)), default=None)


@pytest.mark.parametrize("seed", range(50))
def test_the_program_equals_a_fine_grid(seed: int):
    problem = random_problem(seed, limited=seed % 2 == 1)
    expected = best_of_grid(problem)
    assert expected is not None
    (shares,) = solve_ratios(problem)
    assert sum(shares) == pytest.approx(1.0, abs=1e-9)
    assert obeys(problem, shares, slack=1e-5)
    found = problem.seconds((shares,))
    steepest = sum(phase.rate + max(work.rate for work in phase.work) for phase in problem.phases)
    assert found <= expected * (1 + 1e-4)
    assert found >= expected - 2 * steepest / GRID


def test_equal_devices_share_equally():
    phase = Phase(0, 0.0, 1.0, tuple(PhaseWork(j, 0.0, 1.0) for j in range(4)))
    assert solve_ratios(RatioProblem(4, 1, (phase,))) == ((0.25,) * 4,)


def test_segments_have_separate_shares():
    computing = Phase(0, 0.0, 0.0, (PhaseWork(0, 0.0, 1.0), PhaseWork(1, 0.0, 3.0)))
    talking = Phase(1, 0.0, 9.0, (PhaseWork(0, 0.0, 1.0), PhaseWork(1, 0.0, 3.0)))
    assert solve_ratios(RatioProblem(2, 2, (computing, talking))) == ((0.75, 0.25), (0.5, 0.5))


def test_a_device_with_little_memory_gets_less():
    phase = Phase(0, 0.0, 0.0, (PhaseWork(0, 0.0, 1.0), PhaseWork(1, 0.0, 1.0)))
    limit = MemoryLimit({(0, 0): 100.0}, 20.0)
    assert solve_ratios(RatioProblem(2, 1, (phase,), (limit,)))[0] == (0.2, 0.8)


def test_too_little_memory_on_all_devices_is_an_error():
    phase = Phase(0, 0.0, 0.0, (PhaseWork(0, 0.0, 1.0), PhaseWork(1, 0.0, 1.0)))
    limits = tuple(MemoryLimit({(0, j): 100.0}, 20.0) for j in range(2))
    with pytest.raises(NoShares, match="memory"):
        solve_ratios(RatioProblem(2, 1, (phase,), limits))
