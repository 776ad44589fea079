"""Candidates have readable names without two meanings, and a legend explains exactly the terms that they contain."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from ir_files import context
from split_cluster import hosts_cluster

from shardwright.api.compile import import_training_step
from shardwright.ir.mesh import Mesh
from shardwright.models.mlp import mlp_step
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.planning.candidate_compiler import CandidateCompiler
from shardwright.passes.planning.candidates import FIRST, Candidate, Choice, Layout, preset, presets, searched
from shardwright.passes.planning.explore import MORE, Explorer
from shardwright.passes.planning.layouts import LayoutConstraints
from shardwright.passes.planning.legend import MEANINGS, legend
from shardwright.passes.planning.notes import Allowance
from shardwright.passes.planning.records import Chosen
from shardwright.passes.planning.summary import Tried

GLOSSARY = Path(__file__).parents[3] / "docs" / "glossary.md"
MESH = Mesh.of(node=8, gpu=8)
HYBRID = preset(("dp", ("node",)), ("tp", ("gpu",)))

NAMES: dict[str, tuple[Layout, Choice]] = {
    "dp on 8x8": (Layout(MESH), preset(("dp", ("node", "gpu")))),
    "dp over node + tp over gpu on 8x8, 4 micro-batches": (Layout(MESH, "accumulate", 4), HYBRID),
    "zero3 on 8x8, 4 micro-batches, gathered by each": (
        Layout(MESH, "accumulate", 4, per_part=True),
        preset(("zero3", ("node", "gpu"))),
    ),
    "searched on 8x8 (weights 0.25/1, unbucketed)": (Layout(MESH), searched(0.25, 1.0, bucketed=False)),
    "searched on 8x8, 2 micro-batches, duplex, shares by speed (weights 1/1)": (
        Layout(MESH, "duplex", 2),
        replace(searched(1.0, 1.0), balanced=True),
    ),
    "searched on 8x8, 4 stages, up to 2 chunks, 8 micro-batches, 1f1b (weights 0.05/0.7, within memory)": (
        Layout(MESH, "pipeline", 8, 4, "1f1b", chunks=2),
        replace(searched(0.05, 0.7), fits=True),
    ),
    "tp on 2, only ranks [0, 2-3], fused batch-norm, keeping 35% of activations, products in parts": (
        Layout(Mesh.of(gpu=2), fused=True, keep=0.35, chunked=True, ranks=(0, 2, 3)),
        preset(("tp", ("gpu",))),
    ),
    "dp on 4, ranks [2-3, 0-1], 2 stages, 4 micro-batches": (
        Layout(Mesh.of(gpu=4), "pipeline", 4, 2, ranks=(2, 3, 0, 1)),
        preset(("dp", ("gpu",))),
    ),
}

TERMS = {
    "dp on 8x8": ["dp", "AxB"],
    "zero3 on 4": ["zero3"],
    "dp over node + tp over gpu on 2x4x8, 4 micro-batches": ["dp", "tp", "over", "AxB", "micro-batches"],
    "searched on 8, 2 micro-batches, duplex (weights 0.25/1)": ["searched", "micro-batches", "duplex", "weights A/B"],
    "zero1 on 2, only ranks [0-1], keeping 35% of activations": ["zero1", "ranks", "keeping N% of activations"],
    "searched on 64 (weights 1/1, unbucketed)": ["searched", "weights A/B", "unbucketed"],
}


@pytest.mark.parametrize("name", NAMES)
def test_a_candidate_is_called_by_its_decisions(name: str):
    candidate = Candidate(*NAMES[name])
    assert candidate.name == name
    again = Chosen.read(Chosen(candidate, (), candidate.layout.mesh).record()).candidate
    assert again.name == name
    assert again.family == candidate.family


@pytest.mark.parametrize("name", TERMS)
def test_a_legend_has_exactly_the_terms_of_a_name(name: str):
    assert list(legend([name])) == TERMS[name]
    assert legend([name, name]) == legend([name])


def test_a_legend_explains_every_word_of_a_name():
    """Schedules and axes have names of their own; `only` is explained with ranks."""
    words = set(re.findall(r"\b[a-z][a-z-]+", " ".join(NAMES))) - {"on", "up", "to", "only", "node", "gpu"}
    assert words <= set(re.findall(r"[a-z][a-z-]+", " ".join(legend(NAMES))))
    assert set(MEANINGS) - set(legend(NAMES)) == {"zero1"}


def test_no_two_candidates_of_a_search_have_the_same_name():
    module, cluster = import_training_step(mlp_step((64, 64, 64), batch=64)), hosts_cluster(Mesh.of(node=2, gpu=2))
    add_cluster(module, cluster)
    run_pipeline(context(), module, "prepare", verify_each=False)
    explorer = Explorer(CandidateCompiler(module, cluster), LayoutConstraints(), Allowance(8_000))
    explorer.run()
    candidates = {note.candidate for note in explorer.notes}
    assert len(candidates) > 10
    assert len({candidate.name for candidate in candidates}) == len(candidates)
    in_parts = [candidate for candidate in candidates if candidate.layout.chunked]
    assert in_parts
    for candidate in in_parts:
        whole = replace(candidate, layout=replace(candidate.layout, chunked=False))
        assert candidate.name.count(", products in parts") == 1
        assert candidate.name.replace(", products in parts", "") == whole.name


def test_all_ways_to_search_a_layout_have_different_names():
    for mesh in (Mesh.of(gpu=4), MESH, Mesh.of(outer=2, middle=2, inner=2)):
        choices = {*FIRST, *MORE, replace(FIRST[0], fits=True), *presets(mesh)}
        assert len({Candidate(Layout(mesh), choice).name for choice in choices}) == len(choices)


def test_the_glossary_has_the_legend():
    lines = GLOSSARY.read_text(encoding="utf-8").splitlines()
    begin = lines.index("## Names of plans")
    rows = [line for line in lines[begin:] if line.startswith("| ")][1:]
    assert rows[: len(MEANINGS)] == [f"| {term} | {meaning} |" for term, meaning in MEANINGS.items()]


def test_records_of_older_versions_are_read():
    candidate = Candidate(Layout(MESH), searched(0.25, 1.0, bucketed=False))
    record = Chosen(candidate, (), MESH).record()
    record["choice"]["name"] = "search(0.25, 1, apart)"
    assert Chosen.read(record).candidate == candidate
    old = Tried.from_dict({"name": "search(1, 1) on 8x8", "why": "the same as search(0.25, 1, apart) on 8x8"})
    assert old.same_as == "search(0.25, 1, apart) on 8x8"
