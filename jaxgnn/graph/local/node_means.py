"""Sums and means over the nodes of all devices, for losses and metrics."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._arrays.arrays import as_jax
from jaxgnn._errors import bad_input
from jaxgnn.graph.csr.csr_graph import CSRGraph
from jaxgnn.graph.local.local_graph import LocalGraph


def mean_over_nodes(
    graph: CSRGraph, values: Float[Array, "nodes *rest"], weight: Array | None = None
) -> Float[Array, " *rest"]:
    """The mean of the values of all nodes, those of other devices included.

    On a whole graph on one device it is the mean of its nodes.

    Args:
      graph: the graph of the nodes, or inside of ``sharded`` that of the device.
      values: values of the own nodes; those of padding rows are ignored.
      weight: weight of each node, bool or numbers [nodes]; None to count each once.

    Returns:
      ``Σ w_i v_i / Σ w_i``, the same on all devices, of the wider floating dtype of values and
      weights, and float32 if neither is floating. Sums are accumulated in float32 or wider.

    Raises:
      ValueError: if ``graph`` is not a graph, or there is another number of values or weights
        than of nodes.
    """
    if not isinstance(graph, CSRGraph):
        expected = "a CSRGraph, or inside of sharded the graph of the device"
        raise bad_input("mean_over_nodes", "graph", expected, type(graph).__name__)
    values = as_jax("mean_over_nodes", "values", values)
    counted = jnp.ones(graph.num_rows, bool) if weight is None else jnp.asarray(weight)
    for name, array in (("values", values), ("weight", counted)):
        if array.ndim < 1 or array.shape[0] != graph.num_rows:
            expected = f"of one entry for each of {graph.num_rows} nodes"
            raise bad_input("mean_over_nodes", name, expected, f"shape {array.shape}")
    floating = [a.dtype for a in (values, counted) if jnp.issubdtype(a.dtype, jnp.floating)]
    dtype = max(floating, key=lambda one: one.itemsize, default=jnp.dtype(jnp.float32))
    wide = max(dtype, jnp.dtype(jnp.float32), key=lambda one: one.itemsize)
    counted, values = counted.astype(wide), values.astype(wide)
    if isinstance(graph, LocalGraph):
        counted = jnp.where(graph.is_real_row, counted, 0)
    column = counted.reshape(-1, *(1,) * (values.ndim - 1))
    # A padding row may have no finite value.
    total = jnp.sum(jnp.where(column != 0, values, 0) * column, axis=0)
    count = jnp.sum(counted)
    total, count = sum_over_devices(graph, (total, count))
    return (total / count).astype(dtype)


def sum_over_devices[Tree](graph: CSRGraph, of_device: Tree) -> Tree:
    """Sums a pytree over the devices; for a whole graph it is returned unchanged.

    Args:
      graph: the graph, or inside of ``sharded`` that of the device.
      of_device: a pytree of arrays, such as a sum over the own nodes.
    """
    return jax.lax.psum(of_device, graph.halo.axis) if isinstance(graph, LocalGraph) else of_device


def max_over_devices(graph: CSRGraph, of_device: Array) -> Array:
    """The maximum over the devices, differentiable; for a whole graph the array itself.

    Args:
      graph: the graph, or inside of ``sharded`` that of the device.
      of_device: an array, compared element by element.
    """
    if not isinstance(graph, LocalGraph):
        return of_device
    return jnp.max(jax.lax.all_gather(of_device, graph.halo.axis), axis=0)
