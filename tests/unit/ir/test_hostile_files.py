"""Invalid cluster and pin files are refused with one message: minimal cases, and mutants."""

import pytest
from hostile_files import KINDS, cluster_texts, load_what_is_used, mutants, outcome, pin_texts

from shardwright.ir.cluster_file import ClusterFileError, cluster_toml, parse_cluster
from shardwright.passes.search.pin_file import PinError, parse_pins

HOSTS = """version = 3
mesh = ["gpu=4"]
[device.x]
flops = { float32 = 1e12 }
memory_bandwidth = 1e12
memory = "16GB"
[[host]]
devices = 4
inside = "bus"
[level.bus]
latency = 1e-6
bandwidth = 1e9
"""

CLUSTERS = {
    "a number beyond whole ones": ("devices = 4", "devices = 4\nnics = 1e23", ":9: [host] nics: is 1e+23"),
    "a number of NICs beyond memory": ("devices = 4", "devices = 4\nnics = 1000000000", "at most 1024"),
    "a mesh beyond memory": ("gpu=4", "gpu=999999999999", "mesh: mesh @mesh has 999999999999 devices, expected"),
    "an axis of no size": ("gpu=4", "gpu=0", ":2: mesh: "),
    "a keyword for an axis": ("gpu=4", "class=4", ":2: mesh: axis 'class'"),
    "an axis that is not ASCII": ("gpu=4", "é=4", ":2: mesh: axis 'é'"),
    "digits that are not ASCII": ("gpu=4", "gpu=\u0664", ":2: mesh: entry"),
    "a part of a byte": ("memory_bandwidth", "block = 0.3\nmemory_bandwidth", ":5: [device.x] block: is 0.3"),
    "thousands of digits": ("1e-6", "1" + "0" * 400, ":11: [level.bus] latency: is a whole number of"),
    "no float": ("1e-6", "0x" + "f" * 5000, ":11: [level.bus] latency: is a whole number of"),
    "no decimal": ("1e9", '"1e9999999999999GB/s"', ":12: [level.bus] bandwidth: is '1e9999"),
    "a time that is no time": ("1e-6", "1e-320", ":11: [level.bus] latency: is 1e-320"),
    "deep": ("1e-6", "[" * 5000 + "]" * 5000, "nested too deeply"),
    "long": ("1e-6", "[" + "1, " * 100_000 + "]", ":11: [level.bus] latency: is [1, 1"),
    "a name with a line": ("device.x", 'device."x\\ny"', "printable"),
    "no dtype": ("float32", '"a b"', ":4: [device.x] flops: 'a b' is not the name of a dtype"),
}

PINS = {
    "a number for pins": ("pin = 3", "expected [[pin]] entries"),
    "numbers for pins": ("pin = [3]", "expected [[pin]] entries"),
    "a number for axes": ('[[pin]]\npreset = "dp"\naxes = 3', "pin 1: axes is 3"),
    "a list for a preset": ("[[pin]]\npreset = [1]", "pin 1: 'preset' is [1], expected text"),
    "a number for a value": ("[[pin]]\nvalue = 3\nsharding = '[{}]'", "pin 1: 'value' is 3, expected text"),
    "deep": ("pin = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
}


@pytest.mark.parametrize(("old", "new", "message"), CLUSTERS.values(), ids=CLUSTERS)
def test_a_cluster_file_is_refused_with_its_line(old: str, new: str, message: str):
    parse_cluster(HOSTS)
    with pytest.raises(ClusterFileError) as error:
        parse_cluster(HOSTS.replace(old, new, 1), "my.toml")
    assert message in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(("text", "message"), PINS.values(), ids=PINS)
def test_a_pin_file_is_refused_with_its_entry(text: str, message: str):
    with pytest.raises(PinError) as error:
        parse_pins(text, "pins.toml")
    assert message in str(error.value)
    assert len(str(error.value)) < 500


def test_mutants_are_read_or_refused():
    read = 0
    for text in mutants(cluster_texts(), seed=5, count=200):
        try:
            cluster = parse_cluster(text)
        except ClusterFileError:
            continue
        read += 1
        assert parse_cluster(cluster_toml(cluster)) == cluster
    assert read > 20
    for text in mutants(pin_texts(), seed=5, count=200):
        try:
            parse_pins(text)
        except PinError:
            continue


@pytest.mark.parametrize("kind", KINDS)
def test_mutants_are_used_or_refused(kind: str):
    load_what_is_used()
    texts, use = KINDS[kind]
    for text in mutants(texts(), seed=6, count=6):
        found = outcome(use, text)
        assert found.is_clean, f"{found}\n{text[:2000]}"
