"""How long a function takes, and how fast the device copies: the two numbers benchmarks need."""

from __future__ import annotations

import itertools
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib

from jaxgnn._version import __version__

_MAX_LAUNCHES = 10_000
_LEAST_REPEATS = 3
_CPU_COPY_BYTES = 2**28
_ACCELERATOR_COPY_BYTES = 2**31


@dataclass(frozen=True)
class Timing:
    """The time of one call.

    Attributes:
      median_ms: median over the repeats, in milliseconds.
      min_ms: least of the repeats, in milliseconds.
      repeats: batches that were timed.
      launches: calls in each batch.
    """

    median_ms: float
    min_ms: float
    repeats: int
    launches: int


def measure(
    fn: Callable[..., Any],
    *args: Any,
    rotate: Sequence[tuple[Any, ...]] = (),
    jit: bool = True,
    wait: Callable[[Any], Any] = jax.block_until_ready,
    repeats: int = 7,
    batch_ms: float = 20.0,
    budget_ms: float = 2_000.0,
) -> Timing:
    """Times ``fn(*args)`` after it was compiled and warmed up.

    A sample is the host's time for a batch of back-to-back calls, divided by their number, which
    is chosen so that a batch lasts at least ``batch_ms``. On an accelerator the calls of a batch
    are queued and only the last is waited for: the device runs them in order, and the host's
    work on one call hides behind the device's on those before it. This is the time of the
    device, gaps between the kernels of one call included, as long as that is longer than what
    the host needs for a launch (some 10 to 50 µs); a shorter ``fn`` measures the launch. On a
    CPU each call is waited for before the next, so its launch is part of the time.

    Results of earlier calls are dropped while later ones run, so that a batch needs no more
    memory than two calls.

    Args:
      fn: what to time; arrays in, arrays out.
      *args: its arguments.
      rotate: further tuples of arguments of the same shapes. Calls take turns over all of them,
        so that no call finds its input in a cache that is smaller than all the inputs together.
      jit: whether to compile ``fn``; False for what is not JAX, or compiled already.
      wait: blocks until the result that it is given, and all before, are there.
      repeats: batches to time.
      batch_ms: least duration of a batch, in milliseconds.
      budget_ms: once the batches took this long together, three of them are enough.

    Returns:
      Milliseconds for one call.

    Raises:
      ValueError: if ``repeats`` is not positive, or ``batch_ms`` is negative.
    """
    if repeats < 1 or batch_ms < 0:
        raise ValueError(
            f"timing.measure: expected repeats >= 1 and batch_ms >= 0, got {repeats}, {batch_ms}"
        )
    call = jax.jit(fn) if jit else fn
    inputs = [args, *rotate]
    turns = itertools.cycle(inputs)
    queue = _default_device().platform != "cpu"

    def run(launches: int) -> None:
        result = None
        for _ in range(launches):
            result = call(*next(turns))
            if not queue:
                wait(result)
        wait(result)

    return _sample(run, repeats, batch_ms, budget_ms)


def _sample(run: Callable[[int], None], repeats: int, batch_ms: float, budget_ms: float) -> Timing:
    """Times batches of ``run(launches)``, of which the first call may compile."""
    run(1)
    launches = _launches_for(run, batch_ms)
    samples: list[float] = []
    while len(samples) < repeats:
        samples.append(_elapsed_ms(run, launches))
        if sum(samples) > budget_ms and len(samples) >= _LEAST_REPEATS:
            break
    per_call = [sample / launches for sample in samples]
    return Timing(statistics.median(per_call), min(per_call), len(samples), launches)


def _launches_for(run: Callable[[int], None], batch_ms: float) -> int:
    """Calls that last ``batch_ms``; finding that out is also the warm-up."""
    launches = 1
    while True:
        elapsed = _elapsed_ms(run, launches)
        if elapsed >= batch_ms or launches == _MAX_LAUNCHES:
            return launches
        # Single calls pay for latencies that a batch hides, so the estimate grows by steps.
        growth = min(10.0, 1.2 * batch_ms / max(elapsed, 1e-6))
        launches = min(_MAX_LAUNCHES, math.ceil(launches * max(growth, 1.2)))


def _elapsed_ms(run: Callable[[int], None], launches: int) -> float:
    start = time.perf_counter()
    run(launches)
    return 1e3 * (time.perf_counter() - start)


def copy_bandwidth(nbytes: int | None = None, *, repeats: int = 7) -> float:
    """Measures what the memory of the current device gives to an element-wise pass.

    One pass reads an array and writes it, ``x + 1`` in place; both directions count. The fastest
    batch does, since this is a limit that others are measured against.

    Args:
      nbytes: size of the array; by default 256 MiB on a CPU and 2 GiB elsewhere, much larger
        than the caches.
      repeats: batches to time, as in ``measure``.

    Returns:
      GB/s, 10^9 bytes a second.
    """
    if nbytes is None:
        is_cpu = _default_device().platform == "cpu"
        nbytes = _CPU_COPY_BYTES if is_cpu else _ACCELERATOR_COPY_BYTES
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    array = jnp.zeros(max(1, nbytes // 4), jnp.float32)

    def run(launches: int) -> None:
        nonlocal array
        for _ in range(launches):
            array = step(array)
        array.block_until_ready()

    timing = _sample(run, repeats, batch_ms=20.0, budget_ms=2_000.0)
    return 2 * array.nbytes / timing.min_ms / 1e6


def device_description() -> dict[str, str | int]:
    """What a measurement must carry to be worth anything later.

    Returns:
      ``device`` (the accelerator's kind, or the processor's model), ``platform`` (``"cpu"`` or
      ``"gpu"``), ``jax``, ``jaxlib`` and ``jaxgnn`` versions, ``cpus`` that this process may use,
      and ``date``, the present moment in UTC in ISO format.
    """
    device = _default_device()
    return {
        "device": _processor() if device.platform == "cpu" else device.device_kind,
        "platform": device.platform,
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "jaxgnn": __version__,
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else _cpus(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _default_device() -> jax.Device:
    """Where an op without further instructions runs."""
    return next(iter(jnp.zeros(()).devices()))


def _cpus() -> int:
    return os.cpu_count() or 1


def _processor() -> str:
    """The model of the processor, as Linux has it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()
