"""Costs of repeated eager calls beside their arithmetic: compilations, and memory that stays."""

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any

import jax

_COMPILED = "/jax/core/compile/backend_compile_duration"
# First calls compile; the second may still meet arrays that the first has made.
_FIRST, _HALF = 2, 10
# For each call: JAX itself keeps a few keys of what was called inside of a gradient, until its
# caches are full. A closure that was made for the call, with its trace, is twenty at least.
_OBJECTS = 10


def assert_costs_nothing_again(call: Callable[[], Any]) -> None:
    """Calls it 22 times: the last 20 must compile nothing, and the last 10 leave no objects."""
    for _ in range(_FIRST):
        jax.block_until_ready(call())
    # The collector need not look at what is there already, which is much, now or later.
    gc.collect()
    gc.freeze()
    with counted_compilations() as compiled:
        counts = []
        for _ in range(2):
            for _ in range(_HALF):
                jax.block_until_ready(call())
            gc.collect()
            counts.append(len(gc.get_objects()))
    assert not compiled, f"{len(compiled)} compilations in {2 * _HALF} calls"
    left = counts[1] - counts[0]
    assert left < _OBJECTS * _HALF, f"{left} objects left by {_HALF} calls"


@contextlib.contextmanager
def counted_compilations() -> Iterator[list[float]]:
    """Gives a list that grows by one entry with each compilation inside of the block."""
    seen: list[float] = []

    def listen(event: str, duration: float, **others: Any) -> None:
        if event == _COMPILED:
            seen.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
