"""Every rank has its own GPU, or all are on CPUs; and the backend fits the device of the tensors."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

from shardwright.runtime import rank_devices
from shardwright.runtime.rank_devices import VisibleGPUs, agree_on_device, assign_gpus, backend_of, device_of_group

A, B, C, D = "abcd"


def host(name: str, *visible: tuple[str, ...]) -> list[VisibleGPUs]:
    """Return the visible GPUs of the ranks of a host, in order."""
    return [VisibleGPUs(name, rank, uuids) for rank, uuids in enumerate(visible)]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (host("one", (A, B), (A, B)), [0, 1]),
        (host("each its own", (A,), (B,), (C,)), [0, 0, 0]),
        (host("more than ranks", (A, B, C), (A, B, C)), [0, 1]),
        (host("first", (A, B), (A, B)) + host("second", (C, D), (C, D)), [0, 1, 0, 1]),
        (host("first", (A, B), (A, B)) + host("second", (C,)), [0, 1, 0]),
        (host("another order", (B, A), (A, B)), [0, 0]),
    ],
)
def test_every_rank_has_its_own_gpu(visible: list[VisibleGPUs], expected: list[int]):
    assigned = assign_gpus(visible)
    assert assigned == expected
    assert len({each.uuids[index] for each, index in zip(visible, expected, strict=True)}) == len(visible)


@pytest.mark.parametrize(
    ("visible", "reason"),
    [
        (host("none", (), ()), ""),
        (host("shared", (A,), (A,)), "host shared has 2 ranks and 1 visible GPUs"),
        (host("first", (A,)) + host("second", ()), "host second has 1 ranks and 0 visible GPUs"),
    ],
)
def test_a_job_without_a_gpu_for_every_rank_is_on_cpus(visible: list[VisibleGPUs], reason: str):
    found = assign_gpus(visible)
    assert isinstance(found, str)
    assert found.startswith(reason)
    assert bool(found) == bool(reason)


def as_on(monkeypatch: pytest.MonkeyPatch, count: int, current: int = 0) -> list[torch.device]:
    """Simulate a host with `count` GPUs; return the list of devices that are made current."""
    chosen: list[torch.device] = []
    cuda = rank_devices.torch.cuda
    monkeypatch.setattr(cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(cuda, "device_count", lambda: count)
    monkeypatch.setattr(cuda, "current_device", lambda: current)
    monkeypatch.setattr(cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=f"gpu {index}"))
    monkeypatch.setattr(cuda, "set_device", chosen.append)
    return chosen


def test_ranks_agree_on_devices_through_the_store(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    chosen = as_on(monkeypatch, 2)
    store = HashStore()
    store.set("gpus/0", '{"host": "h", "local_rank": 0, "uuids": ["gpu 0", "gpu 1"]}')
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert agree_on_device("step", store, 1, 2) == torch.device("cuda", 1)
    assert chosen == [torch.device("cuda", 1)]
    store.set("gpus/1", '{"host": "h", "local_rank": 1, "uuids": []}')
    assert agree_on_device("step", store, 0, 2) == torch.device("cpu")
    assert "step: host h has 1 ranks and 0 visible GPUs" in caplog.text


@pytest.fixture(params=[None, "gloo", "cpu:gloo,cuda:gloo"])
def group(request: pytest.FixtureRequest) -> Iterator[dist.ProcessGroup]:
    """Open a group of one rank, as scripts do."""
    dist.init_process_group(request.param, store=HashStore(), rank=0, world_size=1)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_the_backend_fits_the_device(group: dist.ProcessGroup):
    assert backend_of(torch.device("cpu"), group) == "gloo"
    assert device_of_group() == torch.device("cpu")


def test_a_device_without_a_backend_is_refused():
    dist.init_process_group("cpu:gloo", store=HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match=r"no gloo or NCCL for tensors on cuda \(found cpu gloo\); make"):
            backend_of(torch.device("cuda"))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(("current", "local_rank", "expected"), [(0, 0, 0), (0, 1, 1), (2, 1, 2), (0, 9, 0)])
def test_a_group_of_the_script_with_nccl_is_on_its_gpu(
    monkeypatch: pytest.MonkeyPatch, current: int, local_rank: int, expected: int
):
    as_on(monkeypatch, 4, current)
    monkeypatch.setenv("LOCAL_RANK", str(local_rank))
    for bound, index in ((None, expected), (torch.device("cuda", 3), 3)):
        group = SimpleNamespace(WORLD=SimpleNamespace(bound_device_id=bound))
        made = SimpleNamespace(group=group, get_backend_config=lambda _: "cpu:gloo,cuda:nccl")
        monkeypatch.setattr(rank_devices, "dist", made)
        assert device_of_group() == torch.device("cuda", index)
