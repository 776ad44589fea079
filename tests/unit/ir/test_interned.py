"""Equal values of interned classes are the same object, whatever their origin."""

import copy
import pickle
from dataclasses import replace

import pytest

from shardwright.ir.mesh import Axis, AxisKind, Mesh
from shardwright.ir.ratios import Ratios, Splits
from shardwright.ir.sharding import DimSharding, Reduction, Sharding, parse_sharding
from shardwright.ir.signatures import Signature

ROWS = Sharding.of([("gpu",), ()], {"node": Reduction.SUM})


VALUES = [
    ROWS,
    DimSharding(("a", "b"), (0, 1, 4)),
    Ratios.of({"gpu": (0.5, 0.5)}),
    Signature((ROWS,), (ROWS,)),
    Axis("micro", 4, AxisKind.TEMPORAL),
    Mesh.of(node=2, gpu=4).over(micro=4),
]


@pytest.mark.parametrize("value", VALUES)
def test_a_copied_or_unpickled_value_is_the_same_object(value: object):
    assert pickle.loads(pickle.dumps(value)) is value
    assert copy.deepcopy(value) is value
    assert copy.copy(value) is value


def test_equal_values_are_the_same_object():
    assert DimSharding(axes=("gpu",)) is DimSharding(("gpu",)) is DimSharding(("gpu",), None)
    assert parse_sharding(str(ROWS)) is ROWS
    assert replace(ROWS, partial=()) is Sharding.of([("gpu",), ()])
    assert Splits.single([4, 2]) is Splits((4, 2), (4, 2))
    assert Mesh.of(node=2, gpu=4) is replace(Mesh.of(node=2), axes=(Axis("node", 2), Axis("gpu", 4)))


def test_different_values_differ():
    assert ROWS != replace(ROWS, partial=())
    assert len({ROWS, Sharding.of([("gpu",), ()]), Sharding.of([(), ("gpu",)])}) == 3
