"""Topologies: the hosts that devices sit in, and the wires between them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Route:
    """
    The way of a transfer between two ranks.

    latency    seconds until the first byte arrives
    bandwidth  bytes/s when nothing else is sent
    ports      what the transfer occupies on its way, each named once and for one direction: transfers that share a
               port share its bandwidth
    """

    latency: float
    bandwidth: float
    ports: tuple[str, ...]
