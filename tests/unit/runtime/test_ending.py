"""Ranks end at their start if their launcher is gone."""

from __future__ import annotations

import socket

import pytest

from shardwright.runtime.ending import verify_launcher

SECONDS = 0.2


def place(monkeypatch: pytest.MonkeyPatch, port: int, rank: int, *, by_agent: bool = True) -> None:
    told = {"RANK": 4 + rank, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in {**told, "TORCHELASTIC_USE_AGENT_STORE": by_agent}.items():
        monkeypatch.setenv(name, str(value))


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as once:
        return once.getsockname()[1]


@pytest.mark.parametrize(("rank", "told"), [(0, 1), (1, 0)])
def test_ranks_of_a_lost_launcher_end_and_the_first_reports_it(
    rank: int, told: int, closed_port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    place(monkeypatch, closed_port, rank)
    with pytest.raises(SystemExit, match="1"):
        verify_launcher("net", SECONDS)
    message = f"net: rank 4: torchrun, which holds the job's store, is gone: nothing listens on 127.0.0.1:{closed_port}"
    assert capsys.readouterr().err.count(message) == told


def test_ranks_continue_if_the_launcher_listens(monkeypatch: pytest.MonkeyPatch):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        place(monkeypatch, listening.getsockname()[1], 0)
        verify_launcher("net", SECONDS)


def test_a_store_that_rank_0_is_yet_to_make_is_waited_for(closed_port: int, monkeypatch: pytest.MonkeyPatch):
    place(monkeypatch, closed_port, 1, by_agent=False)
    verify_launcher("net", SECONDS)
