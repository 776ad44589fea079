"""Clusters as different back ends of the cost model see them, to compare the value of measurements."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeAlias

from shardwright.ir.cluster import Cluster, Interference

BackEnd: TypeAlias = Literal["analytic", "fitted", "table"]


def restricted(cluster: Cluster, back_end: BackEnd) -> Cluster:
    """
    Return the cluster with only the numbers that a back end may use.

    - `analytic` has numbers of data sheets: latency, bandwidth, FLOP/s; no links if the cluster has hosts.
    - `fitted` also has numbers fitted to measurements: alpha and beta by collective, rates of ops, interference.
    - `table` has everything, including measured times.
    """
    if back_end == "table":
        return cluster
    analytic = back_end == "analytic"
    devices = [replace(device, table=(), rates=() if analytic else device.rates) for device in cluster.devices]
    links = [replace(link, points=(), measured=() if analytic else link.measured) for link in cluster.links]
    if analytic and cluster.topology is not None:
        links = []
    interference = Interference() if analytic else cluster.interference
    return replace(cluster, devices=tuple(devices), links=tuple(links), interference=interference)
