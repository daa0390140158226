"""Decides which sound rewrites are applied: those that were measured to be faster at their size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import jax

from jaxgnn.fusion.graphs.preparations import ordered
from jaxgnn.fusion.rules.rule import Rewrite

# Bytes that the replaced code reads and writes, from which a case was faster by platform, forward
# and with gradients; math.inf if it was slower at any size. A case that is not listed is always
# faster. `python -m experiments.benchmarks.fuse_rules` measures each rule alone: the CPU's numbers
# are those of two cores, the GPU's those of an H200, on which calls of less than 0.1 ms cost their
# launches.
_MIB = 1 << 20


_FASTER_FROM: Mapping[str, Mapping[str, float]] = {
    "cpu": {
        "neighbour_sum of narrow weighted rows": math.inf,
        "lists of narrow rows": math.inf,
        "narrow products of a known matrix": math.inf,
        "sums of segments": math.inf,
        "sums of products": math.inf,
        "sums of sorted products": math.inf,
        "neighbour_sum": 4 * _MIB,
        "filtered_sum": 3 * _MIB,
        "filtered_sum by a kernel": 16 * _MIB,
        "gat_attention of narrow rows": math.inf,
        "inner products of narrow rows": 16 * _MIB,
        "neighbour_extreme": 3 * _MIB,
        "sums of sorted segments": math.inf,
        "sums of short floats": math.inf,
        "sums of sorted short floats": math.inf,
        "extremes of segments": math.inf,
        "extremes of sorted segments": math.inf,
        "segment_softmax": math.inf,
        "edge_mlp": _MIB,
        "interaction": _MIB,
        "edge_mlp at both ends": _MIB,
        "edge_projection": _MIB,
        "edge_sum": _MIB,
        "tensor_product_sum": 0.25 * _MIB,  # Applies only where the op has a kernel.
        "maxk": 0.25 * _MIB,
    },
    "gpu": {
        "neighbour_sum of narrow weighted rows": math.inf,
        "lists of narrow rows": math.inf,
        "sums of segments": math.inf,
        "sums of products": math.inf,
        "sums of sorted products": math.inf,
        "neighbour_sum": 256 * _MIB,
        "filtered_sum": math.inf,
        "filtered_sum by a kernel": math.inf,
        "neighbour_extreme": 256 * _MIB,
        "sums of sorted segments": 512 * _MIB,
        "sums of short floats": 256 * _MIB,
        "sums of sorted short floats": 256 * _MIB,
        "extremes of segments": 256 * _MIB,
        "extremes of sorted segments": 256 * _MIB,
        "segment_softmax": 128 * _MIB,
        "edge_mlp": 64 * _MIB,
        "interaction": 512 * _MIB,
        "edge_mlp at both ends": math.inf,
        "edge_projection": 64 * _MIB,
        "edge_sum": 512 * _MIB,
        "fused_linear": 16 * _MIB,
        "fused_mlp": 32 * _MIB,
        "maxk": _MIB,
    },
}


# Bytes that the reductions over one list of ids, or the gathers by it, read of an edge and in all,
# from which rewrites were faster although each call prepares the list, forward and with
# gradients, by platform. `python -m experiments.benchmarks.fuse_rules --in-step` measures it.
_NEVER = (math.inf, math.inf)


_PREPARED_FROM: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "cpu": {"sort": (256, 8 * _MIB), "mark": (64, _MIB)},
    "gpu": {"sort": _NEVER, "mark": (512, 128 * _MIB)},
}


@dataclass(frozen=True)
class Policy:
    """Decides which sound rewrites are applied."""

    only_if_faster: bool = True  # True refuses rewrites that were not measured to be faster.

    def refuses(self, rewrite: Rewrite, case: str) -> str | None:
        """Returns the reason for refusing a rewrite of a measured case, or None."""
        platform = jax.default_backend()
        least = _FASTER_FROM.get(platform, {}).get(case, 0)
        if not self.only_if_faster:
            return None
        if rewrite.is_what_runs:
            return "the op has no kernel for it that it would choose here"
        if (reason := _refuses_preparations(rewrite, platform)) is not None:
            return reason
        if rewrite.bytes_before >= least:
            return None
        if least == math.inf:
            return f"{case} was not measured to be faster on a {platform.upper()}"
        return f"it is faster from {least / 1e6:.3g} MB on"


def _refuses_preparations(rewrite: Rewrite, platform: str) -> str | None:
    """Returns the reason for not preparing ids in each call, or None."""
    table = _PREPARED_FROM.get(platform, {})
    for cost in (preparation.cost for preparation in ordered(rewrite.preparations)):
        if cost is None:
            continue
        reason = f"the ids are known only when it runs; to {cost.kind} them there "
        each, total = table.get(cost.kind, _NEVER)
        if each == math.inf:  # Refuses also lists that the caller names.
            return f"{reason}took longer than it saved on a {platform.upper()}"
        if cost.bytes_per_edge == math.inf:
            continue
        if cost.bytes_per_edge < each:
            got = f"and they are read for {cost.bytes_per_edge:.3g}"
            return f"{reason}pays from {each:.3g} bytes an edge on, {got}"
        if cost.bytes_per_edge * cost.edges < total:
            return f"{reason}pays from {total / 1e6:.3g} MB of rows on"
    return None
