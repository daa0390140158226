"""The Laplacian of a graph without its self loops, scaled for Chebyshev polynomials."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxgnn import ops
from jaxgnn._arrays.identity_cache import IdentityMemory
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph, is_concrete, remove_self_loops
from jaxgnn.graph.local.local_graph import max_over_devices

LaplacianKind = Literal["sym", "rw"]
"""Normalisations of a Laplacian, besides none."""


def scaled_laplacian(
    where: str,
    graph: CSRGraph,
    normalization: LaplacianKind | None,
    *,
    lambda_max: Any,
    implementation: ops.Name | None,
) -> Callable[[Array], Array]:
    """The product of ``2 L / λ - 1`` with features [*batch, nodes, width].

    ``L`` is ``1 - D^-½ A D^-½`` for ``"sym"``, ``1 - A D^-1`` for ``"rw"`` and ``D - A`` for None,
    where ``D`` are the sums of the weights of the edges that enter each node.

    Args:
      where: name of the layer in errors.
      graph: square graph; its self loops are ignored. With ``"sym"`` one that is already
        normalised is used unchanged.
      normalization: normalisation of the Laplacian.
      lambda_max: λ; None for an upper bound of the eigenvalues: 2, or for ``D - A`` twice the
        largest degree.
      implementation: name of the kernels of the sparse op, or None.

    Raises:
      ValueError: if ``lambda_max`` is not a positive number, or the graph is normalised for another
        Laplacian than ``"sym"``.
    """
    _check(where, graph, normalization, lambda_max)
    options = {"implementation": implementation}
    wide, own, of_senders = jnp.result_type(float), jnp.ones(()), None
    p = graph if graph.is_normalized else _without_loops(graph)
    if normalization == "sym":
        p = p if p.is_normalized else p.normalized("gcn")
    else:
        degrees: Any = ops.spmm(p, jnp.ones((p.num_cols, 1), wide), **options)
        if normalization is None:
            own = degrees
        else:
            has_edges = degrees > 0
            of_senders = jnp.where(has_edges, 1 / jnp.where(has_edges, degrees, 1), 0)
    if lambda_max is None:
        bound = 2 * max_over_devices(graph, jnp.max(own))
        lambda_max = jnp.where(bound > 0, bound, 2)  # without edges any number is valid
    share = 2.0 / jnp.asarray(lambda_max, wide)

    def laplacian(z: Array) -> Array:
        of_node, of_edge = (share * own - 1).astype(z.dtype), share.astype(z.dtype)
        sent = z if of_senders is None else of_senders.astype(z.dtype) * z
        return of_node * z - of_edge * ops.spmm(p, sent, **options)

    return laplacian


def _check(where: str, graph: CSRGraph, normalization: Any, lambda_max: Any) -> None:
    """Raises ValueError unless λ is positive, and the graph normalised only with ``"sym"``."""
    is_number = lambda_max is None or jnp.ndim(lambda_max) == 0
    is_known = lambda_max is not None and is_concrete(lambda_max)
    if not is_number or (is_known and not lambda_max > 0):
        raise bad_input(where, "lambda_max", "a positive number", lambda_max)
    if normalization != "sym" and graph.is_normalized:
        expected = f"not normalised, with normalization={normalization!r}"
        raise bad_input(where, "graph", expected, "one that is normalised")


_LOOPLESS: IdentityMemory[CSRGraph | None] = IdentityMemory()


def _without_loops(graph: CSRGraph) -> CSRGraph:
    """The graph without its self loops; a traced graph keeps them with weight zero."""
    arrays = graph.indptr, graph.indices, graph.weights
    if is_concrete(*arrays):
        made = _LOOPLESS.get(arrays, graph.num_cols, lambda: _loopless_on_host(graph))
        return graph if made is None else made
    weights = jnp.ones(graph.num_edges) if graph.weights is None else jnp.asarray(graph.weights)
    is_loop = jnp.asarray(graph.receivers()) == graph.senders_as_rows()
    return graph.with_weights(jnp.where(is_loop, 0, weights))


def _loopless_on_host(graph: CSRGraph) -> CSRGraph | None:
    """The graph without its self loops; None if it has none, so that only new graphs are cached."""
    made = remove_self_loops(graph)
    # Under jit an element of a concrete array would be traced.
    return None if made.num_edges == np.asarray(graph.indptr)[-1] else made
