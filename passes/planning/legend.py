"""The meanings of the terms in the names of candidates."""

from __future__ import annotations

import re
from collections.abc import Iterable

MEANINGS = {
    "dp": "data parallel: each device has a part of the batch and all parameters (DDP)",
    "zero1": "data parallel with optimizer states split over the devices (ZeRO-1)",
    "zero3": "data parallel with parameters, gradients and optimizer states split over the devices (ZeRO-3, FSDP)",
    "tp": "tensor parallel: weights and their matrix products are split over the devices (Megatron)",
    "over": "the axes of the mesh on which a preset works",
    "searched": "a search has chosen the sharding of every value and op",
    "AxB": "sizes of the axes of the device mesh, outermost first",
    "ranks": "the ranks of the cluster that form the mesh, in its order; with `only`, all others idle",
    "stages": "pipeline stages, which divide the devices of the mesh among themselves",
    "chunks": "groups of layers that a stage runs in turn (interleaved pipeline)",
    "micro-batches": "parts of the batch, whose gradients are accumulated",
    "gathered by each": "each micro-batch gathers the parameters of ZeRO-3 and reduces their gradients (FSDP)",
    "duplex": "micro-batches take turns: one communicates while another computes",
    "fused batch-norm": "batch-norms are not decomposed, and take their statistics from the rows of one device",
    "keeping N% of activations": "the part of the bytes from forward that is kept for backward; the rest is recomputed",
    "products in parts": "matrix products are cut, so that one part communicates while the next computes",
    "shares by speed": "faster devices have larger shares of the work",
    "weights A/B": "the search minimised seconds of compute, plus A x those of collectives on parameters and gradients,"
    " which may overlap compute, plus B x those of all other collectives",
    "unbucketed": "the search charged every collective on parameters and gradients its own latency; otherwise these"
    " share latency, as in full buckets",
    "within memory": "the search charged for memory until the strategy fitted",
}
"""Maps each term to its meaning; a capital letter stands for a number."""


def legend(names: Iterable[str]) -> dict[str, str]:
    """Return the terms that occur in names of candidates, with their meanings."""
    text = "\n".join(names)
    patterns = {term: re.sub("[A-Z]", r"[\\d.]+", term) for term in MEANINGS}
    return {term: MEANINGS[term] for term, pattern in patterns.items() if re.search(rf"\b{pattern}", text)}
