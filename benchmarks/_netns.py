"""
Emulated clusters on one Linux machine: a network namespace per host, with limited links, and slowed processes.

Each namespace has one address on a bridge that exists only for this process. A token bucket (`tc tbf`) limits the
sending rate of a host and, on request, its receiving rate. Traffic never leaves these namespaces. This needs root,
iproute2 and, to slow a process, the cpu cgroup; without them the script is skipped with a message.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _report import skip

_OWN = f"sw{os.getpid()}"
"""Prefix of the names of this process's namespaces and cgroups, since several benchmarks may run at a time."""

_SWITCH, _BRIDGE = f"{_OWN}switch", "swbr0"
_CGROUP = Path("/sys/fs/cgroup/cpu")
_REQUEST, _ANSWER = "request.json", "answer.json"
_RANK = "--rank-of"
"""Option of the ranks that `answers` starts, with the folder of the request."""

_PERIOD = 10_000
"""Scheduling period in microseconds, short so that a slowed process runs evenly."""


def require() -> None:
    """End this process with a message if it cannot create namespaces."""
    if os.geteuid() != 0:
        skip("emulated links need root; run with sudo")
    if missing := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        skip(f"emulated links need iproute2; missing: {', '.join(missing)}")
    _run(f"ip netns add {_OWN}probe", f"ip netns del {_OWN}probe")


@contextmanager
def hosts(
    rates: Sequence[str | None], burst: str = "256kb", *, receiving: bool = False
) -> Generator[list[str], None, None]:
    """
    Create one namespace per rate (`200mbit`, or None for no limit), yield their names, and remove them afterwards.

    A host may send `burst` bytes at full speed after a pause. The rate limits receiving only on request.
    """
    require()
    names = [f"{_OWN}host{index}" for index in range(len(rates))]
    _remove(names)
    try:
        _run(f"ip netns add {_SWITCH}", f"ip -n {_SWITCH} link add {_BRIDGE} type bridge")
        _run(f"ip -n {_SWITCH} link set {_BRIDGE} up")
        for index, (name, rate) in enumerate(zip(names, rates, strict=True)):
            _host(index, name)
            limited = [(name, "eth0"), *([(_SWITCH, f"swport{index}")] if receiving else [])]
            for place, device in limited if rate is not None else ():
                tbf = f"tc qdisc add dev {device} root tbf rate {rate} burst {burst} latency 50ms"
                _run(f"ip netns exec {place} {tbf}")
        yield names
    finally:
        _remove(names)


def address(index: int) -> str:
    """Return the address of host `index`."""
    return f"10.98.0.{index + 1}"


def launch(
    names: Sequence[str], arguments: Sequence[str], *, shares: Mapping[int, float] | None = None, timeout: float = 900.0
) -> None:
    """
    Run `python ARGUMENTS` as one rank on each host, as torchrun would. If one fails, the others are killed.

    A rank has all of a core, or its share in `shares`.
    """
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank, name in enumerate(names):
            environment = {
                "RANK": str(rank),
                "LOCAL_RANK": "0",
                "WORLD_SIZE": str(len(names)),
                "MASTER_ADDR": address(0),
                "MASTER_PORT": "29511",
                "GLOO_SOCKET_IFNAME": "eth0",
                "OMP_NUM_THREADS": "1",
            }
            command = ["ip", "netns", "exec", name, sys.executable, *arguments]
            processes.append(subprocess.Popen(command, env=os.environ | environment))
            _slow(rank, processes[-1].pid, (shares or {}).get(rank))
        for rank, process in enumerate(processes):
            if (code := process.wait(timeout)) != 0:
                raise RuntimeError(f"rank {rank} failed with exit code {code}; see its output above")
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for rank in range(len(names)):
            if (group := _CGROUP / f"{_OWN}rank{rank}").exists():
                group.rmdir()


def answers(
    script: str,
    rates: Sequence[str | None],
    request: object,
    ranks_each: int = 1,
    *,
    burst: str = "256kb",
    receiving: bool = False,
    shares: Mapping[int, float] | None = None,
) -> Any:
    """
    Run a script on the ranks of emulated hosts, where it calls `start`, and return the result of rank 0.

    All ranks get the request as JSON. The links between the ranks of a host are not limited.
    """
    with tempfile.TemporaryDirectory() as folder, hosts(rates, burst, receiving=receiving) as names:
        Path(folder, _REQUEST).write_text(json.dumps(request))
        arguments = [os.fspath(Path(script).resolve()), _RANK, folder]
        launch([name for name in names for _ in range(ranks_each)], arguments, shares=shares)
        return json.loads(Path(folder, _ANSWER).read_text())


def start(work: Callable[[Any], Any], main: Callable[[], None]) -> None:
    """Call `main`, or call `work` with the request as one rank of a gloo job if `answers` started this process."""
    if _RANK not in sys.argv:
        return main()
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    folder = sys.argv[sys.argv.index(_RANK) + 1]
    result = work(json.loads(Path(folder, _REQUEST).read_text()))
    if dist.get_rank() == 0:
        Path(folder, _ANSWER).write_text(json.dumps(result))
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    # A thread of gloo may still run, and would abort an interpreter that ends in the usual way.
    os._exit(0)


def _slow(rank: int, pid: int, share: float | None) -> None:
    if share is None:
        return
    if not (_CGROUP / "cgroup.procs").exists():
        skip(f"slowing a rank needs the cpu cgroup at {_CGROUP}")
    group = _CGROUP / f"{_OWN}rank{rank}"
    group.mkdir(exist_ok=True)
    (group / "cpu.cfs_period_us").write_text(str(_PERIOD))
    (group / "cpu.cfs_quota_us").write_text(str(int(share * _PERIOD)))
    (group / "cgroup.procs").write_text(str(pid))


def _host(index: int, name: str) -> None:
    port = f"swport{index}"
    _run(
        f"ip netns add {name}",
        f"ip link add eth0 netns {name} type veth peer name {port} netns {_SWITCH}",
        f"ip -n {_SWITCH} link set {port} master {_BRIDGE}",
        f"ip -n {_SWITCH} link set {port} up",
        f"ip -n {name} addr add {address(index)}/24 dev eth0",
        f"ip -n {name} link set lo up",
        f"ip -n {name} link set eth0 up",
    )


def _remove(names: Sequence[str]) -> None:
    for name in (*names, _SWITCH):
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _run(*commands: str) -> None:
    for command in commands:
        done = subprocess.run(command.split(), capture_output=True, text=True)
        if done.returncode != 0:
            skip(f"emulated links need network namespaces; `{command}` failed: {done.stderr.strip()}")
