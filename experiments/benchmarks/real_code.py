"""Times networks in the style of their users as they are, and under ``jaxgnn.fuse``.

``python -m experiments.benchmarks.real_code`` builds each network of ``experiments._user_models``,
of Haiku, Flax Linen, jraph, e3nn-jax and plain JAX, and prints a line for each size and direction:
milliseconds as written and fused, their ratio, the ratio that ``explain`` gives for the forward
pass, the peak memory that XLA plans for both, seconds for compilation, and the rules that applied.
Rows are appended to ``real_code.jsonl``; they also have the seconds for tracing and rewriting.

Edge lists are arguments of both programs, as by ``jaxgnn.fuse.jit``. A network whose packages are
not installed is named and left out.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from experiments._user_models import MODELS, Size, UserModel, user_model
from experiments.benchmarks._command import command
from experiments.benchmarks._report import Column, Output, Row, append_rows, header, line
from jaxgnn._errors import bad_input
from jaxgnn.fusion import Explanation, explain, fuse
from jaxgnn.fusion.program.constants import opened
from jaxgnn.testing.timing import (
    Candidate,
    device_description,
    is_out_of_memory,
    measure_in_turns,
)

Function = Callable[..., Any]


@dataclass(frozen=True)
class RealCodeOptions(Output):
    """Options of the benchmark.

    Attributes:
      models: names of networks; all if left out.
      sizes: ``cpu`` or ``gpu`` for the sizes of the networks; those of this platform if left out.
      divide: number by which nodes are divided, for a quick look.
      budget: milliseconds of timing for each line.
    """

    models: tuple[str, ...] = ()
    sizes: str = ""
    divide: int = 1
    budget: float = 1_000.0

    def check(self) -> None:
        """Raises ValueError for an unknown network, unknown sizes, and a divisor below 1."""
        for name in self.models:
            if name not in MODELS:
                raise bad_input("real_code", "--models", f"among {', '.join(MODELS)}", repr(name))
        if self.sizes not in ("", "cpu", "gpu"):
            raise bad_input("real_code", "--sizes", "cpu or gpu", repr(self.sizes))
        if self.divide < 1:
            raise bad_input("real_code", "--divide", "at least 1", self.divide)

    def cases(self) -> Iterator[tuple[str, Size]]:
        """The chosen networks, each at each of its sizes."""
        platform = self.sizes or ("cpu" if jax.default_backend() == "cpu" else "gpu")
        for name in self.models or MODELS:
            for size in getattr(MODELS[name], platform):
                nodes = max(size.nodes // self.divide, size.degree + 1)
                yield name, dataclasses.replace(size, nodes=nodes)


@dataclass(frozen=True)
class Compiled:
    """A compiled program, for a row.

    Attributes:
      candidate: the program with its arguments; None if it did not fit into memory.
      seconds: time of tracing, rewriting and compilation.
      planned: bytes of arguments, results and temporary arrays; None if XLA did not plan them.
    """

    candidate: Candidate | None
    seconds: float
    planned: int | None


def rows_of_model(name: str, size: Size, options: RealCodeOptions) -> Iterator[Row]:
    """Yields a row for each direction of a network: forward, and with all gradients."""
    model = user_model(name, size)
    explanation, seconds = _explained(model)
    for direction in ("forward", "gradient"):
        row: Row = {"model": name, "direction": direction} | dataclasses.asdict(size) | seconds
        row["rules"] = dict(collections.Counter(a.rule for a in explanation.findings.applied))
        candidates = {}
        for which, function in (("written", model.run), ("fused", fuse(model.run))):
            made = _compiled(function if direction == "forward" else _gradient(function), model)
            row |= {f"{which}_compile_s": made.seconds, f"{which}_bytes": made.planned}
            row[f"{which}_ms"] = None
            if made.candidate is not None:
                candidates[which] = made.candidate
        times = measure_in_turns(candidates, budget_ms=options.budget)
        for which, timing in times.items():
            if timing is not None:
                row |= {f"{which}_ms": timing.median_ms, f"{which}_least_ms": timing.min_ms}
        if direction == "forward":
            row["explained"] = _explained_ratio(explanation)
        yield row


def _explained(model: UserModel) -> tuple[Explanation, Row]:
    """The explanation, with the seconds for tracing, for the first rewrite and for another one."""
    seconds: Row = {}
    for key in ("first_rewrite_s", "rewrite_s"):
        start = time.perf_counter()
        explain(model.run, *model.arrays, measure=False)
        seconds[key] = time.perf_counter() - start
    start = time.perf_counter()
    jax.make_jaxpr(model.run)(*model.arrays)
    seconds["tracing_s"] = time.perf_counter() - start
    return explain(model.run, *model.arrays), seconds


def _explained_ratio(explanation: Explanation) -> float | None:
    """The ratio of times that an explanation tells; None if nothing was rewritten."""
    measured = explanation.measured
    if measured is None or measured.before_ms is None or measured.after_ms is None:
        return None
    return measured.before_ms / measured.after_ms


def _gradient(function: Function) -> Function:
    """The gradients of a number with respect to all floats."""

    def total(arrays: Any) -> Any:
        made = jax.tree.leaves(function(*arrays))
        return sum(jnp.sum(leaf.astype(jnp.float32) ** 2) for leaf in made)

    return lambda *arrays: jax.value_and_grad(total)(arrays)


def _compiled(function: Function, model: UserModel) -> Compiled:
    """Compiles a function of the arrays of a model."""
    start, planned = time.perf_counter(), None
    try:
        parts = opened(jax.jit(function).trace(*model.arrays))
        args = parts.constants, *jax.tree.leaves(model.arrays)
        program = jax.jit(parts.run).lower(*args).compile()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return Compiled(None, time.perf_counter() - start, planned)
    seconds = time.perf_counter() - start
    analysis: Any = program.memory_analysis()
    planned = (
        analysis.argument_size_in_bytes
        + analysis.output_size_in_bytes
        + analysis.temp_size_in_bytes
    )
    return Compiled(Candidate(program, [args], jit=False), seconds, planned)


def _ratio(before: str, after: str) -> Callable[[Row], float | None]:
    def ratio(row: Row) -> float | None:
        numbers = row.get(before), row.get(after)
        return None if None in numbers or not numbers[1] else numbers[0] / numbers[1]

    return ratio


def _megabytes(key: str) -> Callable[[Row], float | None]:
    return lambda row: None if row[key] is None else row[key] / 1e6


COLUMNS = (
    Column("model", "model", 14),
    Column("nodes", "nodes", 6),
    Column("degree", "degree", 6),
    Column("width", "width", 5),
    Column("dtype", "dtype", 8),
    Column("direction", "direction", 9),
    Column("written ms", "written_ms", 10, ".4g"),
    Column("fused ms", "fused_ms", 9, ".4g"),
    Column("ratio", _ratio("written_ms", "fused_ms"), 5, ".2f"),
    Column("explained", lambda row: row.get("explained"), 9, ".2f"),
    Column("MB", _megabytes("written_bytes"), 7, ".0f"),
    Column("fused MB", _megabytes("fused_bytes"), 8, ".0f"),
    Column("compile s", "written_compile_s", 9, ".2f"),
    Column("fused s", "fused_compile_s", 7, ".2f"),
    Column("rewrite s", "first_rewrite_s", 9, ".2f"),
    Column(" rules", lambda row: " " + ", ".join(f"{r} {n}" for r, n in row["rules"].items()), 1),
)


def rows_of(options: RealCodeOptions) -> Iterator[Row]:
    """Yields the rows of all networks whose packages are installed; prints which are left out."""
    for name, size in options.cases():
        missing = MODELS[name].missing
        if missing:
            print(f"{name:14}  left out: {', '.join(missing)} not installed", flush=True)
            continue
        for row in rows_of_model(name, size, options):
            yield row | device_description()


def main(options: RealCodeOptions) -> None:
    """Prints and appends the rows."""
    options.check()
    print(header(COLUMNS), flush=True)
    for row in rows_of(options):
        print(line(row, COLUMNS), flush=True)
        append_rows(options.rows / "real_code.jsonl", [row])


if __name__ == "__main__":
    command(main, RealCodeOptions, __doc__)
