"""Times and ratios of a row: their spread, and text that compares two times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from experiments.benchmarks._report import Row
from jaxgnn.testing.machine import busy_warning, gpu_warning
from jaxgnn.testing.timing import SpeedRatio, Timing, speed_ratio

_DIGITS = 16


def timing_fields(timing: Timing | None) -> Row:
    """Fields of a measurement in a row; all None if it ran out of memory."""
    return {
        "ms": timing and timing.median_ms,
        "min_ms": timing and timing.min_ms,
        "low_ms": timing and timing.low_ms,
        "high_ms": timing and timing.high_ms,
        "repeats": timing and timing.repeats,
        "others": timing and timing.others,
        "program": timing and timing.program and timing.program[:_DIGITS],
    }


def ratio_fields(baseline: str, theirs: Timing | None, ours: Timing | None) -> Row:
    """Fields of a comparison in a row: the ratio, its interval, and whether it is one program.

    Args:
      baseline: name of the baseline, with which the keys end.
      theirs: the time of the baseline; None if there is none.
      ours: the time of the row; the same object as ``theirs`` in the row of the baseline.
    """
    ratio = None if theirs is None or ours is None else speed_ratio(theirs, ours)
    if ratio is not None and theirs is ours:
        ratio = SpeedRatio(1.0, 1.0, 1.0, same_program=True)
    return {
        f"speedup_over_{baseline}": ratio and ratio.ratio,
        f"speedup_low_over_{baseline}": ratio and ratio.low,
        f"speedup_high_over_{baseline}": ratio and ratio.high,
        f"same_program_as_{baseline}": ratio and ratio.same_program,
    }


def ratio_text(row: Row, baseline: str) -> str | None:
    """A stored comparison in the format of ``SpeedRatio``; None if there is none.

    The row of the baseline itself has 1. Old rows, written before ratios had intervals, have the
    ratio only.
    """
    ratio = row.get(f"speedup_over_{baseline}")
    if ratio is None:
        return None
    low, high = (row.get(f"speedup_{end}_over_{baseline}") or ratio for end in ("low", "high"))
    if low == ratio == high == 1:
        return "1"
    same = bool(row.get(f"same_program_as_{baseline}"))
    return str(SpeedRatio(ratio, low, high, same_program=same))


def below_forward(rows: Iterable[Row]) -> Iterator[str]:
    """A warning for each forward pass that took longer than the same with its gradients.

    Such times are of launches by the host, or of a machine that was busy.
    """
    keys = ("op", "workload", "dtype", "k", "implementation")
    forward: dict[tuple, float] = {}
    for row in rows:
        key, ms = tuple(row[name] for name in keys), row["ms"]
        if ms is not None and row["direction"] == "forward":
            forward[key] = ms
        elif ms is not None and row["direction"] == "forward+backward" and ms < forward.get(key, 0):
            where = " ".join(str(value) for value in key if value is not None)
            yield (
                f"warning: {where}: {ms:.3f} ms with gradients is less than {forward[key]:.3f} ms "
                "without: times of launches or of a busy machine; compare the kernels"
            )


def print_warnings(shares: Iterable[float | None]) -> None:
    """Prints a warning if other processes used the cores or the GPU during the measurements.

    Args:
      shares: share of the cores that others used, of each measurement; None if unknown.
    """
    for text in (busy_warning(shares), gpu_warning()):
        if text is not None:
            print(text, flush=True)
