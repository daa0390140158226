"""Which sound rewrites are done: those of a size from which they were measured to be faster."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import jax

# Bytes that the replaced code reads and writes, from which a case was faster by platform; a case
# that stands nowhere is always faster. The CPU's were measured with graphs and networks like those
# of `python -m experiments.benchmarks.fuse`, of several sizes. On an H100 networks on 128
# molecules, of 4 to 12 MB, took 0.8 to 1.3 times as long when they were rewritten, since launches
# are what they cost, and those on the Flickr-like graph, of GB, 0.1 to 0.4 times; sizes between
# were not measured.
_MIB = 1 << 20
_FASTER_FROM: Mapping[str, Mapping[str, float]] = {
    "cpu": {
        "neighbour_sum": 3 * _MIB,
        "neighbour_sum of narrow weighted rows": math.inf,
        "gat_attention of narrow rows": math.inf,
        "inner products of narrow rows": 16 * _MIB,
        "neighbour_extreme": 3 * _MIB,
        "segments": math.inf,
        "segments of sorted ids": 3 * _MIB,
        "segment_softmax": math.inf,
        "edge_mlp": _MIB,
        "edge_projection": _MIB,
        "edge_sum": _MIB,
        "maxk": 0.25 * _MIB,
    },
    "gpu": {
        "neighbour_sum": 16 * _MIB,
        "neighbour_extreme": 16 * _MIB,
        "segments": 16 * _MIB,
        "segments of sorted ids": 16 * _MIB,
        "segment_softmax": 16 * _MIB,
        "edge_mlp": 16 * _MIB,
        "edge_projection": 16 * _MIB,
        "edge_sum": 16 * _MIB,
        "fused_linear": 16 * _MIB,
        "fused_mlp": 16 * _MIB,
        "maxk": _MIB,
    },
}


@dataclass(frozen=True)
class Policy:
    """Which rewrites are done.

    Attributes:
      only_if_faster: whether those are left out that were not measured to be faster.
    """

    only_if_faster: bool = True

    def refuses(self, case: str, num_bytes: int, *, is_what_runs: bool = False) -> str | None:
        """The reason for leaving a rewrite out, or None.

        Args:
          case: the rule, or the case of it that was measured apart.
          num_bytes: bytes that the replaced code reads and writes.
          is_what_runs: whether the op would choose what the replaced code does anyway.
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
"""Leaves out what was not measured to be faster."""
