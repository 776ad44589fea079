"""The pairwise model: its errors, the cost of an assignment, and brute force."""

from __future__ import annotations

import numpy as np
import pytest

from shardwright.passes.search.problem import Edge, Infeasible, Problem, brute_force

PAIR = np.array([[1.0, 5.0, np.inf], [4.0, 0.0, 2.0]])


def test_cost_adds_nodes_and_parallel_edges() -> None:
    """An edge may be given in either direction, and twice."""
    unary = (np.array([10.0, 20.0]), np.array([100.0, 200.0, 300.0]))
    problem = Problem(unary, (Edge(0, 1, PAIR), Edge(1, 0, PAIR.T)))
    assert problem.cost([1, 2]) == 20 + 300 + 2 + 2
    assert problem.cost([0, 2]) == np.inf


def test_cost_needs_a_state_per_node() -> None:
    """A short assignment is an error, not a partial sum."""
    with pytest.raises(ValueError, match=r"names 1 states; the problem has 2 nodes"):
        Problem((np.zeros(1), np.zeros(1)), ()).cost([0])


@pytest.mark.parametrize(
    ("unary", "edges", "message"),
    [
        ((np.zeros((2, 2)),), (), r"unary\[0\] has shape \(2, 2\)"),
        ((np.zeros(0),), (), r"unary\[0\] has shape \(0,\)"),
        ((np.array([0.0, np.nan]),), (), r"unary\[0\] holds nan or -inf"),
        ((np.array([0.0, -np.inf]),), (), r"unary\[0\] holds nan or -inf"),
        ((np.zeros(2, np.int64),), (), r"unary\[0\] has dtype int64; expected float64"),
        (
            (np.zeros(2),),
            (Edge(0, 1, np.zeros((2, 2))),),
            r"edges\[0\] joins nodes 0 and 1; there are 1 nodes",
        ),
        ((np.zeros(2),), (Edge(0, 0, np.zeros((2, 2))),), r"edges\[0\] joins node 0 to itself"),
        ((np.zeros(2), np.zeros(3)), (Edge(1, 0, PAIR),), r"table of \(2, 3\); expected \(3, 2\)"),
        ((np.zeros(2), np.zeros(3)), (Edge(0, 1, PAIR * np.nan),), r"edges\[0\] \(0, 1\) holds nan"),
    ],
)
def test_malformed_problems_are_refused(unary: tuple[np.ndarray, ...], edges: tuple[Edge, ...], message: str) -> None:
    """The message names the array and the expectation."""
    with pytest.raises(ValueError, match=message):
        Problem(unary, edges)


def test_brute_force_takes_the_first_of_the_cheapest() -> None:
    """Ties go to the lexicographically first assignment."""
    solution = brute_force(Problem((np.zeros(2), np.zeros(3)), (Edge(0, 1, np.where(PAIR < 3, 0.0, 1.0)),)))
    assert solution.assignment.tolist() == [0, 0]
    assert solution.is_optimal
    assert solution.statistics["assignments"] == 6


def test_brute_force_knows_its_limits() -> None:
    """A problem that is too large is refused at once, an infeasible one after the enumeration."""
    with pytest.raises(ValueError, match="too many to try"):
        brute_force(Problem((np.zeros(10),) * 9, ()))
    with pytest.raises(Infeasible, match="no assignment"):
        brute_force(Problem((np.full(2, np.inf),), ()))
