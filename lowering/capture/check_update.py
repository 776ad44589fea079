"""Check captured updates against the optimizer's own steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.fx

from .captured import CapturedUpdate, CaptureError
from .optimizer_run import SmallRun
from .optimizer_step import GROUP, UpdateForm, optimizer_name
from .update import NotCountingError, UpdateTracer

_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 5e-2, torch.bfloat16: 5e-2}
"""Dtype -> relative tolerance of an update that computes in this dtype; the largest tolerance applies."""

_EACH = 2
"""The number of parameters of each kind to check."""


def checked_forms(run: SmallRun, tracer: UpdateTracer) -> dict[str, UpdateForm]:
    """
    Return, by parameter, the form whose captured update reproduces the small run.

    Args:
        tracer: the tracer of the run's optimizer.

    Raises:
        CaptureError: the optimizer cannot be captured, or a captured update does not reproduce the run.
    """
    working: dict[tuple[object, ...], UpdateForm] = {}
    checked: dict[tuple[object, ...], int] = {}
    forms: dict[str, UpdateForm] = {}
    updates: dict[tuple[object, ...], CapturedUpdate] = {}
    for name, form in run.forms.items():
        value = run.begin[name]
        key = (run.group_of[name], value.shape, value.dtype, repr(form))
        if checked.get(key, 0) < _EACH:
            checked[key] = checked.get(key, 0) + 1
            form = working.get(key, form)
            if (update := updates.get(key)) is None:
                form, update = _traced_as_it_counts(run, tracer, name, form)
            wrong = _difference(run, name, update)
            if wrong is not None and not form.first_apart:
                form = replace(form, first_apart=True, initial={})
                update = _traced(run, tracer, name, form)
                wrong = _difference(run, name, update)
            if wrong is not None:
                raise CaptureError(
                    f"the captured update does not reproduce a step of the optimizer {optimizer_name(run.optimizer)}:"
                    f" {wrong} of {name!r} differs. An update may depend only on the parameter, its gradient and state,"
                    " the learning rate and the count of steps; it must be independent of other parameters"
                )
            working[key], updates[key] = form, update
        forms[name] = working[key]
    return forms


def _traced_as_it_counts(
    run: SmallRun, tracer: UpdateTracer, name: str, form: UpdateForm
) -> tuple[UpdateForm, CapturedUpdate]:
    """Return the update, and its form without states that only appeared to count steps."""
    try:
        return form, _traced(run, tracer, name, form)
    except NotCountingError as error:
        if error.name not in form.counts:
            raise CaptureError(
                f"the optimizer {optimizer_name(run.optimizer)} changes the setting {error.name.removeprefix(GROUP)!r}"
                " of its groups in a way that is not a plain count of steps; keep it in the state of each parameter"
            ) from error
        counts = {key: start for key, start in form.counts.items() if key != error.name}
        initial = {**form.initial, error.name: form.counts[error.name]}
        return _traced_as_it_counts(run, tracer, name, replace(form, counts=counts, initial=initial))


def _traced(run: SmallRun, tracer: UpdateTracer, name: str, form: UpdateForm) -> CapturedUpdate:
    group = run.optimizer.param_groups[run.group_of[name]]
    value = run.begin[name]
    return tracer.trace(group, value.shape, value.dtype, form)


def _difference(run: SmallRun, name: str, update: CapturedUpdate) -> str | None:
    """Name the first value that differs between captured update and optimizer, with its step, or return None."""
    module = torch.fx.GraphModule(torch.nn.Module(), update.graph)
    tolerance = max(_TOLERANCE.get(dtype, 0.0) for dtype in _dtypes(update.graph))
    parameter = run.begin[name]
    states = [torch.full(state.shape, state.initial, dtype=state.dtype) for state in update.states]
    for step, (gradients, snapshots) in enumerate(zip(run.gradients, run.snapshots, strict=True)):
        rate = torch.tensor(run.rate(name, step), dtype=torch.float64)
        parameter, *states = module(parameter, gradients[name], *states, torch.tensor(float(step)), rate)
        expected = snapshots[name]
        if not _is_close(parameter, expected.parameter, tolerance):
            return f"the parameter after step {step + 1}"
        for spec, state in zip(update.states, states, strict=True):
            if not _is_close(state, expected.states[spec.name], tolerance):
                return f"its state {spec.name!r} after step {step + 1}"
    return None


def _dtypes(graph: torch.fx.Graph) -> Sequence[torch.dtype]:
    """Return the dtypes of the parameter and of all values of a graph that have dims."""
    values = [node.meta["val"] for node in graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    return [value.dtype for place, value in enumerate(values) if value.dim() or not place]


def _is_close(found: torch.Tensor, expected: object, tolerance: float) -> bool:
    if not isinstance(expected, torch.Tensor):
        expected = torch.tensor(expected, dtype=found.dtype)
    if found.shape != expected.shape:
        return False
    found, expected = (torch.view_as_real(v) if v.is_complex() else v for v in (found, expected))
    found, expected = found.double(), expected.double()
    limit = tolerance * max(expected.abs().max().item() if expected.numel() else 0.0, 1e-30)
    return bool(((found - expected).abs() <= limit).all())
