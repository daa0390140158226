"""Times a layer of an equivariant potential in training on forces, beside other libraries.

``python -m experiments.benchmarks.equivariant_layer`` takes a radial network (8 Bessel functions,
two layers of 64, weights for each path and channel of an edge), harmonics of the edges, and the
convolution of their product with the features of the senders; the energy is the sum of squares of
the result. Rows have the milliseconds of the convolution, of energy and forces (the gradients to
vectors and features, as for a layer in the midst of a network), and of the gradient of a loss of
energy and forces to features and radial network, with the program's own memory.

Peers run where they are installed: e3nn-jax, cuequivariance-jax with its kernels, and
openequivariance with its extension for JAX. Each must have our energy, forces and loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks._atoms import ATOMS, Atoms
from experiments.benchmarks._command import command
from experiments.benchmarks._equivariant_peers import (
    PEERS,
    Convolution,
    check_candidates,
    check_equal,
)
from experiments.benchmarks._report import Column, Output, Row, append_rows, header, line
from experiments.benchmarks._workloads import Platform, Scale
from jaxgnn.equivariant import spherical_harmonics
from jaxgnn.nn import BesselBasis, polynomial_envelope
from jaxgnn.testing.timing import device_description, measure

_CUTOFF = 5.0
_HIDDEN = 64

COLUMNS = (
    Column("workload", "workload", 13),
    Column("candidate", "candidate", 16),
    Column("forward ms", "forward_ms", 10, ".3f"),
    Column("MB", "forward_mb", 6, ".0f"),
    Column("forces ms", "forces_ms", 10, ".3f"),
    Column("MB", "forces_mb", 6, ".0f"),
    Column("training ms", "training_ms", 11, ".3f"),
    Column("MB", "training_mb", 6, ".0f"),
)


@dataclass(frozen=True)
class Options(Output):
    """Settings of a run.

    Attributes:
      scale: "tiny", "small" or "full".
      candidates: which of "ours", "recomputed" (ours, whose kernels make the weights), "xla",
        "e3nn", "cuequivariance", "openequivariance"; those that are not installed are left out.
    """

    scale: Scale = "full"
    candidates: tuple[str, ...] = tuple(PEERS)

    def __post_init__(self):
        super().__post_init__()
        check_candidates("equivariant_layer", self.candidates, tuple(PEERS))


class Inputs(NamedTuple):
    """Arguments of a layer: kernels of the radial network, features, and vectors of the edges."""

    kernels: list[jax.Array]
    x: jax.Array
    vectors: jax.Array


def inputs(workload: Atoms) -> Inputs:
    """Random kernels and features, and vectors of lengths from 1 to 4.8."""
    rng, product = np.random.default_rng(0), workload.product()
    edges = workload.graph().num_edges
    shapes = (workload.features, _HIDDEN), (_HIDDEN, _HIDDEN), (_HIDDEN, product.num_weights)
    kernels = [rng.standard_normal(shape) / np.sqrt(shape[0]) for shape in shapes]
    vectors = rng.standard_normal((edges, 3))
    vectors *= rng.uniform(1, 4.8, (edges, 1)) / np.linalg.norm(vectors, axis=1, keepdims=True)
    x = rng.standard_normal((workload.nodes, product.irreps_in.dim))
    return Inputs([_single(k) for k in kernels], _single(x), _single(vectors))


def _single(array: np.ndarray) -> jax.Array:
    return jnp.asarray(array, jnp.float32)


def functions(workload: Atoms, run: Convolution) -> dict[str, Callable[..., Any]]:
    """The convolution, energy with forces, and the loss with its gradients, of ``Inputs``."""
    basis = BesselBasis(workload.features, _CUTOFF)
    irreps_sh = workload.product().irreps_sh

    def forward(kernels, x, vectors):
        lengths = jnp.sqrt(jnp.sum(jnp.square(vectors), axis=1))
        h = basis(lengths) * polynomial_envelope(lengths, _CUTOFF)[:, None]
        for kernel in kernels[:-1]:
            h = jax.nn.silu(h @ kernel)
        return run(x, spherical_harmonics(irreps_sh, vectors), h, kernels[-1])

    def energy(kernels, x, vectors):
        return workload.nodes * jnp.mean(jnp.square(forward(kernels, x, vectors)))

    def forces(kernels, x, vectors):
        return jax.value_and_grad(energy, (1, 2))(kernels, x, vectors)

    def loss(kernels, x, vectors):
        value, slopes = forces(kernels, x, vectors)
        return (value + sum(jnp.sum(jnp.square(s)) for s in slopes)) / workload.nodes

    return {"forward": forward, "forces": forces, "training": jax.value_and_grad(loss, (0, 1))}


def time_layer(workload: Atoms, name: str) -> Row:
    """Times one candidate; the fields of a row, with numbers by which candidates are compared."""
    peer, product = PEERS[name], workload.product()
    given = inputs(workload)
    arguments = given._replace(x=peer.layout(product.irreps_in, given.x))
    row: Row = {}
    run = peer.convolution(workload.graph(), product)
    for key, function in functions(workload, run).items():
        compiled = jax.jit(function).lower(*arguments).compile()
        row[f"{key}_ms"] = measure(compiled, *arguments, jit=False).median_ms
        row[f"{key}_mb"] = cast(Any, compiled.memory_analysis()).temp_size_in_bytes / 1e6
        numbers = jax.tree.leaves(compiled(*arguments))
        row[f"{key}_norms"] = [float(jnp.linalg.norm(number)) for number in numbers]
    return row


def main(options: Options) -> list[Row]:
    """Prints the table, and appends its rows to ``equivariant_layer.jsonl``."""
    device, rows = device_description(), []
    print(f"{device['device']}\n{header(COLUMNS)}")
    platform: Platform = "gpu" if device["platform"] == "gpu" else "cpu"
    for workload in ATOMS[platform, options.scale]:
        first = None
        for name in options.candidates:
            if not PEERS[name].is_installed:
                print(f"{name} is left out: {PEERS[name].package} is not installed")
                continue
            row: Row = {"op": "equivariant_layer", "workload": workload.name, "candidate": name}
            row |= {"nodes": workload.nodes, "irreps": workload.irreps, **device}
            row |= time_layer(workload, name)
            first = first or row
            check_equal(name, row, first)
            print(line(row, COLUMNS), flush=True)
            append_rows(options.rows / "equivariant_layer.jsonl", [row])
            rows.append(row)
    return rows


if __name__ == "__main__":
    command(main, Options, __doc__)
