"""Mutants of files that the project writes: plans, plan records, measured steps, journals of profiles, checkpoints."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from copy import deepcopy
from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

from text_mutations import characters, cut, deleted, repeated

_LITERALS: tuple[Any, ...] = (
    *(0, -1, 1, 2, 3, 1.5, 1e23, 1e308, 5e-324, float("nan"), float("inf"), -float("inf"), -0.0, 2**31, 2**53 + 1),
    *(2**63, -(2**63), 10**400, True, False, None, "", "class", "é", "0", "\0", "a b", "gpu", "../../etc/passwd"),
    *([], {}, [[]], [1], [1, 2], {"": 1}, {"gpu": 4}, {"0": [[0, 1]]}, ["x"] * 1000, "a" * 100_000, "[{}]", "NaN"),
)


def places(found: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values."""
    yield path
    inner = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    for key, value in inner:
        yield from places(value, (*path, key))


def mutated(text: str, draw: random.Random) -> str:
    """Change, delete, rename or move one to three values; or mutate the text as any text."""
    if draw.random() < 0.15:
        return draw.choice((characters, cut, deleted, repeated))(text, draw)
    root = json.loads(text)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        everywhere = list(places(root))
        path = draw.choice(everywhere)
        if not path:
            continue
        owner = root
        for key in path[:-1]:
            owner = owner[key]
        value = owner[path[-1]]
        kind = draw.randrange(8)
        if kind == 0:
            del owner[path[-1]]
        elif kind == 1 and isinstance(owner, dict):
            owner[draw.choice((*owner, "x", "", "é", "class"))] = owner.pop(path[-1])
        elif kind in (2, 3) and isinstance(value, int | float) and not isinstance(value, bool):
            owner[path[-1]] = draw.choice((-value, value + 1, value * 10, value * 1e30, value / 3, value * 10**30))
        elif kind == 4 and isinstance(owner, list):
            owner.insert(draw.randrange(len(owner) + 1), deepcopy(value))
        elif kind == 5:
            owner[path[-1]] = _at(root, draw.choice(everywhere))
        else:
            owner[path[-1]] = deepcopy(draw.choice(_LITERALS))
    return json.dumps(root)


def _at(found: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        if not (isinstance(found, dict) and key in found) and not (isinstance(found, list) and key < len(found)):
            return None
        found = found[key]
    return deepcopy(found)


@cache
def _plan() -> Mapping[str, str]:
    """Return the files of a plan by name."""
    from shardwright.tools.cli import main

    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        assert main(["plan", "mlp-tiny", "--cluster", "local-4", "--out", f"{folder}/plan"]) == 0
        return {each.name: each.read_text() for each in Path(folder, "plan").iterdir()}


def _told(*arguments: str) -> None:
    """Run a command; turn an error message, unless it is an internal error, into `ProfileError`."""
    from contextlib import redirect_stderr

    from shardwright.runtime.profile.journal import ProfileError
    from shardwright.tools.cli import main

    errors = StringIO()
    with redirect_stderr(errors):
        code = main(list(arguments))
    text = errors.getvalue()
    if code and ("internal error" in text or "Traceback" in text or not text):
        raise AssertionError(text)
    if code:
        raise ProfileError(text)


def _in_plan(name: str, *command: str) -> Callable[[str], None]:
    def use(text: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for each, content in _plan().items():
                Path(folder, each).write_text(content)
            Path(folder, name).write_bytes(text.encode("utf-8", "surrogatepass"))
            _told(*(part.format(folder) for part in command))

    return use


def use_report(text: str) -> None:
    """Run `explain` on a plan."""
    _in_plan("plan.json", "explain", "{}")(text)


def use_record(text: str) -> None:
    """Replan from a record; an unreadable one is refused first, as a search from scratch would take too long."""
    from shardwright.api.plan_record import PlanRecord
    from shardwright.runtime.profile.journal import ProfileError

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "replan.json")
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            PlanRecord.read(path, json.loads(_plan()["replan.json"])["of"])
        except ValueError as error:
            raise ProfileError(str(error)) from error
    _in_plan("replan.json", "replan", "{}", "--cluster", "mixed-4", "--out", "{}/new")(text)


@cache
def _steps() -> str:
    from shardwright.ir.measured_steps import MeasuredRank, MeasuredSteps, MeasuredTraffic, aligned

    computed = {"forward": ((0.0, 1.0),), "backward": ((1.0, 2.0),), "update": ((2.0, 2.5),)}
    traffic = (MeasuredTraffic("all_reduce", "gpu", "a", "fc1", "backward", 4096, 1.0, 2.0),)
    ranks = tuple(MeasuredRank(rank, None, 0.0, 3.0, computed, traffic) for rank in range(4))
    # The middle step is compared with the plan, which communicates nothing.
    alone = tuple(replace(each, traffic=()) for each in ranks)
    return MeasuredSteps(json.loads(_plan()["plan.json"])["name"], (aligned(ranks), alone, alone)).text()


def use_steps(text: str) -> None:
    """Run `simulate` with measured steps."""
    with tempfile.TemporaryDirectory() as folder:
        path, trace = Path(folder, "measured.json"), Path(folder, "trace.json")
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        Path(folder, "step.mlir").write_text(_plan()["step.mlir"])
        _told("simulate", str(Path(folder, "step.mlir")), "--measured", str(path), "--trace", str(trace))


@cache
def _journal() -> tuple[str, Any]:
    from made_up_journal import made_up_journal

    from shardwright.ir.mesh import Mesh

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "journal")
        made_up_journal(Mesh.of(gpu=2), (), (1.0, 1.0)).save(path)
        return path.read_text(), ()


def use_journal(text: str) -> None:
    """Read, write and use a journal as a resumed profile does."""
    from shardwright.runtime.profile.journal import Journal
    from shardwright.runtime.profile.result import profile_of

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "journal")
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        journal = Journal.load(path)
        journal.save(path)
        profile_of(journal, (), "profiled")


@cache
def _checkpoint() -> str:
    """Return the files of a checkpoint as JSON: the manifest, and the other files in base 64."""
    import torch

    from shardwright.runtime.checkpoint import Notes, packed, write
    from shardwright.runtime.checkpoint_ranks import Ranks
    from shardwright.runtime.plan import LocalShard

    parts = {f"model.w{at}": LocalShard(torch.ones(2, 3), (2, 3), (0, 0)) for at in range(3)}
    with tempfile.TemporaryDirectory() as folder:
        given = {"extra.pt": packed({"a": [1, torch.ones(2)]})}
        made = write(Path(folder), parts, Notes(4, 0, (0.1,), ({"epoch": 1, "batch": 2},)), given, 2, Ranks(None))
        files = {each.name: each.read_bytes() for each in made.iterdir()}
    manifest = json.loads(files.pop("manifest.json"))
    return json.dumps({"manifest": manifest, **{name: base64.b64encode(each).decode() for name, each in files.items()}})


def _mutated_checkpoint(text: str, draw: random.Random) -> str:
    """Change the manifest or a file, and mostly recompute the digests."""
    found = json.loads(text)
    manifest, signs = found.pop("manifest"), draw.random() < 0.8
    if draw.random() < 0.5:
        name = draw.choice([*found])
        content = bytearray(base64.b64decode(found[name]))
        for _ in range(draw.choice((1, 1, 2, 5))):
            at = draw.randrange(len(content))
            content[at : at + draw.choice((0, 1, 1, 4))] = draw.randbytes(draw.choice((0, 1, 1, 4)))
        found[name] = base64.b64encode(content).decode()
        if signs:
            manifest["files"][name] = [len(content), hashlib.sha256(content).hexdigest()]
        made = json.dumps(manifest)
    else:
        made = mutated(json.dumps(manifest), draw)
    try:
        changed = json.loads(made)
        if signs and isinstance(changed, dict):
            digest = hashlib.sha256(json.dumps({**changed, "sha256": ""}, sort_keys=True).encode()).hexdigest()
            made = json.dumps({**changed, "sha256": digest})
    except ValueError:
        pass
    return json.dumps({"manifest": made, **found})


def use_checkpoint(text: str) -> None:
    """Load a checkpoint, or fall back to the previous one; check that each tensor is as it was saved."""
    import torch

    from shardwright.runtime.checkpoint import newest_whole, read
    from shardwright.runtime.checkpoint_ranks import Ranks
    from shardwright.runtime.plan import LocalShard

    found = json.loads(text)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "step-00000004")
        path.mkdir()
        Path(path, "manifest.json").write_bytes(found.pop("manifest").encode("utf-8", "surrogatepass"))
        for name, content in found.items():
            Path(path, name).write_bytes(base64.b64decode(content))
        whole = newest_whole(Path(folder), Ranks(None))
        assert whole is not None
        parts = {
            name: LocalShard(torch.zeros(shape), shape, (0,) * len(shape)) for name, (shape, _) in whole.tensors.items()
        }
        read(whole, parts, Ranks(None))


JSON_KINDS: Mapping[str, tuple[Callable[[], str], Callable[[str, random.Random], str], Callable[[str], None]]] = {
    "plan": (lambda: _plan()["plan.json"], mutated, use_report),
    "record": (lambda: _plan()["replan.json"], mutated, use_record),
    "steps": (_steps, mutated, use_steps),
    "journal": (lambda: _journal()[0], mutated, use_journal),
    "checkpoint": (_checkpoint, _mutated_checkpoint, use_checkpoint),
}
"""By kind of file: functions that make its text, mutate it, and use it."""


def json_mutants(kind: str, seed: int, count: int) -> Iterator[str]:
    """Return `count` mutants of a kind, the same ones for the same seed."""
    text, change, draw = JSON_KINDS[kind][0](), JSON_KINDS[kind][1], random.Random(seed)
    return (change(text, draw) for _ in range(count))
