"""Times ``jaxgnn.segment_*`` against ``jax.ops``, for sorted ids and for ids in any order.

``python -m experiments.benchmarks.segments`` prints the release of JAX and the device, and then a
line for each function, order of ids and direction: milliseconds of both, and their ratio. Ids are
arguments of the program, so that sorting, where needed, is part of each call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxgnn
from experiments.benchmarks._command import command
from experiments.benchmarks._report import Output, Row, append_rows
from jaxgnn._errors import bad_input
from jaxgnn.testing import random_array
from jaxgnn.testing.timing import Candidate, device_description, measure_in_turns


@dataclass(frozen=True)
class Options(Output):
    """Sizes of the data.

    Attributes:
      entries: number of entries.
      segments: number of segments, which are drawn uniformly.
      dim: width of an entry.
      repeats: number of timings of each, in turns.
    """

    entries: int = 1_000_000
    segments: int = 20_000
    dim: int = 64
    repeats: int = 7


def _softmax(data: jax.Array, ids: jax.Array, count: int, indices_are_sorted: bool) -> jax.Array:
    """The softmax of segments, written with ``jax.ops`` as in jraph."""
    how = {"num_segments": count, "indices_are_sorted": indices_are_sorted}
    peaks = jax.ops.segment_max(data, ids, **how)
    exponentials = jnp.exp(data - peaks[ids])
    return exponentials / jax.ops.segment_sum(exponentials, ids, **how)[ids]


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "segment_sum": (jaxgnn.segment_sum, jax.ops.segment_sum),
    "segment_max": (jaxgnn.segment_max, jax.ops.segment_max),
    "segment_softmax": (jaxgnn.segment_softmax, _softmax),
}


def _directions(function: Callable[..., Any], count: int, is_sorted: bool) -> dict[str, Any]:
    def forward(data, ids):
        return function(data, ids, count, indices_are_sorted=is_sorted)

    def both(data, ids):
        y, pull_back = jax.vjp(lambda data: forward(data, ids), data)
        return y, pull_back(y)[0]

    return {"forward": forward, "forward+backward": both}


def main(options: Options) -> None:
    """Prints the table, and appends its rows to ``segments.jsonl``."""
    for field in ("entries", "segments", "dim", "repeats"):
        if getattr(options, field) < 1:
            raise bad_input("segments", f"--{field}", "at least one", getattr(options, field))
    rows: list[Row] = []
    device = device_description()
    print(f"jax {jax.__version__}; {device}")
    drawn = np.random.default_rng(0).integers(0, options.segments, options.entries, np.int32)
    data = random_array((options.entries, options.dim), "float32", seed=1)
    for order, ids in (("sorted", np.sort(drawn)), ("any order", drawn)):
        inputs = [(data, jnp.asarray(ids))]
        for name, pair in FUNCTIONS.items():
            runs = [_directions(f, options.segments, order == "sorted") for f in pair]
            for direction in runs[0]:
                candidates = {
                    kind: Candidate(run[direction], inputs)
                    for kind, run in zip(("jaxgnn", "jax.ops"), runs, strict=True)
                }
                made = measure_in_turns(candidates, repeats=options.repeats, budget_ms=60_000.0)
                ours, theirs = made["jaxgnn"], made["jax.ops"]
                if ours is None or theirs is None:
                    raise MemoryError(f"{name}, ids in {order}, {direction}")
                rows.append(
                    {
                        "op": name,
                        "order": order,
                        "direction": direction,
                        "entries": options.entries,
                        "segments": options.segments,
                        "dim": options.dim,
                        "ms": ours.median_ms,
                        "jax_ops_ms": theirs.median_ms,
                        **device,
                    }
                )
                print(
                    f"{name:16} {order:9} {direction:16} {ours.median_ms:9.2f} ms, jax.ops "
                    f"{theirs.median_ms:9.2f} ms, {theirs.median_ms / ours.median_ms:5.2f} times"
                )
    append_rows(options.rows / "segments.jsonl", rows)


if __name__ == "__main__":
    command(main, Options, __doc__)
