"""Cluster files: all fields are read, and errors name their line and field."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import shardwright
from shardwright.ir.cluster import Cluster, Device, Link, sent_bytes
from shardwright.ir.cluster_file import ClusterFileError, cluster_toml, load_cluster, parse_cluster
from shardwright.ir.collectives import CollectiveKind
from shardwright.ir.mesh import Mesh

SHIPPED = sorted((Path(shardwright.__file__).parent / "examples" / "clusters").glob("*.toml"))

GOOD = """\
version = 1
name = "two-nodes"
mesh = ["node=2", "gpu=2"]

[device.fast]
flops = { float32 = 2e13, bfloat16 = 3e14 }
memory_bandwidth = 1.5e12
memory = "40GiB"
launch = 5e-6

[device.slow]
flops = { float32 = 1e13 }
memory_bandwidth = 1e12
memory = 16e9

[[place]]
device = "fast"
count = 3

[[place]]
device = "slow"

[link.node]
latency = 20e-6
bandwidth = 12.5e9

[link.gpu]
latency = 5e-6
bandwidth = 250e9
all_reduce = { alpha = 9e-6, beta = 8e-12 }
"""


def test_all_fields_are_read():
    cluster = parse_cluster(GOOD)
    assert (cluster.name, cluster.mesh) == ("two-nodes", Mesh.of(node=2, gpu=2))
    assert cluster.placement == (0, 0, 0, 1)
    assert cluster.device(0) == Device("fast", (("float32", 2e13), ("bfloat16", 3e14)), 1.5e12, 40 * 2**30, 5e-6)
    assert cluster.device(3).launch == 0
    assert cluster.memory == 16e9
    assert cluster.links[1] == Link("gpu", 5e-6, 4e-12, (("all_reduce", 9e-6, 8e-12),))


def test_the_text_form_reads_back():
    cluster = parse_cluster(GOOD)
    assert parse_cluster(cluster_toml(cluster)) == cluster


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_files_are_read_and_read_back(path: Path):
    cluster = load_cluster(path)
    assert cluster.name == path.stem
    assert parse_cluster(cluster_toml(cluster)) == cluster


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version = 1", "version = 4", ":1: version: is 4, this release reads versions 1, 2, 3"),
        ("name =", "title =", ":2: title: is not a field of a cluster file; expected one of device, host, interf"),
        ('mesh = ["node=2", "gpu=2"]', "", ': mesh: missing; expected axes, major to minor, as ["node=2", "gpu=4"]'),
        ('"gpu=2"', '"gpu"', """:3: mesh: entry 'gpu' is not of the form "gpu=4\""""),
        ('"gpu=2"', '"gpu=0"', ':3: mesh: mesh axis "gpu" has size 0, expected at least 1'),
        ('"gpu=2"', '"node=2"', ':3: mesh: mesh @mesh names axis "node" twice'),
        ("memory_bandwidth = 1.5e12\n", "", ":5: [device.fast] memory_bandwidth: missing"),
        ("memory_bandwidth = 1.5e12", "memory_bandwidth = -1", ":7: [device.fast] memory_bandwidth: is -1, expected"),
        ("memory_bandwidth = 1.5e12", "memory_bandwidth = 0", "is 0, expected a positive number"),
        ("memory_bandwidth = 1.5e12", 'memory_bandwidth = "fast"', "is 'fast', expected a number"),
        ("memory_bandwidth = 1.5e12", "memory_bandwidth = true", "is True, expected a number"),
        ("memory_bandwidth = 1.5e12", "memory_bandwidth = nan", "is nan, expected a positive number"),
        ("memory_bandwidth = 1.5e12", "memory_bandwidth = inf", "is inf, expected a positive number"),
        ("launch = 5e-6", "launch = -5e-6", ":9: [device.fast] launch: is -5e-06, expected a non-negative number"),
        ("launch =", "lunch =", ":9: [device.fast] lunch: is not a field here; expected one of block, flops, launch"),
        ('memory = "40GiB"', 'memory = "40GBB"', ':8: [device.fast] memory: is \'40GBB\', expected a number of bytes'),
        ('memory = "40GiB"', 'memory = "1.2.3GB"', "is '1.2.3GB', expected a number of bytes"),
        ('memory = "40GiB"', 'memory = "0GB"', ":8: [device.fast] memory: is '0GB', expected a positive number"),
        ('memory = "40GiB"\n', "", ":5: [device.fast] memory: missing"),
        ("flops = { float32 = 1e13 }", "", ":11: [device.slow] flops: missing; expected FLOP/s by dtype"),
        ("flops = { float32 = 1e13 }", "flops = { float32 = -1 }", ":12: [device.slow.flops] float32: is -1, expected"),
        ('device = "slow"', 'device = "slower"', ":21: [place] device: 'slower' is not one of those described: fast"),
        ("count = 3", "count = 4", ":18: [place] count: 5 devices placed, the mesh <[\"node\"=2, \"gpu\"=2]> has 4"),
        ("count = 3", "count = 1000000000", ":18: [place] count: is 1000000000, expected a positive whole number"),
        ("count = 3", "count = 0", "[place] count: is 0, expected a positive whole number"),
        ("[link.gpu]", "[link.gpus]", '[link.gpus]: the mesh has no axis "gpus"; its axes are node, gpu'),
        ("latency = 5e-6", "latency = -5e-6", ":28: [link.gpu] latency: is -5e-06, expected a non-negative number"),
        ("bandwidth = 250e9", "bandwidth = 0", ":29: [link.gpu] bandwidth: is 0, expected a positive number"),
        ("all_reduce =", "all_to_few =", ":30: [link.gpu] all_to_few: is not a field here; expected one of all_gather"),
        ("{ alpha = 9e-6, beta = 8e-12 }", "9e-6", ":30: [link.gpu] all_reduce: expected { alpha = seconds, beta ="),
        ("{ alpha = 9e-6, beta = 8e-12 }", "{ alpha = 9e-6 }", ":30: [link.gpu] all_reduce: expected { alpha ="),
    ],
)  # fmt: skip
def test_an_error_names_its_line(old: str, new: str, message: str):
    assert GOOD.count(old) == 1 or old in ("memory_bandwidth = 1.5e12\n", "latency = 5e-6")
    with pytest.raises(ClusterFileError) as caught:
        parse_cluster(GOOD.replace(old, new), "my.toml")
    assert str(caught.value).startswith("my.toml")
    assert message in str(caught.value)


HOSTILE = ['"]\n[link.x]\n#', '"', "a\nb", "\x00\x1b[31m", "é\u2028", "{}\\", "class", "y" * 5000]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_in_a_cluster_is_escaped(name: str):
    """Names from an IR file may be arbitrary: the text form of the cluster keeps them, or is refused when read."""
    cluster = parse_cluster(GOOD)
    axes = [replace(axis, name=name if axis.name == "gpu" else axis.name) for axis in cluster.mesh.axes]
    links = [replace(link, axis=name if link.axis == "gpu" else link.axis) for link in cluster.links]
    devices = [replace(device, kind=f"{name}{device.kind}") for device in cluster.devices]
    named = replace(cluster, name=name, devices=tuple(devices))
    for hostile in (named, replace(named, mesh=Mesh(tuple(axes)), links=tuple(links))):
        with suppress(ClusterFileError):
            assert parse_cluster(cluster_toml(hostile)) == hostile


def test_an_axis_needs_a_link():
    with pytest.raises(ClusterFileError, match=r'link.gpu: missing; mesh axis "gpu" needs a \[link.gpu\]'):
        parse_cluster(GOOD[: GOOD.index("[link.gpu]")])


def test_a_cluster_needs_a_device():
    text = 'mesh = ["gpu=2"]\n[link.gpu]\nlatency = 1e-6\nbandwidth = 1e9\n'
    with pytest.raises(ClusterFileError, match=r"device: missing; describe at least one kind of device"):
        parse_cluster(text)


def test_places_must_be_sections():
    with pytest.raises(ClusterFileError, match=r"place: must be sections, as \[\[place\]\]"):
        parse_cluster("place = 4\n" + GOOD.partition("[[place]]")[0] + GOOD[GOOD.index("[link.node]") :])


def test_text_that_is_not_toml_is_refused():
    with pytest.raises(ClusterFileError, match=r"my.toml: .*at line 2, column 8"):
        parse_cluster("version = 1\nname = ]", "my.toml")


def test_files_that_cannot_be_read_are_refused(tmp_path: Path):
    missing, binary = tmp_path / "missing.toml", tmp_path / "binary.toml"
    with pytest.raises(ClusterFileError, match=r"missing.toml: cannot read the cluster file: No such file"):
        load_cluster(missing)
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ClusterFileError, match=r"binary.toml: the cluster file is not UTF-8 text"):
        load_cluster(binary)


def cluster() -> Cluster:
    """Return the cluster of GOOD."""
    return parse_cluster(GOOD)


def test_a_dtype_that_is_not_listed_runs_at_the_lowest_rate():
    assert cluster().device(0).rate("bfloat16") == 3e14
    assert cluster().device(0).rate("int64") == 2e13


def test_a_collective_takes_the_sum_of_latencies_and_the_slowest_link():
    seconds = cluster().collective_seconds(CollectiveKind.ALL_GATHER, ("node", "gpu"), 1e6)
    assert seconds == pytest.approx(25e-6 + 1e6 * 8e-11 * 3 / 4)


def test_an_all_reduce_sends_twice_and_uses_measurements():
    seconds = cluster().collective_seconds(CollectiveKind.ALL_REDUCE, ("gpu",), 1e6)
    assert seconds == pytest.approx(9e-6 + 2 * 1e6 * 8e-12 / 2)
    assert sent_bytes(CollectiveKind.ALL_REDUCE, 4, 100.0) == 150
    assert sent_bytes(CollectiveKind.REDUCE_SCATTER, 4, 100.0) == 75


@pytest.mark.parametrize("kind", [CollectiveKind.SLICE, CollectiveKind.PARTIAL])
def test_a_local_change_sends_nothing(kind: CollectiveKind):
    assert cluster().collective_seconds(kind, ("gpu",), 1e6) == 0
    assert sent_bytes(kind, 4, 100.0) == 0


def test_the_key_of_many_joined_updates_may_be_long():
    key = "foreach(" + "; ".join(["train.adamw(float32[128x128], float32[128x128], weight_decay=0.1)"] * 300) + ")"
    cluster = parse_cluster(GOOD)
    fast, *others = cluster.devices
    known = replace(cluster, devices=(replace(fast, table=((key, 1e-3),)), *others))
    assert parse_cluster(cluster_toml(known)) == known
    with pytest.raises(ClusterFileError, match="expected at most 1048576 printable characters"):
        parse_cluster(cluster_toml(known).replace("128x128", "1" * 5000))
