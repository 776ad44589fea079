"""
Files that a user might pass by mistake or malice: mutants of the shipped files, and the outcome of using each.

A forked child uses a mutant under limits of time and memory. It must accept it, or refuse it with one message.
"""

from __future__ import annotations

import io
import json
import os
import random
import resource
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from text_mutations import characters, cut, deleted, repeated

SECONDS = 20
"""Seconds that using a file may take."""

BYTES = 2**30
"""Bytes that using a file may allocate."""

ROOT = Path(__file__).resolve().parents[2]
STEP = ROOT / "examples" / "road" / "step.mlir"
PINS = (ROOT / "tests" / "support" / "hybrid_pins.toml", ROOT / "tests" / "support" / "vocabulary_pins.toml")

_MORE_PINS = """[[pin]]
value = "*.weight"
sharding = '[{"gpu"}, {}]'

[[pin]]
preset = "zero3"
axes = ["gpu"]
"""

_LITERALS = (
    *("0", "-1", "1", "2", "3", "1.5", "0.3", "1e23", "1e308", "1e-308", "5e-324", "nan", "-nan", "inf", "-inf"),
    *("-0.0", str(2**31), str(2**53 + 1), str(2**63), str(-(2**63)), "1_000_000", "0xffffffffffff", f"1{'0' * 400}"),
    *("true", "false", '""', '"class"', '"é"', '"0"', '"\\u0000"', '"a b"', '"gpu"', '"1e23GB"', '"-5us"'),
    *('"9e999GB/s"', "[]", "{}", "[[]]", "[1]", "[1, 2]", '["gpu=4"]', '["gpu=999999999999"]', '["gpu=0"]'),
    *('["class=4"]', '["é=4"]', '["node=2", "node=2"]', '["a=2", "b=2"]', '["__import__=4"]', '["0=4"]'),
    *("[{ gpu = 4 }]", '["gpu=\u0664"]', "{ float32 = 1 }", "{ alpha = 0, beta = 0 }", "[[1, 2], [1, 2]]"),
    *("[[2, 1], [3, nan]]", "1979-05-27", "07:32:00", "[" * 200 + "]" * 200, "[" * 5000 + "]" * 5000),
    *("[" + "1, " * 200_000 + "]", '"' + "a" * 100_000 + '"', f"0x{'f' * 5000}", "9" * 5000),
    '["' + '", "'.join(f"a{i}=1" for i in range(40)) + '"]',
    '["' + '", "'.join(f"a{i}=2" for i in range(14)) + '"]',
    *("""'[{"gpu"}, {}]'""", "'[{}]'", """'[{"gpu", "gpu"}]'""", """'[{"gpu"}], unreduced={"gpu"}'""", "'['"),
    *('"dp"', '"tp"'),
)
"""TOML values, most of them invalid in most places."""

_LINES = (
    *("[[host]]", "[device]", "[device.x]", "[[device]]", "[link.gpu]", "[link.é]", "[link.gpu-gpu]", "[mesh]"),
    *("[place]", "[[place]]", "[interference]", "[switch]", "[level.x]", "[[pin]]", "[pin]", "version = 2"),
    *("version = 1", "x = 1", "count = 1000000", "devices = 1048576", "nics = 1000000", 'mesh = ["gpu=4"]'),
    *("[a.b.c.d]", "hosts = 1", "= 3", "{"),
)


@dataclass(frozen=True)
class Outcome:
    """
    The outcome of using a file.

    status   used, refused, internal (an error of the tool, not of the file), hang, memory, or died
    message  text of the error
    seconds  duration
    """

    status: str
    message: str
    seconds: float

    @property
    def is_clean(self) -> bool:
        """Return whether the file was used, or refused with a message."""
        return self.status in ("used", "refused")


def cluster_texts() -> list[str]:
    """Return the shipped cluster files, and one with everything that a profile adds."""
    shipped = sorted((ROOT / "examples" / "clusters").glob("*.toml"))
    return [*(path.read_text(encoding="utf-8") for path in shipped), _PROFILED]


def pin_texts() -> list[str]:
    """Return files of pins for the mesh of four devices."""
    axes = {'"a0"': '"gpu"', '"a1"': '"gpu"'}
    texts = [path.read_text(encoding="utf-8") for path in PINS]
    for old, new in axes.items():
        texts = [text.replace(old, new) for text in texts]
    return [*texts, _MORE_PINS]


def mutants(texts: list[str], seed: int, count: int) -> Iterator[str]:
    """Yield `count` mutants of some texts, the same ones for the same seed."""
    draw = random.Random(seed)
    for _ in range(count):
        text = draw.choice(texts)
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            text = draw.choice(_MUTATIONS)(text, draw)
        yield text


def load_what_is_used() -> None:
    """Import the modules that children need, once for all of them."""
    simulate = "passes.analysis.simulation.simulate"
    for name in ("lowering.codegen.emit_python", simulate, "passes.pipeline", "tools.ir_input"):
        import_module(f"shardwright.{name}")
    import_module("shardwright.tools.cli")


def outcome(use: Callable[[str], None], text: str, *, seconds: float = SECONDS, most: int = BYTES) -> Outcome:
    """Call `use` with `text` in a forked child and return the outcome."""
    began = time.monotonic()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _child(use, text, write, most)
    os.close(write)
    written = _heard(read, began + seconds)
    os.close(read)
    took = time.monotonic() - began
    if written is None:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if written is None:
        return Outcome("hang", f"not done in {seconds:g} s", took)
    if not written:
        return Outcome("died", f"wait status {status}", took)
    kind, message = json.loads(written)
    return Outcome(kind, message, took)


def _heard(read: int, deadline: float) -> bytes | None:
    """Return the bytes that a child wrote before it closed the pipe; None if it did not close it by the deadline."""
    import select

    parts: list[bytes] = []
    while (left := deadline - time.monotonic()) > 0:
        if select.select([read], [], [], left)[0]:
            if not (part := os.read(read, 65536)):
                return b"".join(parts)
            parts.append(part)
    return None


def _child(use: Callable[[str], None], text: str, write: int, most: int) -> None:
    """Use a text, write the outcome, and end the process without exit functions."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limit = pages * resource.getpagesize() + most
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            said = _said(use, text)
        os.write(write, json.dumps(said).encode()[:60000])
    finally:
        os._exit(0)


def _said(use: Callable[[str], None], text: str) -> tuple[str, str]:
    from shardwright.tools.cli import diagnostic_of

    try:
        use(text)
    except MemoryError:
        return "memory", "MemoryError"
    except Exception as error:
        message = str(diagnostic_of(error))
        return ("internal" if "internal error" in message else "refused"), message[:4000]
    return "used", ""


def use_cluster(text: str) -> None:
    """Read a cluster file, plan a step for it, simulate the plan, and write and compile its program."""
    from shardwright.ir.cluster_file import cluster_toml, load_cluster, parse_cluster

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cluster.toml")
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        cluster = load_cluster(path)
    if parse_cluster(cluster_toml(cluster)) != cluster:
        raise AssertionError("a cluster is another when it is written and read again")
    _planned(cluster, "")


def use_pins(text: str) -> None:
    """Plan a step with a file of pins."""
    from shardwright.ir.cluster_file import find_cluster

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pins.toml")
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        _planned(find_cluster("local-4"), f' pins="{path}"')


def _planned(cluster: object, options: str) -> None:
    from xdsl.context import Context

    from shardwright.ir.cluster import Cluster
    from shardwright.lowering.codegen.emit_python import emit_python
    from shardwright.passes.add_cluster import add_cluster
    from shardwright.passes.analysis.simulation.simulate import simulate_module
    from shardwright.passes.pipeline import run_pipeline
    from shardwright.passes.verification import first_fault
    from shardwright.tools.ir_input import load_module

    assert isinstance(cluster, Cluster)
    module = load_module(str(STEP))
    add_cluster(module, cluster)
    passes = f"search-strategy{{algorithm=eliminate{options}}},program,finish"
    run_pipeline(Context(), module, passes, verify_each=False)
    if fault := first_fault(module):
        raise AssertionError(f"the plan is not valid: {fault.message}")
    (simulation,) = simulate_module(module, cluster)
    if not 0 <= simulation.seconds < float("inf"):
        raise AssertionError(f"a step of {simulation.seconds} s is predicted")
    compile(emit_python(module, name="step", step_spec=None, versions={}), "program.py", "exec")


def _value(text: str, draw: random.Random) -> str:
    return _changed_line(text, draw, lambda line: f"{line.partition('=')[0]}= {draw.choice(_LITERALS)}", "=")


def _number(text: str, draw: random.Random) -> str:
    import re

    def changed(line: str) -> str:
        numbers = list(re.finditer(r"\d+(?:\.\d+)?(?:e-?\d+)?", line))
        if not numbers:
            return line
        at = draw.choice(numbers)
        factor = draw.choice((1e-300, 1e-30, 1e-9, 0.1, 0.3, 10, 1e4, 1e9, 1e30, 1e300))
        new = draw.choice((f"{at[0]}0", repr(float(at[0]) * factor), f"-{at[0]}"))
        return line[: at.start()] + new + line[at.end() :]

    return _changed_line(text, draw, changed, "=")


def _inserted(text: str, draw: random.Random) -> str:
    lines = text.splitlines()
    at = draw.randrange(len(lines) + 1)
    return "\n".join([*lines[:at], draw.choice(_LINES), *lines[at:]]) + "\n"


def _renamed(text: str, draw: random.Random) -> str:
    import re

    names = sorted(set(re.findall(r"[A-Za-z_]\w+", text)))
    if not names:
        return text
    old = draw.choice(names)
    new = draw.choice((*names, "class", "é", "x", '"a b"', "__class__", "0", "a" * 3000, "a.b", '"\\n"', '""', "'\"'"))
    count = draw.choice((1, -1))
    return re.sub(rf"\b{re.escape(old)}\b", lambda _: new, text, count=max(count, 0))


def _changed_line(text: str, draw: random.Random, change: Callable[[str], str], mark: str) -> str:
    lines = text.splitlines()
    those = [at for at, line in enumerate(lines) if mark in line and not line.startswith("#")]
    if those:
        at = draw.choice(those)
        lines[at] = change(lines[at])
    return "\n".join(lines) + "\n"


_MUTATIONS: tuple[Callable[[str, random.Random], str], ...] = (
    *(_value, _value, _value, *(_number,) * 6, deleted, repeated, _inserted, _renamed, _renamed, characters, cut),
)

KINDS: Mapping[str, tuple[Callable[[], list[str]], Callable[[str], None]]] = {
    "cluster": (cluster_texts, use_cluster),
    "pins": (pin_texts, use_pins),
}
"""By kind of file: the texts to mutate, and the function that uses a mutant."""

_PROFILED = """version = 3
name = "profiled"
mesh = ["node=2", "gpu=2"]

[device.cpu]
flops = { float32 = 25e9 }
memory_bandwidth = 5e9
memory = "5GiB"
launch = 4e-6
overhead = 1e-3
block = 64

[[device.cpu.rate]]
family = "contractions"
dtype = "float32"
flops = 2e10
bandwidth = 1e10
launch = 1e-5
curve = [[1e3, 0.1], [1e6, 0.5], [1e9, 0.9]]

[[device.cpu.rate]]
family = ""
dtype = ""
flops = 2e9
bandwidth = 1e10
launch = 1e-5
moving_curve = [[1e3, 0.1], [1e6, 0.5]]

[device.cpu.table]
"mm(float32[64x32], float32[32x16])" = 1e-5

[[host]]
count = 2
devices = 2
inside = "bus"
nic = "net"
nics = 1

[level.bus]
latency = 1e-6
bandwidth = 5e9
shared = true

[level.net]
latency = 3e-5
bandwidth = "10Gbit/s"
start = 1e-5
efficiency = { all_gather = 0.7 }

[switch]
hosts = 1
oversubscription = 2

[link.gpu]
latency = 1e-5
bandwidth = 1e9
all_reduce = { alpha = 9e-6, beta = 4e-10 }

[link.gpu.points]
all_reduce = [[1024, 2e-5], [1048576, 9e-4]]
"all_gather:padded" = [[1024, 3e-5]]

[interference]
compute = 1.1
communication = 1.2
delays = [[0.001, 5e-4], [0.01, 2e-3]]
"""
