"""Keywords of `parallelize` in one mapping, as tests pass them."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from shardwright import PlanOptions


def with_plan(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same keywords with all options of the plan in `plan`."""
    names = {field.name for field in fields(PlanOptions)} & options.keys()
    others = {name: value for name, value in options.items() if name not in names}
    return {"plan": PlanOptions(**{name: options[name] for name in names}), **others}
