"""Checks of rules other than their signatures: backward ops, strides of operands, and detection of planted faults."""

from collections import defaultdict

import pytest
from mutations import Fate, fates
from op_samples import UNDEFINED, OpSample, op_samples
from proofs import backward_fault, strides_matter

_SAMPLES: dict[str, list[OpSample]] = defaultdict(list)
for _each in op_samples():
    _SAMPLES[_each.overload].append(_each)

_BY_MEMORY = {"as_strided", "as_strided_scatter"}
"""Ops that read memory by definition; the importer refuses them on computed values."""


def test_results_do_not_depend_on_strides_of_operands():
    rows = _SAMPLES.items()
    found = {overload for overload, given in rows if overload not in UNDEFINED and any(map(strides_matter, given))}
    assert found == _BY_MEMORY


@pytest.mark.parametrize(
    "overload",
    ["addmm", "baddbmm", "_softmax", "gelu", "cumsum", "max.dim", "native_layer_norm", "convolution", "gather", "cat"],
)
def test_backward_ops_on_parts_equal_autograd(overload: str):
    for sample in _SAMPLES[overload]:
        run, fault = backward_fault(sample, draws=4)
        assert run
        assert fault is None, fault


@pytest.mark.parametrize("overload", ["addmm", "add.Tensor", "sum.dim_IntList", "amax", "_softmax", "view", "cat"])
def test_planted_faults_are_detected(overload: str):
    found = fates(_SAMPLES[overload])
    assert Fate.NOTICED in found.values()
    assert not [name for name, fate in found.items() if fate in (Fate.MISSED, Fate.TRUE)]
