"""
Measure how long it takes to turn a step from `nn.Module` into IR, and the IR into text and back.

    python benchmarks/import_speed.py [--repeat N] [STEP ...]

Each run is a separate process. The seconds are processor time, so that other load on the machine matters less. Python
modules are imported before the measurement starts.
"""

from __future__ import annotations

from _report import arguments, in_new_process, parsed, publish

_ONE = """
import json, sys
from time import process_time as now
from shardwright.api.compile import import_training_step
from shardwright.api.steps import find_step
from shardwright.dialects.text import module_text, parse_module
from shardwright.tools.universe import UNIVERSE
from xdsl.context import Context
from xdsl.dialects import get_all_dialects

import_training_step(find_step("mlp-tiny"))
step, seconds, start = find_step(sys.argv[1]), {}, now()

def lap(name):
    global start
    seconds[name], start = now() - start, now()

module = import_training_step(step); lap("import s")
text = module_text(module); lap("print s")
context = Context()
for name, load in {**get_all_dialects(), **UNIVERSE.all_dialects}.items():
    context.register_dialect(name, load)
parse_module(context, module_text(import_training_step(find_step("mlp-tiny"))))
start = now()
parsed = parse_module(context, text); lap("parse s")
parsed.verify(); lap("verify s")
print(json.dumps({"ops": sum(1 for _ in module.walk()), "MB of text": len(text) / 1e6, **seconds}))
"""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("steps", nargs="*", default=["gpt2-48", "hf:gpt2?num_hidden_layers=48&dropout=0"])
    options = parsed(parser, repeat=1, steps=["gpt2-tiny"])
    rows: list[dict[str, str | float]] = []
    for step in options.steps:
        runs = [in_new_process(_ONE, step) for _ in range(options.repeat)]
        rows.append({"step": step, **{key: min(run[key] for run in runs) for key in runs[0]}})
    publish("import_speed", rows)


if __name__ == "__main__":
    main()
