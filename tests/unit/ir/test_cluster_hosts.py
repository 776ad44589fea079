"""Cluster files of version 2: hosts, wires and measurements; errors with their lines; any cluster reads back."""

from pathlib import Path

import pytest
from cluster_strategies import clusters
from hypothesis import given, settings

from shardwright.ir.cluster import Cluster, Device, Interference, Link
from shardwright.ir.cluster_file import ClusterFileError, cluster_toml, parse_cluster
from shardwright.ir.collectives import CollectiveKind
from shardwright.ir.mesh import Mesh
from shardwright.ir.op_rate import OpRate
from shardwright.ir.submesh import subcluster, submesh
from shardwright.ir.topology import Host, Level, Switch, Topology

GOOD = """\
version = 2
name = "testbed"

[device.v100]
flops = { float32 = "15.7TFLOP/s", float16 = 125e12 }
memory_bandwidth = "900GB/s"
memory = "16GiB"
launch = "5us"
overhead = "1.5ms"
[[device.v100.rate]]
family = "contractions"
dtype = "float32"
flops = "14TFLOP/s"
bandwidth = "800GB/s"
curve = [
    [1e6, 0.1],
    [1e9, 0.9],
]
[device.v100.table]
"mm(float32[64x32], float32[32x16])" = "12us"

[device.p100]
flops = { float32 = 9.3e12 }
memory_bandwidth = 700e9
memory = 16e9

[[host]]
device = "v100"
devices = 4
inside = "nvlink"
nic = "ethernet"

[[host]]
count = 2
device = "p100"
devices = 4
inside = "pcie"
nic = "ethernet"
nics = 2

[level.nvlink]
latency = "2us"
bandwidth = "150GB/s"

[level.pcie]
latency = "5us"
bandwidth = "12GiB/s"
shared = true

[level.ethernet]
latency = 30e-6
bandwidth = "10.4Gbit/s"
start = "100us"
efficiency = { all_gather = 0.7 }

[switch]
hosts = 2
oversubscription = 4

[link.node]
latency = "40us"
bandwidth = "1GB/s"
all_reduce = { alpha = "50us", beta = 2e-9 }

[link.node.points]
all_reduce = [[1024, 2e-4], [1048576, 3e-3]]
"all_gather:grouped_broadcast" = [[1024, 1e-4]]

[link.node-gpu.points]
all_gather = [[1024, 2e-4]]

[interference]
compute = 1.1
delays = [[0.001, 5e-4], [0.01, 2e-3]]
"""


def test_all_fields_are_read():
    cluster = parse_cluster(GOOD)
    assert cluster.mesh == Mesh.of(node=3, gpu=4)
    assert cluster.placement == (0,) * 4 + (1,) * 8
    rate = OpRate("contractions", "float32", 14e12, 8e11, 5e-6, ((1e6, 0.1), (1e9, 0.9)))
    table = (("mm(float32[64x32], float32[32x16])", 12e-6),)
    flops = (("float32", 15.7e12), ("float16", 125e12))
    assert cluster.devices[0] == Device("v100", flops, 9e11, 16 * 2**30, 5e-6, (rate,), table, 1.5e-3)
    nvlink, pcie = Level("nvlink", 2e-6, 150e9), Level("pcie", 5e-6, 12 * 2**30, shared=True)
    ethernet = Level("ethernet", 30e-6, 1.3e9, 1e-4, efficiency=(("all_gather", 0.7),))
    hosts = (Host(4, "nvlink", "ethernet"), Host(4, "pcie", "ethernet", 2, 2))
    assert cluster.topology == Topology((nvlink, pcie, ethernet), hosts, Switch(2, 4.0))
    points = (("all_gather:grouped_broadcast", 1024, 1e-4), ("all_reduce", 1024, 2e-4), ("all_reduce", 2**20, 3e-3))
    assert cluster.link("node") == Link("node", 40e-6, 1e-9, (("all_reduce", 50e-6, 2e-9),), points)
    assert cluster.link("node-gpu") == Link("node-gpu", 0.0, 0.0, (), (("all_gather", 1024, 2e-4),))
    assert cluster.link("gpu") is None
    assert cluster.interference == Interference(1.1, 1.0, ((1e-3, 5e-4), (1e-2, 2e-3)))


def test_the_file_in_the_manual_is_read():
    manual = (Path(__file__).parents[3] / "docs" / "cluster-files.md").read_text(encoding="utf-8")
    cluster = parse_cluster(manual.partition("```toml\n")[2].partition("```")[0])
    assert cluster.mesh == Mesh.of(node=3, gpu=8)
    # The manual computes the same values.
    costs = [cluster.collective_costs(CollectiveKind.ALL_REDUCE, axes)[1] for axes in (("node",), ("node", "gpu"))]
    assert costs == pytest.approx([8 * 2 * (2 / 3) / 1.25e9, 2 * 23 / 24 / 1.25e9])


def test_the_text_form_reads_back():
    assert parse_cluster(cluster_toml(parse_cluster(GOOD))) == parse_cluster(GOOD)


@pytest.mark.parametrize(
    ("mesh", "axes"),
    [('mesh = ["node=3", "gpu=4"]', {"node": 3, "gpu": 4}), ('mesh = ["a=2", "b=6"]', {"a": 2, "b": 6})],
)
def test_a_mesh_may_lie_across_hosts(mesh: str, axes: dict[str, int]):
    text = GOOD.replace("[device.v100]", f"{mesh}\n[device.v100]", 1)
    text = text[: text.index("[link.node]")]
    assert parse_cluster(text).mesh == Mesh.of(**axes)


def test_hosts_of_different_sizes_form_one_axis():
    text = GOOD[: GOOD.index("[link.node]")].replace("devices = 4", "devices = 2", 1)
    assert parse_cluster(text).mesh == Mesh.of(gpu=10)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version = 2", "version = 1", ": host: is not allowed in version 1 of this format; write version = 3"),
        ("version = 2", 'version = "2"', ":1: version: is '2', this release reads versions 1, 2, 3"),
        ("[interference]", "[interferense]", 'interferense: is not a field of a cluster file; expected one of device'),
        ("[interference]", "[interferense]", '; did you mean "interference"?'),
        ('"15.7TFLOP/s"', '"15.7TFLOPS"', ":5: [device.v100.flops] float32: is '15.7TFLOPS', expected a number of FL"),
        ('"900GB/s"', '"900GB"', """:6: [device.v100] memory_bandwidth: is '900GB', expected a number of bytes/s"""),
        ('"900GB/s"', '"900GB"', 'text as "25GB/s"'),
        ("overhead =", "overhed =", ':9: [device.v100] overhed: is not a field here; expected one of block, flops'),
        ("overhead =", "overhed =", '; did you mean "overhead"?'),
        ('"1.5ms"', '"1.5min"', ":9: [device.v100] overhead: is '1.5min', expected a number of seconds, or text as"),
        ('family = "contractions"', "family = 3", ":11: [device.v100.rate] family: is 3, expected text"),
        ("    [1e6, 0.1],", "    [1e6],", ":15: [device.v100.rate] curve: expected pairs of numbers, as [[1e6, 0.2]"),
        ("[1e6, 0.1]", "[1e9, 0.1]", ":15: [device.v100.rate] curve: the first number of each pair must be larger"),
        ("[1e6, 0.1]", "[1e6, 0]", ":15: [device.v100.rate] curve: is 0, expected a positive number"),
        ('"12us"', "-1", ":20: [device.v100.table] mm(float32[64x32], float32[32x16]): is -1, expected a non-neg"),
        ('device = "v100"', 'device = "v10"', ":28: [host] device: 'v10' is not one of those described: v100, p100; "),
        ('inside = "pcie"', 'inside = "pci"', ":37: [host] inside: 'pci' is not one of those described: nvlink, pcie"),
        ('inside = "pcie"\n', "", ":33: [host] inside: missing; name the [level.NAME] between the 4 devices"),
        ('nic = "ethernet"\nnics', "nics", ":33: [host] nic: missing; name the [level.NAME] between hosts"),
        ("nics = 2", "nics = 0", ":39: [host] nics: is 0, expected a positive whole number"),
        ("count = 2", "count = true", ":34: [host] count: is True, expected a positive whole number"),
        ("count = 2", "count = 1000000000", ":34: [host] count: is 1000000000, expected a positive whole number"),
        ("shared = true", "shared = 1", ":48: [level.pcie] shared: is 1, expected true or false"),
        ('"10.4Gbit/s"', '"10.4Gbits"', ":52: [level.ethernet] bandwidth: is '10.4Gbits', expected a number of"),
        ("all_gather = 0.7", "allgather = 0.7", ":54: [level.ethernet.efficiency] allgather: is not a field here"),
        ("oversubscription = 4", "", ":56: [switch] oversubscription: missing"),
        ("hosts = 2", 'hosts = "2"', ":57: [switch] hosts: is '2', expected a positive whole number"),
        ("[link.node-gpu.points]", "[link.gpu-node.points]", "[link.gpu-node]: expected axes in the mesh's order"),
        ("[link.node-gpu.points]", "[link.node-cpu.points]", '[link.node-cpu]: the mesh has no axis "cpu"; its axes'),
        ('bandwidth = "1GB/s"', 'bandwidth = "1GB/s"\nbeta = 1', ":63: [link.node] beta: is 1 / bandwidth; give one"),
        ('bandwidth = "1GB/s"\n', "", ":60: [link.node] bandwidth: missing; expected a number of bytes/s"),
        ("all_reduce = [[1024, 2e-4]", "all_recude = [[1024, 2e-4]", ":66: [link.node.points] all_recude: is not a"),
        ("all_reduce = [[1024, 2e-4]", "all_reduce = [[0, 2e-4]", ":66: [link.node.points] all_reduce: is 0, expected"),
        ("[0.01, 2e-3]", "[0.001, 2e-3]", ":74: [interference] delays: the first number of each pair must be larger"),
        ("compute = 1.1", "compute = 0", ":73: [interference] compute: is 0, expected a positive number"),
        ("[device.v100]", 'mesh = ["gpu=8"]\n[device.v100]', ':4: mesh: <["gpu"=8]> has 8 devices, the hosts have 12'),
        ("[[host]]", "[[hosts]]", ": hosts: is not a field of a cluster file; expected one of device, host"),
    ],
)  # fmt: skip
def test_an_error_names_its_line(old: str, new: str, message: str):
    assert old in GOOD
    with pytest.raises(ClusterFileError) as caught:
        parse_cluster(GOOD.replace(old, new, 1 if old != "[[host]]" else -1), "my.toml")
    assert str(caught.value).startswith("my.toml")
    assert message in str(caught.value)


@pytest.mark.parametrize("section", ["[level.nvlink]", "[switch]"])
def test_wires_require_hosts(section: str):
    text = 'version = 2\nmesh = ["gpu=1"]\n[device.d]\nflops = { a = 1 }\nmemory_bandwidth = 1\nmemory = 1\n'
    with pytest.raises(ClusterFileError, match=r"requires hosts, but there is no \[\[host\]\]"):
        parse_cluster(text + section)


def test_a_part_of_a_cluster_cannot_be_written():
    cluster = parse_cluster(GOOD)
    mesh = submesh(cluster.mesh, 4, 8, "stage1")
    assert mesh is not None
    part = subcluster(cluster, mesh, range(4, 12))
    assert part.route(0, 4).ports == ("host1.nic0.out", "switch0.out", "switch1.in", "host2.nic0.in")
    assert part.links == ()
    with pytest.raises(ValueError, match="is a part of another cluster"):
        cluster_toml(part)


@given(clusters())
@settings(max_examples=60, deadline=None)
def test_any_cluster_reads_back(cluster: Cluster):
    assert parse_cluster(cluster_toml(cluster)) == cluster


@pytest.mark.parametrize(("version", "moving"), [(2, ((1e3, 0.1), (1e6, 0.9))), (3, ())])
def test_the_curve_of_an_older_file_holds_for_both_terms_of_memory_bound_ops(version: int, moving: object):
    text = f'version = {version}\nmesh = ["gpu=1"]\n[link.gpu]\nlatency = 0\nbandwidth = 1\n'
    text += "[device.d]\nflops = { a = 1 }\nmemory_bandwidth = 1\nmemory = 1\n"
    for family in ("elementwise", "contractions"):
        text += f'[[device.d.rate]]\nfamily = "{family}"\nflops = 2\nbandwidth = 3\ncurve = [[1e3, 0.1], [1e6, 0.9]]\n'
    over_memory, product = parse_cluster(text).devices[0].rates
    assert over_memory.curve == product.curve == ((1e3, 0.1), (1e6, 0.9))
    assert (over_memory.moving_curve, product.moving_curve) == (moving, ())
