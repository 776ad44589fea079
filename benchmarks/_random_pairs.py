"""
Pairs of a training step and a cluster: very unequal ones, and random ones, which are equal on every machine.

On the unequal clusters of `PAIRS`, the best plan leaves devices or an axis idle. A random step or cluster is generated
from its number alone.

`random-17` is the name of the cluster, or of the step, with the number 17. The memory of a random cluster is relative
to the memory that the step needs on one device, so that some pairs barely fit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from shardwright.api.training_step import TrainingStep
from shardwright.ir.cluster import Cluster
from shardwright.ir.cluster_file import find_cluster, parse_cluster
from shardwright.models.bert import BertConfig, bert_step
from shardwright.models.gpt2 import GPT2Config, gpt2_step
from shardwright.models.llama import LlamaConfig, llama_step
from shardwright.models.mlp import mlp_step
from shardwright.models.registry import MODELS, training_step
from shardwright.models.resnet import ResNetConfig, resnet_step
from shardwright.models.vgg import VGG13, VGGConfig, vgg_step
from shardwright.models.vit import ViTConfig, vit_step

CLUSTERS = Path(__file__).parent / "clusters"
"""Folder of the cluster files: six homes, a host with a remote slower device, two sites, two hosts."""

_GPT = GPT2Config(layers=6, width=384, heads=6, vocabulary=8192, positions=256)

STEPS: Mapping[str, Callable[[], TrainingStep]] = {
    "gpt-6x384": partial(gpt2_step, _GPT, batch=24, length=256),
    "mlp-8x512": partial(mlp_step, (256,) + (512,) * 8 + (10,), batch=8192),
    "mlp-4x4096": partial(mlp_step, (1024,) + (4096,) * 4 + (1000,), batch=2048),
    "mlp-small": partial(mlp_step, (512, 2048, 2048, 512, 10), batch=96),
}
"""The steps, by name."""

PAIRS = [
    ("gpt-6x384", "home-6"),
    ("mlp-8x512", "slow-one"),
    ("mlp-4x4096", "wan-2x8"),
    ("mlp-small", "two-of-three"),
    ("mlp-4x4096", "home-6"),
    ("gpt-6x384", "slow-one"),
    ("gpt-6x384", "wan-2x8"),
    ("gpt-6x384", "two-of-three"),
]
"""Steps with the names of their unequal clusters."""

PREFIX = "random-"
MOST_DEVICES = 64
MIDDLE = ("mlp", "gpt2-small", "bert-base", "vit-base", "vgg13", "resnet50", "unet", "transgan")
"""Shipped steps of full size that can be imported and planned in seconds."""

SHIPPED = (*sorted(name for name in MODELS if name.endswith("-tiny")), *MIDDLE)


def number_of(name: str) -> int | None:
    """Return the number of a random step or cluster, or None for a shipped one."""
    return int(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else None


def find_step(name: str) -> TrainingStep:
    """Return the step called `name`: shipped, random or of `PAIRS`."""
    if name in STEPS:
        return STEPS[name]()
    number = number_of(name)
    return training_step(name) if number is None else random_step(number)[1]()


def find_any_cluster(name: str, need: Callable[[], float]) -> Cluster:
    """
    Return the cluster called `name`: shipped, random or of `PAIRS`.

    Args:
        need: function that returns the bytes that the step needs on one device.
    """
    number = number_of(name)
    if (file := CLUSTERS / f"{name}.toml").exists():
        return find_cluster(file)
    return find_cluster(name) if number is None else parse_cluster(random_cluster(number, need()), f"{name}.toml")


def random_step(number: int) -> tuple[str, Callable[[], TrainingStep]]:
    """Return a description and a maker: of a shipped step in one of three cases, else of a random configuration."""
    generator = random.Random(f"step {number}")
    if generator.random() < 1 / 3:
        name = generator.choice(SHIPPED)
        return name, partial(training_step, name)
    family = generator.choice(sorted(_FAMILIES))
    return _FAMILIES[family](generator)


def _batch(generator: random.Random) -> int:
    """Return a batch size: mostly a power of two, sometimes a number with few divisors."""
    return generator.choice((4, 8, 8, 16, 16, 32, 32, 64, 64, 128, 6, 12, 24, 48, 10, 7))


def _mlp(generator: random.Random) -> tuple[str, Callable[[], TrainingStep]]:
    hidden = [generator.choice((32, 64, 256, 1000, 1024, 4096)) for _ in range(generator.randint(1, 6))]
    widths, batch = (generator.choice((12, 128, 784)), *hidden, 10), _batch(generator)
    return f"mlp {'-'.join(map(str, widths))} batch {batch}", partial(mlp_step, widths, batch=batch)


def _gpt2(generator: random.Random) -> tuple[str, Callable[[], TrainingStep]]:
    layers, width, heads, vocabulary, batch, length = _transformer(generator)
    config = GPT2Config(layers=layers, width=width, heads=heads, vocabulary=vocabulary, positions=length)
    return f"gpt2 {_sizes(config)} batch {batch}x{length}", partial(gpt2_step, config, batch=batch, length=length)


def _bert(generator: random.Random) -> tuple[str, Callable[[], TrainingStep]]:
    layers, width, heads, vocabulary, batch, length = _transformer(generator)
    config = BertConfig(layers=layers, width=width, heads=heads, vocabulary=vocabulary, positions=length)
    return f"bert {_sizes(config)} batch {batch}x{length}", partial(bert_step, config, batch=batch, length=length)


def _llama(generator: random.Random) -> tuple[str, Callable[[], TrainingStep]]:
    layers, width, heads, vocabulary, batch, length = _transformer(generator)
    keys = heads // generator.choice((1, 2))
    config = LlamaConfig(
        layers=layers, width=width, heads=heads, key_heads=keys, hidden=width * 3, vocabulary=vocabulary
    )
    return f"llama {_sizes(config)} batch {batch}x{length}", partial(llama_step, config, batch=batch, length=length)


def _transformer(generator: random.Random) -> tuple[int, int, int, int, int, int]:
    """Return layers, width, heads, vocabulary, batch and length."""
    width = generator.choice((64, 128, 256, 512, 1024))
    return (
        generator.randint(1, 8),
        width,
        generator.choice((2, 4, 8)),
        generator.choice((101, 1000, 8192, 32000)),
        _batch(generator),
        generator.choice((16, 64, 128, 512)),
    )


def _sizes(config: GPT2Config | BertConfig | LlamaConfig) -> str:
    return f"{config.layers}x{config.width} vocabulary {config.vocabulary}"


def _vit(generator: random.Random) -> tuple[str, Callable[[], TrainingStep]]:
    layers, width, heads, _, batch, _ = _transformer(generator)
    config = ViTConfig(layers=layers, width=width, heads=heads, image=32, patch=8, classes=10)
    return f"vit {layers}x{width} batch {batch}", partial(vit_step, config, batch=batch)


def _vgg(generator: random.Random) -> tuple[str, Callable[[], TrainingStep]]:
    first, batch = generator.choice((4, 16, 64)), _batch(generator)
    widths = (first, 2 * first, 4 * first, 8 * first, 8 * first)
    image, hidden = generator.choice((32, 64)), generator.choice((64, 1024))
    has_norm = generator.random() < 0.3
    config = VGGConfig(VGG13, widths, hidden=hidden, image=image, classes=10, batch_norm=has_norm)
    name = f"vgg13{'-bn' if has_norm else ''} {first}..{8 * first} image {image} hidden {hidden} batch {batch}"
    return name, partial(vgg_step, config, batch=batch)


def _resnet(generator: random.Random) -> tuple[str, Callable[[], TrainingStep]]:
    blocks = tuple(generator.randint(1, 2) for _ in range(generator.randint(1, 3)))
    width, image, batch = generator.choice((4, 16, 64)), generator.choice((32, 64)), _batch(generator)
    config = ResNetConfig(blocks=blocks, width=width, image=image, classes=10)
    return f"resnet {blocks} width {width} image {image} batch {batch}", partial(resnet_step, config, batch=batch)


_FAMILIES = {"mlp": _mlp, "gpt2": _gpt2, "bert": _bert, "llama": _llama, "vit": _vit, "vgg": _vgg, "resnet": _resnet}


def random_cluster(number: int, need: float) -> str:
    """
    Return a cluster file: 1 to 64 devices of 1 to 4 kinds, in hosts or on flat axes, with links over five orders.

    Args:
        need: bytes that the step needs on one device; all devices together have about once to fifty times as much.
    """
    generator = random.Random(f"cluster {number}")
    kinds = generator.choice((1, 1, 1, 1, 2, 2, 3, 4))
    parts = _hosts(generator, kinds) if generator.random() < 0.65 else _flat(generator, kinds)
    count, lines = parts
    # From barely enough for a step that is split over all devices, to plenty for a step on one device.
    memory = need * _log(generator, 1.2 / count, 5.0)
    flops = _log(generator, 1e11, 1e15)
    tables = ["version = 3", f'name = "{PREFIX}{number}"']
    for kind in range(kinds):
        slower = 1.0 if kind == 0 else _log(generator, 1.0, generator.choice((8.0, 8.0, 60.0)))
        tables.append(_device(generator, kind, flops / slower, memory * (1.0 if kind == 0 else _log(generator, 1, 2))))
    # `mesh` belongs to the head of the file, before the first table.
    head = [line for line in lines if line.startswith("mesh")]
    return "\n".join([*tables[:2], *head, *tables[2:], *(line for line in lines if line not in head)]) + "\n"


def _device(generator: random.Random, kind: int, flops: float, memory: float) -> str:
    bandwidth = flops / _log(generator, 5, 300)
    launch = _log(generator, 1e-7, 2e-5)
    block = generator.choice((1, 512))
    return "\n".join(
        (
            f"[device.kind{kind}]",
            f"flops = {{ float32 = {_rounded(flops)!r} }}",
            f"memory_bandwidth = {_rounded(bandwidth)!r}",
            f"memory = {int(_rounded(memory))}",
            f"launch = {launch!r}",
            f"block = {block}",
        )
    )


def _hosts(generator: random.Random, kinds: int) -> tuple[int, list[str]]:
    """Return the number of devices, and the tables of hosts and levels."""
    total, lines = 0, list[str]()
    inside = generator.choice((1, 1, 2, 4, 4, 8, 8, 3, 6, 16))
    is_uneven = generator.random() < 0.15
    for kind in range(kinds):
        devices = generator.choice((2, 4, 8)) if is_uneven else inside
        limit = (MOST_DEVICES - total - (kinds - 1 - kind) * 16) // devices
        count = max(1, min(generator.choice((1, 1, 2, 2, 3, 4, 5, 7, 8)), limit))
        total += devices * count
        nics = generator.choice((1, 1, devices))
        lines += ["[[host]]", f"count = {count}", f"devices = {devices}", f'device = "kind{kind}"']
        lines += [f'inside = "inside{kind}"', f'nic = "nic{kind}"', f"nics = {nics}"]
    for kind in range(kinds):
        between = _log(generator, 1e6, 1e11)
        fast = min(4e11, between * _log(generator, 1.0, 300.0))
        shared = generator.random() < 0.2
        lines += _level(generator, f"inside{kind}", fast, shared) + _level(generator, f"nic{kind}", between, False)
    return total, lines


def _level(generator: random.Random, name: str, bandwidth: float, shared: bool) -> list[str]:
    latency, start = _log(generator, 5e-7, 2e-2), generator.choice((0.0, 0.0, 5e-6, 1e-4))
    lines = [f"[level.{name}]", f"latency = {latency!r}", f"bandwidth = {_rounded(bandwidth)!r}", f"start = {start!r}"]
    return [*lines, "shared = true"] if shared else lines


def _flat(generator: random.Random, kinds: int) -> tuple[int, list[str]]:
    """Return the number of devices, and the mesh with a link per axis, with the major axis slowest."""
    sizes = generator.choice(_FLAT)
    names = ("pod", "node", "gpu")[-len(sizes) :]
    mesh = ", ".join(f'"{name}={size}"' for name, size in zip(names, sizes, strict=True))
    count = 1
    for size in sizes:
        count *= size
    lines = [f"mesh = [{mesh}]"]
    kind_of = sorted(generator.randrange(kinds) for _ in range(count))
    if generator.random() < 0.5:
        generator.shuffle(kind_of)
    for kind in kind_of:
        lines += ["[[place]]", f'device = "kind{kind}"', "count = 1"]
    bandwidth = _log(generator, 2e6, 2e11)
    for name in names:
        lines += [f"[link.{name}]", f"latency = {_log(generator, 5e-7, 1e-3)!r}", f"bandwidth = {bandwidth!r}"]
        bandwidth = _rounded(min(4e11, bandwidth * _log(generator, 1.0, 30.0)))
    return count, lines


_FLAT = (
    *((count,) for count in (1, 2, 3, 4, 4, 5, 6, 7, 8, 12, 16, 24)),
    *((2, 2), (2, 4), (4, 4), (8, 8), (2, 12), (3, 8), (2, 2, 2)),
)


def _log(generator: random.Random, low: float, high: float) -> float:
    """Return a log-uniform number, rounded to three digits because the last digits of powers depend on the library."""
    return _rounded(low * (high / low) ** generator.random())


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
