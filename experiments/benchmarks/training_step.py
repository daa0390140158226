"""Times a whole training step: the same MaxK-GraphSAGE with ReLU, and with MaxK at every k.

Run ``python -m experiments.benchmarks.training_step``. A step is forward, backward and Adam, on a
synthetic graph of published size; ``implementation=None`` selects the kernels. The steps take
turns. With ``--plain-layers`` the linear layers are ``x @ kernel + bias``, and all else is the
same. Memory is that planned by XLA for the compiled step: temporaries, arguments and results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from experiments.benchmarks._command import command
from experiments.benchmarks._layers import traced_with, with_plain_layers
from experiments.benchmarks._ratios import (
    print_warnings,
    ratio_fields,
    ratio_text,
    timing_fields,
)
from experiments.benchmarks._report import Column, Output, Row, append_rows, header, line
from experiments.benchmarks._session import Session
from experiments.benchmarks._workloads import build_graph
from jaxgnn._errors import bad_input
from jaxgnn.datasets import SCALES, synthetic
from jaxgnn.graph import CSRGraph, Normalization
from jaxgnn.models import MaxKGNN
from jaxgnn.testing.timing import Candidate

_COLUMNS = (
    Column("graph", "workload", 9),
    Column("layers", "linear", 7),
    Column("activation", "activation", 10),
    Column("k", "k", 3, "d"),
    Column("ms", "ms", 10, ".2f"),
    Column("25 %", "low_ms", 10, ".2f"),
    Column("75 %", "high_ms", 10, ".2f"),
    Column("x relu", partial(ratio_text, baseline="relu"), 12, "s"),
    Column("MiB", "memory_mib", 9, ".0f"),
)
_NORMALIZATIONS: dict[str, Normalization] = {"sage": "mean", "gcn": "sym"}
_MEMORY = ("temp_size_in_bytes", "argument_size_in_bytes", "output_size_in_bytes")


@dataclass(frozen=True)
class TrainingStepOptions(Output):
    """Settings of a run.

    Attributes:
      scale: a synthetic graph of ``jaxgnn.datasets``.
      layers: number of convolutions.
      kind: kind of network: ``"sage"``, ``"gcn"`` or ``"gin"``.
      hidden: width of the hidden layers.
      ks: entries that MaxK keeps of each row.
      dtype: dtype of the features and activations.
      plain_layers: use linear layers in plain JAX.
    """

    scale: Literal["tiny", "flickr", "reddit", "products"] = "reddit"
    kind: Literal["sage", "gcn"] = "sage"
    layers: int = 4
    hidden: int = 256
    ks: tuple[int, ...] = (16, 32, 64)
    dtype: str = "float32"
    plain_layers: bool = False

    def check(self) -> None:
        """Raises ValueError for the first invalid option, by the name that is typed."""
        for name, value in (("--layers", self.layers), ("--hidden", self.hidden)):
            if value < 1:
                raise bad_input("training_step", name, "at least 1", value)
        for k in self.ks:
            if not 1 <= k <= self.hidden:
                raise bad_input("training_step", "--ks", f"in 1..{self.hidden} (--hidden)", k)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Data:
    """One graph with its features and labels."""

    graph: CSRGraph
    features: jax.Array
    labels: jax.Array


def main(options: TrainingStepOptions, session: Session | None = None) -> list[Row]:
    """Times all steps, prints the times, and appends them to ``training_step.jsonl``.

    Raises:
      ValueError: if an option is invalid.
    """
    options.check()
    session = session or Session((), options.rows)
    data = load(options)
    ks = (None, *options.ks)
    steps = {}
    for k in ks:
        print(f"compiling {'relu' if k is None else f'maxk, k = {k}'}", flush=True)
        steps[k] = _compile(options, data, k)
    candidates = {str(k): Candidate(*steps[k], jit=False) for k in ks}
    timings = session.time_in_turns(candidates)
    rows: list[Row] = []
    print(header(_COLUMNS))
    for k in ks:
        timing, relu = timings[str(k)], timings[str(None)]
        times = {**timing_fields(timing), **ratio_fields("relu", relu, timing)}
        memory = {"memory_mib": _planned_mib(steps[k][0])}
        row = {**_labels(options, data, k), **times, **memory, **session.device}
        print(line(row, _COLUMNS), flush=True)
        rows.append(row)
    append_rows(session.out / "training_step.jsonl", rows)
    print_warnings(row["others"] for row in rows)
    return rows


def load(options: TrainingStepOptions) -> Data:
    """Builds the synthetic graph, prepared and normalised, with its features and labels."""
    data = synthetic(options.scale, on_device=jax.default_backend() != "cpu")
    graph = build_graph(data.senders, data.receivers, SCALES[options.scale].nodes)
    features = jnp.asarray(data.features).astype(options.dtype)
    return Data(graph.normalized(_NORMALIZATIONS[options.kind]), features, jnp.asarray(data.labels))


def _compile(
    options: TrainingStepOptions, data: Data, k: int | None
) -> tuple[jax.stages.Compiled, list[tuple]]:
    """A compiled step, and its arguments."""
    state, step = make_step(options, data, k)
    if options.plain_layers:
        step = traced_with(with_plain_layers, step)
    return jax.jit(step).lower(state, data).compile(), [(state, data)]


def _planned_mib(compiled: jax.stages.Compiled) -> float | None:
    """MiB that XLA plans for a step: temporaries, arguments and results."""
    planned = compiled.memory_analysis()
    return planned and sum(getattr(planned, name) for name in _MEMORY) / 2**20


def _labels(options: TrainingStepOptions, data: Data, k: int | None) -> Row:
    """Fields that identify a row."""
    return {
        "op": "training_step",
        "workload": options.scale,
        "nodes": data.graph.num_rows,
        "edges": data.graph.num_edges,
        "layers": options.layers,
        "dim": options.hidden,
        "dtype": options.dtype,
        "kind": options.kind,
        "linear": "plain" if options.plain_layers else "fused",
        "activation": "relu" if k is None else "maxk",
        "k": k,
    }


def make_step(options: TrainingStepOptions, data: Data, k: int | None) -> tuple[tuple, Callable]:
    """The state before a step, and ``(state, data) -> (state, loss)``; ReLU if k is None."""
    model = MaxKGNN(
        data.features.shape[1],
        options.hidden,
        int(data.labels.max()) + 1,
        num_layers=options.layers,
        kind=options.kind,
        activation="relu" if k is None else "maxk",
        k=k,
        dropout=0.5,
        kernel_mode="auto",
        dtype=jnp.dtype(options.dtype),
        rngs=nnx.Rngs(0),
    )
    graphdef, params, other = nnx.split(model, nnx.Param, ...)
    optimizer = optax.adam(0.01)

    def loss_of(params, other, data, count):
        key = jax.random.fold_in(jax.random.key(0), count)
        network = nnx.merge(graphdef, params, other)
        logits = network(data.graph, data.features, rngs=nnx.Rngs(dropout=key))
        return optax.softmax_cross_entropy_with_integer_labels(
            logits.astype(jnp.float32), data.labels
        ).mean()

    def step(state, data):
        params, other, optimizer_state, count = state
        loss, gradient = jax.value_and_grad(loss_of)(params, other, data, count)
        # Optax mixes dtypes, which JAX refuses under strict promotion.
        with jax.numpy_dtype_promotion("standard"):
            updates, optimizer_state = optimizer.update(gradient, optimizer_state, params)
            params = optax.apply_updates(params, updates)
        return (params, other, optimizer_state, count + 1), loss

    return (params, other, optimizer.init(params), jnp.zeros((), jnp.int32)), step


if __name__ == "__main__":
    command(main, TrainingStepOptions, __doc__)
