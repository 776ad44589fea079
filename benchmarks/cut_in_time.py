"""
Check which models can be accumulated in two parts, run as duplex, or run as pipelines of two and of three stages.

    python benchmarks/cut_in_time.py [--huggingface] [--check] [NAME ...]

Every shipped model at test size (with `--huggingface` each tiny config of `models/hf/tiny.py`) is planned in each form,
by the passes that `parallelize` runs: `dp` on two devices for parts of the batch, and one device per stage for
pipelines. A cell is `yes`, or the layer that forbids the form; full refusals are printed. `--check` interprets the
plans for two steps in float64, compares them with one device, and reports the largest error in the cell. Models that
compute in float32 in any dtype are compared in float32.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from _report import arguments, parsed, publish, quiet
from huggingface import is_mixed
from time_cuts import FORMS

from shardwright.api.checking.cases import imported, plan_case
from shardwright.api.checking.check import check_interpreted
from shardwright.models import MODELS
from shardwright.passes.errors import PassError, place_in_model


def outcome(name: str, form: str, *, check: bool) -> str:
    """Return the cell of a model in a form."""
    case = FORMS[form].case(name, steps=2)
    try:
        if check and is_mixed(imported(case)):
            case = replace(case, dtype=torch.float32)
        if check:
            result = check_interpreted(case)
            print(f"{form}: {result}", flush=True)
            largest = f"{max(value.error for value in result.errors):.1e}" if result.passed else "differs"
            return largest + " (float32)" * (case.dtype is torch.float32)
        plan_case(case, imported(case))
    except PassError as error:
        print(f"{name}, {form}: {error}", flush=True)
        return place_in_model(error.op.location) if error.op is not None else str(error)
    return "yes"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("names", nargs="*", help="names of models (default: all)")
    parser.add_argument("--huggingface", action="store_true", help="check the tiny configs of Hugging Face models")
    parser.add_argument("--check", action="store_true", help="interpret the plans, and compare with one device")
    options = parsed(parser, names=["mlp-tiny"])
    quiet()
    if options.huggingface:
        from shardwright.models.hf.tiny import TINY

        names = [f"hf:{name}" for name in TINY]
    else:
        names = [name for name in MODELS if name.endswith("-tiny")]
    rows: list[dict[str, str]] = []
    for name in options.names or names:
        rows.append({"model": name, **{form: outcome(name, form, check=options.check) for form in FORMS}})
    publish("cut_in_time", rows)


if __name__ == "__main__":
    main()
