"""Times functions, and measures the copy bandwidth of the device, for benchmarks.

``measure`` describes what a time includes. ``measure_in_turns`` compares functions, which take
turns batch by batch. ``speed_ratio`` is the ratio of two times, with its uncertainty.
"""

from __future__ import annotations

import itertools
import math
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib

from jaxgnn._version import __version__
from jaxgnn.testing.machine import CpuReading, read_cpu, share_of_others
from jaxgnn.testing.programs import program_fingerprint

_MAX_LAUNCHES = 10_000
_LEAST_REPEATS = 3
_CPU_COPY_BYTES = 2**28
_ACCELERATOR_COPY_BYTES = 2**31


@dataclass(frozen=True)
class Timing:
    """The time of one call: the median of all batches, the least one, and the quartiles."""

    median_ms: float
    min_ms: float
    repeats: int  # batches that were timed
    launches: int  # calls in each batch
    low_ms: float
    high_ms: float
    others: float | None = None  # part of the cores that others used, 0 to 1; None if unknown
    program: str | None = None  # fingerprint of the program; None where it was not compared


@dataclass(frozen=True)
class Candidate:
    """One way to compute something.

    Attributes:
      run: the function; arrays in, arrays out.
      inputs: sets of its arguments, of the same shapes. Calls take turns over all of them, so that
        no call finds its input in a cache that is smaller than all the inputs together.
      jit: whether JAX compiles it; False if it is not JAX, or compiled already.
      wait: blocks until the given result, and all before it, are ready.
    """

    run: Callable
    inputs: Sequence[tuple]
    jit: bool = True
    wait: Callable[[Any], Any] = jax.block_until_ready


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
      fn: the function to time; arrays in, arrays out.
      *args: its arguments.
      rotate: further tuples of arguments, as the ``inputs`` of a ``Candidate``.
      jit: as in a ``Candidate``.
      wait: as in a ``Candidate``.
      repeats: batches to time.
      batch_ms: least duration of a batch, in milliseconds.
      budget_ms: total time of the batches after which three of them are enough.

    Returns:
      Milliseconds for one call.

    Raises:
      ValueError: if ``repeats`` is not positive, or ``batch_ms`` is negative.
    """
    series = _Series(_batches(Candidate(fn, [args, *rotate], jit, wait)))
    others = _take_turns([series], repeats, batch_ms, budget_ms)
    return replace(series.timing(), others=others)


def measure_in_turns(
    candidates: Mapping[str, Candidate],
    *,
    repeats: int = 7,
    batch_ms: float = 20.0,
    budget_ms: float = 2_000.0,
) -> dict[str, Timing | None]:
    """Times candidates that are to be compared, each as ``measure`` does.

    After all were compiled and warmed up, each runs one batch, then each its second in the reverse
    order, and so on, so that none always follows the same other. Rising clocks and other drift then
    affect all candidates equally; if candidates were timed one after the other, drift would look
    like a difference. Between its batches no result of a candidate is kept.

    Candidates that JAX compiles to the same program, and that have the same inputs, are timed once,
    and all of them get that time: see ``jaxgnn.testing.same_program``.

    Args:
      candidates: candidates by name.
      repeats: number of batches of each candidate.
      batch_ms: as for ``measure``.
      budget_ms: as for ``measure``, for the batches of all candidates together.

    Returns:
      Milliseconds for one call, by name in the order of ``candidates``, of as many batches each;
      None for a candidate for which the device has too little memory.

    Raises:
      ValueError: if ``repeats`` is not positive, or ``batch_ms`` is negative.
    """
    programs: dict[str, str | None] = {}
    series: dict[str, _Series] = {}
    distinct: dict[tuple, _Series] = {}  # Keys are program and inputs; each pair is timed once.
    for name, candidate in candidates.items():
        program = programs[name] = _program(candidate)
        inputs = [id(leaf) for leaf in jax.tree.leaves(candidate.inputs)]
        work = (name,) if program is None else (program, *inputs)
        new = _Series(_batches(candidate), memory_may_run_out=True)
        series[name] = distinct.setdefault(work, new)
    others = _take_turns(list(distinct.values()), repeats, batch_ms, budget_ms)
    timings = {name: None if one.failed else one.timing() for name, one in series.items()}
    return {
        name: timing and replace(timing, others=others, program=programs[name])
        for name, timing in timings.items()
    }


def _program(candidate: Candidate) -> str | None:
    """The fingerprint of the compiled candidate; None if JAX does not compile it.

    If memory runs out there is none, and later calls report the error.
    """
    run = jax.jit(candidate.run) if candidate.jit else candidate.run
    try:
        if isinstance(run, jax.stages.Compiled):
            return program_fingerprint(run)
        if hasattr(run, "lower"):
            return program_fingerprint(run.lower(*candidate.inputs[0]).compile())
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    return None


@dataclass(frozen=True)
class SpeedRatio:
    """Ratio of two times, the baseline's over the other, by their medians and quartiles."""

    ratio: float
    low: float
    """Lower quartile of the baseline, divided by the upper quartile of the other."""
    high: float
    """Upper quartile of the baseline, divided by the lower quartile of the other."""
    same_program: bool = False
    """True if both compile to the same program, so that the ratio is noise."""

    def __str__(self) -> str:
        """``1.85``, or ``same program``, or ``≈ same`` where the quartiles of both overlap."""
        if self.same_program:
            return "same program"
        return "≈ same" if self.low <= 1 <= self.high else f"{self.ratio:.2f}"


def speed_ratio(baseline: Timing, timing: Timing) -> SpeedRatio:
    """Returns how many times faster ``timing`` is than ``baseline``, with its quartiles."""
    return SpeedRatio(
        baseline.median_ms / timing.median_ms,
        baseline.low_ms / timing.high_ms,
        baseline.high_ms / timing.low_ms,
        same_program=timing.program is not None and timing.program == baseline.program,
    )


def kernel_time(candidate: Candidate, calls: int = 20) -> float | None:
    """Milliseconds of the kernels and copies of one call, added up, without the gaps between them.

    This is the cost of a call that is one of many in a program, where the device does not wait for
    the host between its kernels. The profiler counts all work of this process on the device during
    ``calls`` calls. The result is None on a CPU, and where the profiler records no kernel.
    """
    if _default_device().platform == "cpu":
        return None
    run = _batches(candidate)
    run(len(candidate.inputs))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            run(calls)
        traces = sorted(Path(folder).rglob("*.xplane.pb"))
        busy = sum(busy_ns(jax.profiler.ProfileData.from_file(str(trace))) for trace in traces)
    return busy / calls / 1e6 or None


def busy_ns(profile: Any) -> float:
    """Nanoseconds of all kernels and copies of a ``jax.profiler.ProfileData``, added up."""
    lines = [line for plane in profile.planes if "GPU" in plane.name for line in plane.lines]
    streams = [line for line in lines if "Stream" in line.name]
    return sum(event.duration_ns for line in streams for event in line.events)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Returns whether JAX or torch raised the error because the device is out of memory."""
    text = str(error)
    return "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower()


def _batches(candidate: Candidate) -> Callable[[int], None]:
    """``run(launches)``, which calls the candidate that many times; the first call may compile."""
    call = jax.jit(candidate.run) if candidate.jit else candidate.run
    turns = itertools.cycle(candidate.inputs)
    queue = _default_device().platform != "cpu"

    def run(launches: int) -> None:
        result = None
        for _ in range(launches):
            result = call(*next(turns))
            if not queue:
                candidate.wait(result)
        candidate.wait(result)

    return run


@dataclass
class _Series:
    """The batches of one function; ``run(launches)`` runs one, and may compile at first."""

    run: Callable[[int], None]
    memory_may_run_out: bool = False  # If set, out of memory ends this series alone.
    launches: int = 0  # in each batch; 0 before the warm-up
    samples: list[float] = field(default_factory=list)  # milliseconds of each batch
    failed: bool = False  # because memory ran out

    def take_turn(self, batch_ms: float) -> None:
        """Runs the warm-up at the first call, and a batch at later ones."""
        if self.failed:
            return
        try:
            if self.launches:
                self.samples.append(_elapsed_ms(self.run, self.launches))
            else:
                self.run(1)
                self.launches = _launches_for(self.run, batch_ms)
        except RuntimeError as error:  # jax.errors.JaxRuntimeError and torch.OutOfMemoryError
            if not (self.memory_may_run_out and is_out_of_memory(error)):
                raise
            self.failed = True

    def timing(self) -> Timing:
        per_call = [sample / self.launches for sample in self.samples]
        low, median, high = quartiles(per_call)
        return Timing(median, min(per_call), len(per_call), self.launches, low, high)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile of at least one number."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, median, high


def _take_turns(
    series: Sequence[_Series], repeats: int, batch_ms: float, budget_ms: float
) -> float | None:
    """Warms up all series, then runs one batch of each until ``repeats`` or the budget is reached.

    Returns the part of the cores that others used after the warm-up; None if it is not known.
    """
    if repeats < 1 or batch_ms < 0:
        raise ValueError(
            f"timing.measure: expected repeats >= 1 and batch_ms >= 0, got {repeats}, {batch_ms}"
        )
    before: CpuReading | None = None
    for turn in range(1 + repeats):
        # The order alternates: in step with the turns of another process, one series would always
        # be the slower one.
        for one in series if turn % 2 else reversed(series):
            one.take_turn(batch_ms)
        before = before or read_cpu()
        spent = sum(sum(one.samples) for one in series)
        if turn >= _LEAST_REPEATS and spent > budget_ms:
            break
    return None if before is None else share_of_others(before, read_cpu())


def _launches_for(run: Callable[[int], None], batch_ms: float) -> int:
    """Calls that last ``batch_ms``; the search for their number is also the warm-up."""
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
    """Measures the memory bandwidth of an element-wise pass on the current device.

    One pass reads an array and writes it, ``x + 1`` in place; both directions count. The fastest
    batch counts, since the result is a limit for other measurements.

    Args:
      nbytes: size of the array; by default 256 MiB on a CPU and 2 GiB elsewhere, much larger
        than the caches.
      repeats: number of batches to time.

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

    series = _Series(run)
    _take_turns([series], repeats, batch_ms=20.0, budget_ms=2_000.0)
    return 2 * array.nbytes / series.timing().min_ms / 1e6


def device_description() -> dict[str, str | int]:
    """Describes the device and software, to be stored with each measurement.

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
        "cpus": read_cpu().cores,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _default_device() -> jax.Device:
    """The device on which ops run by default."""
    return next(iter(jnp.zeros(()).devices()))


def _processor() -> str:
    """The model of the processor, as Linux has it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()
