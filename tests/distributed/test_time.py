"""
Programs with a batch split over time train as one device on the whole batch: duplex, and accumulation by four.

Cases have even and uneven shares on one axis or two, on gloo processes (one launch per number of ranks) or interpreted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import dropout_steps
import pytest
import time_cuts
import time_steps
import torch
from launches import names_of, results_of
from split_cluster import split_cluster

from shardwright.api.checking.cases import CheckCase, CheckResult
from shardwright.api.checking.check import check_interpreted
from shardwright.ir.mesh import parse_mesh
from shardwright.passes.errors import PassError

HYBRID = Path(__file__).parents[1] / "support" / "hybrid_pins.toml"
FORMS = {"duplex": ("split-batch{parts=2}", "duplex"), "accumulation": ("split-batch{parts=4}", "accumulate")}
LISTED = {"three copies by a list": ("split-batch{parts=3}", "duplex{order=list}")}
SPREADS = {
    "2": ("2", "search-strategy"),
    "4 uneven": ("4", 'search-strategy,balance-ratios{ratios="0.4,0.3,0.2,0.1"}'),
    "2x2": ("2x2", f'search-strategy{{algorithm=fixed pins="{HYBRID}"}}'),
    "2x2 uneven": (
        "2x2",
        f'search-strategy{{algorithm=fixed pins="{HYBRID}"}},balance-ratios{{ratios="0.6,0.4" axis="a0"}}',
    ),
}
"""A mesh, and the passes that spread the step over it, by name."""

PRECISIONS = {"float32": (torch.float32, "sgd"), "float64": (torch.float64, "adamw")}


def case(model: str, form: str, spread: str, precision: str) -> CheckCase:
    mesh, passes = SPREADS[spread]
    split, loop = {**FORMS, **LISTED}[form]
    pipeline = f"prepare,{passes},{split},communicate,{loop},overlap,finish"
    dtype, optimizer = PRECISIONS[precision]
    parsed, step = parse_mesh(mesh), getattr(time_steps, model)
    return CheckCase(step, parsed, None, dtype, optimizer, cluster=split_cluster(parsed), pipeline=pipeline)


def names() -> Iterator[tuple[str, str, str, str]]:
    for form in FORMS:
        yield "gpt2", form, "2x2 uneven", "float32"
        yield from (("gpt2", form, spread, "float64") for spread in SPREADS)
        # The other models alternate even and uneven shares, one axis and two.
        yield from (("bert", form, spread, "float64") for spread in ("4 uneven", "2x2"))
        yield from (("vit", form, spread, "float64") for spread in ("2", "2x2 uneven"))


def batch_norm(*, synchronised: bool) -> CheckCase:
    """Return VGG19 with batch norm under duplex."""
    mesh = parse_mesh("2")
    first, option = ("decompose-batch-norm,", " unrolled=true") if synchronised else ("", "")
    split = f"split-batch{{parts=2{option}}}"
    pipeline = f"{first}prepare,search-strategy,{split},communicate,duplex,overlap,finish"
    return CheckCase("vgg19-bn-tiny", mesh, None, torch.float64, "sgd", cluster=split_cluster(mesh), pipeline=pipeline)


CASES = {", ".join(each): case(*each) for each in names()}
CASES["gpt2, three copies by a list"] = case("gpt2", "three copies by a list", "2x2", "float64")
CASES["batch-norm, duplex"] = batch_norm(synchronised=True)
# Masks of parts are slices of the mask of the batch.
CASES["gpt2 with dropout, duplex"] = replace(case("gpt2", "duplex", "2x2 uneven", "float64"), step=dropout_steps.gpt2)
CASES["bert with dropout, accumulation"] = replace(
    case("bert", "accumulation", "4 uneven", "float32"), step=dropout_steps.bert
)
# Tokens are routed to experts within each part: by one-hot masks of limited capacity, and sorted.
for way in ("accumulate", "accumulate, gathered by each"):
    CASES[f"bert-sgmoe-tiny, {way}"] = time_cuts.FORMS[way].case("bert-sgmoe-tiny", torch.float32)
CASES["mixtral-tiny, duplex"] = time_cuts.FORMS["duplex"].case("mixtral-tiny")


THOROUGH = {
    *(f"gpt2, {form}, 2x2, float64" for form in FORMS),
    *(f"{model}, {form}, 4 uneven, float64" for form in FORMS for model in ("bert", "gpt2")),
    *(f"gpt2, {form}, 2x2 uneven, float32" for form in FORMS),
    "gpt2, accumulation, 2, float64",
    "gpt2, duplex, 2x2 uneven, float64",
    "bert, accumulation, 2x2, float64",
    "vit, duplex, 2, float64",
    *(f"vit, {form}, 2x2 uneven, float64" for form in FORMS),
    "bert-sgmoe-tiny, accumulate",
    "mixtral-tiny, duplex",
}
"""
Cases that run only with `--thorough`: other models, dropout, or the interpreter, which always runs other experts in
`test_cut_in_time.py`, cover them.
"""

results = results_of(CASES)


@pytest.mark.distributed
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", names_of(CASES, lambda name: name not in THOROUGH))
def test_parts_train_as_the_whole_batch_does(name: str, results: Callable[[str], CheckResult]):
    result = results(name)
    assert result.passed, str(result)


# The other models, and accumulation, run on processes in the test above.
@pytest.mark.parametrize(
    ("model", "form"), names_of(product(("gpt2", "bert", "vit"), FORMS), lambda each: each == ("gpt2", "duplex"))
)
def test_parts_train_as_the_whole_batch_does_when_interpreted(model: str, form: str):
    result = check_interpreted(replace(case(model, form, "4 uneven", "float64"), steps=2))
    assert result.passed, str(result)


def test_a_batch_norm_is_refused_by_name_unless_its_statistics_are_synchronised():
    told = r"'aten._native_batch_norm_legit_functional' op .*\"features.0.1\".* needs all 8 rows.*decompose-batch-norm"
    with pytest.raises(PassError, match=told):
        check_interpreted(batch_norm(synchronised=False))


def test_a_batch_norm_needs_no_option_without_duplex():
    mesh = parse_mesh("2")
    plain = CheckCase("vgg19-bn-tiny", mesh, None, torch.float64, "sgd", steps=2, cluster=split_cluster(mesh))
    result = check_interpreted(plain)
    assert result.passed, str(result)
