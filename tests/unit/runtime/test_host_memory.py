"""The next step reuses the memory that a step frees."""

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
from shardwright.runtime.host_memory import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()

def step():
    held = [b"x" * 2**20 for _ in range(64)]

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

step()
before = faults()
step()
print(faults() - before)
"""


def faults(how: str) -> int:
    """Return the number of page faults of the second of two equal steps."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is asked to")
def test_the_second_step_reuses_the_memory_of_the_first():
    assert faults("keep") < 100
    assert faults("leave") > 10_000
