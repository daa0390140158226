"""Times the first call of a program by part: tracing, lowering, compilation, autotuning.

Run ``python -m experiments.benchmarks.first_step``, on a CPU with ``--scale small``. Every program
runs in fresh processes, one after the other. Arrays and graphs are built before the clock starts.
The parts are:

- trace: Python runs the function with abstract values.
- lower: Python writes the program as StableHLO; ``mosaic`` is the part of it in which Mosaic GPU
  writes kernels, found by sampling the stack every 2 ms.
- xla: XLA compiles its own part of the program, without autotuning.
- kernels: Mosaic GPU compiles its kernels, ptxas included: a compilation without autotuning, minus
  a second one in the same process, which reuses the compiled kernels.
- autotune: a compilation with autotuning, minus one without it.
- run: the first run, minus the second one.
- total: the sum of these, the cost of the first call.
- another: the total of the same program for one more row, or for other edges, in the same process.
- cached: the total in a process that finds the program in JAX's persistent cache, written by the
  previous process.

On a CPU there are neither kernels of Mosaic GPU nor autotuning, and xla is the compilation.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

import jax

from experiments.benchmarks._command import command
from experiments.benchmarks._compilation import Program, Stages, measure_stages
from experiments.benchmarks._first_step_cases import CASES
from experiments.benchmarks._processes import in_new_process
from experiments.benchmarks._report import Column, Output, Row, append_rows, header, line
from experiments.benchmarks._workloads import Scale
from jaxgnn._errors import bad_input
from jaxgnn.testing.machine import read_cpu, share_of_others
from jaxgnn.testing.timing import device_description

_PARTS = ("trace", "lower", "mosaic", "xla", "kernels", "autotune", "run", "total")
_COLUMNS = (
    Column("program", "case", 16),
    Column("launches", "launches", 8, "d"),
    *(Column(f"{part} s", f"{part}_s", 10, ".2f") for part in (*_PARTS, "another", "cached")),
)
# A cache that stores every program, however small or quickly compiled.
_EVERYTHING = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


@dataclass(frozen=True)
class FirstStepOptions(Output):
    """Settings of a run.

    Attributes:
      scale: ``full`` for a GPU, ``small`` for a CPU, and ``tiny`` to check only that all
        runs.
      only: names of programs; by default all.
    """

    scale: Scale = "full"
    only: tuple[str, ...] = ()

    def check(self) -> None:
        """Raises ValueError for an unknown program."""
        for name in self.only:
            if name not in CASES[self.scale]:
                expected = f"of {', '.join(CASES[self.scale])}"
                raise bad_input("first_step", "--only", expected, name)


def main(options: FirstStepOptions) -> list[Row]:
    """Times all programs, prints the times, and appends them to ``first_step.jsonl``.

    Raises:
      ValueError: if an option is invalid.
    """
    options.check()
    rows: list[Row] = []
    print(header(_COLUMNS), flush=True)
    for name in options.only or CASES[options.scale]:
        row = _measure(options.scale, name)
        print(line(row, _COLUMNS), flush=True)
        append_rows(options.rows / "first_step.jsonl", [row])
        rows.append(row)
    return rows


def _measure(scale: Scale, name: str) -> Row:
    """The row of one program, measured in three processes."""
    with tempfile.TemporaryDirectory() as folder:
        cache = {"JAX_COMPILATION_CACHE_DIR": folder, **_EVERYTHING}
        first, another, common = in_new_process(_first_call, scale, name, environment=cache)
        cached = in_new_process(_cached_call, scale, name, environment=cache)
    return {
        "op": "first_step",
        "case": name,
        "what": CASES[scale][name].what,
        "scale": scale,
        "launches": first.kernels,
        **_seconds(first, common["platform"] != "cpu", scale, name),
        "another_s": None if another is None else another.total,
        "cached_s": cached.total,
        **common,
    }


def _seconds(first: Stages, is_gpu: bool, scale: Scale, name: str) -> Mapping[str, float | None]:
    """The columns of the parts; compilation is split by means of others without autotuning."""
    parts: dict[str, float | None] = {f"{part}_s": None for part in _PARTS}
    for part in ("trace", "lower", "run", "total"):
        parts[f"{part}_s"] = getattr(first, part)
    parts["xla_s"] = first.compile
    if is_gpu:
        untuned = {"XLA_FLAGS": os.environ.get("XLA_FLAGS", "") + " --xla_gpu_autotune_level=0"}
        whole, again = in_new_process(_two_compilations, scale, name, environment=untuned)
        parts |= {"xla_s": again, "kernels_s": whole - again, "mosaic_s": first.mosaic}
        parts["autotune_s"] = first.compile - whole
    return parts


# -- functions that run in separate processes -------------------------------------------------


def _first_call(scale: Scale, name: str) -> tuple[Stages, Stages | None, Row]:
    """The first call, that of another size, and a description of the machine."""
    before = read_cpu()
    case = CASES[scale][name]
    stages = measure_stages(_ready(case.make()))
    another = None if case.make_another is None else measure_stages(_ready(case.make_another()))
    common = {**device_description(), "others": share_of_others(before, read_cpu())}
    return stages, another, common


def _cached_call(scale: Scale, name: str) -> Stages:
    """The first call, in this process, of a program that another process has compiled."""
    return measure_stages(_ready(CASES[scale][name].make()))


def _two_compilations(scale: Scale, name: str) -> tuple[float, float]:
    """Seconds of the first compilation in a process, and of a second one of the same program."""
    program = _ready(CASES[scale][name].make())
    first = measure_stages(program).compile
    # A new function, so that it is traced, lowered and compiled again.
    again = measure_stages(Program(lambda *args: program.function(*args), program.args)).compile
    return first, again


def _ready(program: Program) -> Program:
    """The program with all its arrays computed and on the device."""
    args = jax.block_until_ready(jax.device_put(program.args))
    return Program(program.function, args)


if __name__ == "__main__":
    command(main, FirstStepOptions, __doc__)
