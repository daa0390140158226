"""Times of the parts of a compilation, by JAX's ahead-of-time calls and stack samples.

``jax.jit(f).trace(...)``, ``.lower()`` and ``.compile()`` are timed by the clock. The share of
Mosaic GPU in the lowering is sampled: a thread inspects the main thread's stack every few
milliseconds.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple

import jax

_INTERVAL = 0.002
_KERNEL = "mosaic_gpu"


class Stages(NamedTuple):
    """Seconds of the parts of a first call.

    Attributes:
      trace: time in which Python runs the function with abstract values.
      lower: time in which the program is written as StableHLO, kernels included.
      mosaic: part of ``lower`` in which Mosaic GPU writes kernels.
      compile: time in which XLA compiles the program, and Mosaic GPU its kernels.
      run: the first run's time minus the second one's.
      kernels: number of launches of Mosaic GPU kernels in the program.
    """

    trace: float
    lower: float
    mosaic: float
    compile: float
    run: float
    kernels: int

    @property
    def total(self) -> float:
        """Seconds of the first call minus those of the second one."""
        return self.trace + self.lower + self.compile + self.run


@dataclass(frozen=True)
class Program:
    """A function, and arrays to call it with."""

    function: Callable[..., Any]
    args: tuple[Any, ...]


def measure_stages(program: Program) -> Stages:
    """Compiles and runs a program, stage by stage."""
    started = time.perf_counter()
    traced = jax.jit(program.function).trace(*program.args)
    traced_at = time.perf_counter()
    with _StackSamples(_KERNEL) as samples:
        lowered = traced.lower()
    lowered_at = time.perf_counter()
    compiled = lowered.compile()
    compiled_at = time.perf_counter()
    first, second = (_seconds(compiled, program.args) for _ in range(2))
    return Stages(
        trace=traced_at - started,
        lower=lowered_at - traced_at,
        mosaic=samples.seconds,
        compile=compiled_at - lowered_at,
        run=max(first - second, 0.0),
        kernels=lowered.as_text().count(_KERNEL + "_v"),
    )


def _seconds(run: Callable[..., Any], args: tuple[Any, ...]) -> float:
    started = time.perf_counter()
    jax.block_until_ready(run(*args))
    return time.perf_counter() - started


class _StackSamples:
    """Counts the time in which the calling thread is in a file whose path contains ``part``.

    The sampling thread needs Python's lock, as the calling thread does. A sample therefore counts
    for all the time since the previous one.
    """

    def __init__(self, part: str):
        self.seconds = 0.0
        self._part = part
        self._thread = threading.Thread(target=self._look, args=(threading.get_ident(),))
        self._done = threading.Event()

    def __enter__(self) -> _StackSamples:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._done.set()
        self._thread.join()

    def _look(self, caller: int) -> None:
        before = time.perf_counter()
        while not self._done.wait(_INTERVAL):
            now = time.perf_counter()
            if _is_within(sys._current_frames().get(caller), self._part):
                self.seconds += now - before
            before = now


def _is_within(frame: FrameType | None, part: str) -> bool:
    while frame is not None:
        if part in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False
