"""Decides whether a sound rewrite is applied: only at sizes where it was measured to be faster."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import jax

# Bytes that the replaced code reads and writes, from which a case was faster by platform, forward
# and with gradients; math.inf if it was slower at any size. A case that is not listed is always
# faster. `python -m experiments.benchmarks.fuse_rules` measures each rule alone: the CPU's numbers
# are those of two cores, the GPU's those of an H200, on which calls of less than 0.1 ms cost their
# launches.
_MIB = 1 << 20
_FASTER_FROM: Mapping[str, Mapping[str, float]] = {
    "cpu": {
        "neighbour_sum": 4 * _MIB,
        "neighbour_sum of narrow weighted rows": math.inf,
        "gat_attention of narrow rows": math.inf,
        "inner products of narrow rows": 16 * _MIB,
        "neighbour_extreme": 3 * _MIB,
        "sums of segments": math.inf,
        "sums of sorted segments": math.inf,
        "sums of products": math.inf,
        "sums of sorted products": math.inf,
        "sums of short floats": math.inf,
        "sums of sorted short floats": math.inf,
        "extremes of segments": math.inf,
        "extremes of sorted segments": math.inf,
        "segment_softmax": math.inf,
        "edge_mlp": _MIB,
        "edge_mlp at both ends": _MIB,
        "edge_projection": _MIB,
        "edge_sum": _MIB,
        "maxk": 0.25 * _MIB,
    },
    "gpu": {
        "neighbour_sum": 256 * _MIB,
        "neighbour_sum of narrow weighted rows": math.inf,
        "neighbour_extreme": 256 * _MIB,
        "sums of segments": math.inf,
        "sums of sorted segments": 512 * _MIB,
        "sums of products": math.inf,
        "sums of sorted products": math.inf,
        "sums of short floats": 256 * _MIB,
        "sums of sorted short floats": 256 * _MIB,
        "extremes of segments": 256 * _MIB,
        "extremes of sorted segments": 256 * _MIB,
        "segment_softmax": 128 * _MIB,
        "edge_mlp": 64 * _MIB,
        "edge_mlp at both ends": math.inf,
        "edge_projection": 64 * _MIB,
        "edge_sum": 512 * _MIB,
        "fused_linear": 16 * _MIB,
        "fused_mlp": 32 * _MIB,
        "maxk": _MIB,
    },
}


@dataclass(frozen=True)
class Policy:
    """Decides which sound rewrites are applied.

    Attributes:
      only_if_faster: whether rewrites are refused that were not measured to be faster.
    """

    only_if_faster: bool = True

    def refuses(self, case: str, num_bytes: int, *, is_what_runs: bool = False) -> str | None:
        """Returns the reason for refusing a rewrite, or None.

        Args:
          case: the rule, or a case of it that was measured separately.
          num_bytes: bytes that the replaced code reads and writes.
          is_what_runs: whether the op would run the same code as the replaced code.
        """
        platform = jax.default_backend()
        least = _FASTER_FROM.get(platform, {}).get(case, 0)
        if not self.only_if_faster:
            return None
        if is_what_runs:
            return "the op has no kernel for it that it would choose here"
        if num_bytes >= least:
            return None
        if least == math.inf:
            return f"{case} was not measured to be faster on a {platform.upper()}"
        return f"it is faster from {least / 1e6:.3g} MB on"


ONLY_IF_FASTER = Policy()
"""Refuses what was not measured to be faster."""
