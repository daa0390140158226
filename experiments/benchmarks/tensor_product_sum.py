"""Times ``ops.tensor_product_sum`` against plain JAX, and against e3nn-jax where it is installed.

Run ``python -m experiments.benchmarks.tensor_product_sum``. Rows: the sums, with the gradients to
all arrays; and forces, which are the gradient of an energy to the vectors of the edges, with the
gradient of a loss of forces to features and radial network. Bytes: the structure, harmonics and
weights, a gathered row for each edge, and the result, once for each sum or product of the edges.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from experiments.benchmarks._atoms import ATOMS, Atoms
from experiments.benchmarks._cases import DIRECTIONS, Case, Differentiable, implementations
from experiments.benchmarks._command import command
from experiments.benchmarks._session import Options, Session, run_op
from experiments.benchmarks._workloads import input_sets
from jaxgnn import ops
from jaxgnn.equivariant import TensorProduct, spherical_harmonics
from jaxgnn.graph import CSRGraph
from jaxgnn.testing.timing import Candidate

# Sums over nodes, and products at edges. Forces: the sums, and two gradients to edges; then for the
# loss two sums at each end, one more at the senders, and two gradients to weights.
PASSES = {
    ("tensor_product_sum", "forward"): 1,
    ("tensor_product_sum", "forward+backward"): 4,
    ("tensor_product_sum_forces", "forward"): 3,
    ("tensor_product_sum_forces", "forward+backward"): 10,
}

Sums = Callable[[CSRGraph, Any, Any, Any], Any]
"""``f(graph, x, harmonics, weights)``."""


def bytes_moved(workload: Atoms, edges: int, itemsize: int, passes: int) -> int:
    """Structure, gathered rows, results, and the arrays of edges, once for each pass."""
    product, nodes = workload.product(), workload.nodes
    of_edges = product.irreps_sh.dim + product.num_weights + product.irreps_in.dim
    of_nodes = product.irreps_out.dim
    return passes * (4 * (nodes + edges) + itemsize * (edges * of_edges + nodes * of_nodes))


def cases(workload: Atoms) -> Iterator[Case]:
    """Yields every row, dtype and direction; the gradient is timed with the forward."""
    graph, product = workload.graph(), workload.product()
    for row, build in ROWS.items():
        for dtype in workload.dtypes:
            inputs = _inputs(workload, graph, row, dtype)
            for direction in ("forward", "forward+backward"):

                def of(name, build=build):
                    return build(_ours(product, name), product)

                candidates = implementations(of, direction, inputs)
                if importlib.util.find_spec("e3nn_jax") is not None:
                    run = DIRECTIONS[direction](build(_of_e3nn(product), product))
                    candidates["e3nn"] = Candidate(run, inputs)
                passes = PASSES[row, direction]
                yield Case(
                    op=row,
                    workload=workload,
                    direction=direction,
                    dtype=dtype,
                    nbytes=bytes_moved(
                        workload, graph.num_edges, jnp.dtype(dtype).itemsize, passes
                    ),
                    candidates=candidates,
                    edges=graph.num_edges,
                )


def _ours(product: TensorProduct, name: ops.Name | None) -> Sums:
    return partial(ops.tensor_product_sum, **product.arguments, implementation=name)


def _of_e3nn(product: TensorProduct) -> Sums:
    """The same with e3nn's tensor product of the gathered rows."""
    e3nn = importlib.import_module("e3nn_jax")
    of_in, of_sh, of_out = (
        e3nn.Irreps(str(irreps))
        for irreps in (product.irreps_in, product.irreps_sh, product.irreps_out)
    )
    instructions = [(*path, "uvu", True) for path in product.paths]
    coupled = e3nn.legacy.FunctionalTensorProduct(
        of_in,
        of_sh,
        of_out,
        instructions,
        irrep_normalization="component",
        path_normalization="element",
    )

    @jax.vmap
    def messages(x, harmonics, weights):
        parts = [weights[own][:, None] for own in product.weight_slices]
        x, harmonics = e3nn.IrrepsArray(of_in, x), e3nn.IrrepsArray(of_sh, harmonics)
        return coupled.left_right(parts, x, harmonics).array

    def sums(graph, x, harmonics, weights):
        edges = messages(x[graph.indices], harmonics, weights)
        rows = graph.receivers()
        return jax.ops.segment_sum(edges, rows, graph.num_rows, indices_are_sorted=True)

    return sums


def _sums(run: Sums, product: TensorProduct) -> Differentiable:
    """``f(graph, (x, harmonics, weights))``."""
    return lambda graph, arrays: (run(graph, *arrays), None)


def _forces(run: Sums, product: TensorProduct) -> Differentiable:
    """``f((graph, vectors), (x, kernel))``: forces on the vectors of the edges."""

    def energy(vectors, graph, x, kernel):
        lengths = jnp.sqrt(jnp.sum(vectors**2, axis=1, keepdims=True))
        centres = jnp.linspace(0.0, 3.0, kernel.shape[0], dtype=x.dtype)
        weights = jnp.exp(-((lengths - centres) ** 2)) @ kernel
        harmonics = spherical_harmonics(product.irreps_sh, vectors)
        return jnp.sum(run(graph, x, harmonics, weights) ** 2) / graph.num_rows

    def call(context, arrays):
        graph, vectors = context
        return jax.grad(energy)(vectors, graph, *arrays), None

    return call


# Name of the row: the function of the sums that is timed.
ROWS: dict[str, Callable[[Sums, TensorProduct], Differentiable]] = {
    "tensor_product_sum": _sums,
    "tensor_product_sum_forces": _forces,
}


def _inputs(workload: Atoms, graph: CSRGraph, row: str, dtype: str) -> list[tuple]:
    product, edges = workload.product(), graph.num_edges
    x = (graph.num_cols, product.irreps_in.dim)
    if row == "tensor_product_sum":
        arrays = x, (edges, product.irreps_sh.dim), (edges, product.num_weights)
        result = (graph.num_rows, product.irreps_out.dim)
    else:
        arrays = x, (workload.features, product.num_weights)
        result = (edges, 3)

    def make(key):
        keys = iter(jax.random.split(key, 5))
        shapes = *arrays, result, (edges, 3)
        made = [jax.random.normal(next(keys), shape, dtype) for shape in shapes]
        return tuple(made[:-2]), *made[-2:]

    if row == "tensor_product_sum":
        return [(graph, arrays, dy) for arrays, dy, _ in input_sets(make)]
    return [((graph, vectors), arrays, dy) for arrays, dy, vectors in input_sets(make)]


if __name__ == "__main__":
    command(lambda options: run_op(cases, Session.start(options, ATOMS)), Options, __doc__)
