"""Functions of a sharded graph on all devices, and the exchange of rows inside of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float

from jaxgnn._errors import bad_input
from jaxgnn.distributed._blocks import Layout, axis_of
from jaxgnn.distributed._sharded_graph import ShardedGraph
from jaxgnn.distributed._sharded_matrix import ShardedMatrix
from jaxgnn.graph import CBSR, LocalGraph


def _is_sharded(argument: Any) -> bool:
    return isinstance(argument, ShardedGraph | ShardedMatrix)


def _leaves(argument: Any) -> list[Any]:
    """Returns the graphs, sparse matrices and arrays of an argument, at any depth."""
    return jax.tree.leaves(argument, is_leaf=_is_sharded)


def _map(function: Callable[[Any], Any], argument: Any) -> Any:
    """Applies a function to each graph, sparse matrix and array of an argument."""
    return jax.tree.map(function, argument, is_leaf=_is_sharded)


def sharded[Result](
    function: Callable[..., Result],
    mesh: Mesh,
    *,
    rows: Sequence[int] = (1,),
    edges: Sequence[int] = (),
    outputs: Literal["rows", "all"] = "rows",
    axis: str | None = None,
) -> Callable[..., Result]:
    """Turns a function of one device's nodes into a function of all nodes.

    ``function`` runs on each device, inside of ``jax.shard_map``. For a ``ShardedGraph`` it gets
    the device's ``LocalGraph``, which layers and ops accept; for a ``ShardedMatrix`` and arrays of
    rows it gets the own rows; other arguments are passed unchanged. The result can be jitted and
    differentiated.

    Args:
      function: from arguments by position to a pytree of arrays.
      mesh: the mesh of the graphs.
      rows: positions of the arguments that are pytrees of arrays with a row for each node, as
        ``ShardedGraph.shard_rows`` gives them.
      edges: positions of those with an entry for each edge slot, as ``shard_edges`` gives them.
      outputs: ``"rows"`` if the results have a row for each own node; ``"all"`` if they are the
        same on all devices, such as a mean by ``mean_over_nodes``.
      axis: name of the axis of the mesh; None for the only one.

    Raises:
      ValueError: if the mesh does not have the axis. When called, if a graph is on another mesh or
        axis, there is none, two of them or a sparse matrix have the same nodes on other devices, or
        an array at one of the positions has another number of rows.

    Example:
      >>> import jax, numpy as np
      >>> from jaxgnn import CSRGraph, distributed, ops
      >>> mesh = jax.make_mesh((1,), ("nodes",), devices=jax.devices()[:1])
      >>> graph = distributed.shard(CSRGraph.from_edges([0, 1, 2], [1, 2, 0], 3), mesh)
      >>> x = graph.shard_rows(np.array([[1.0], [2.0], [4.0]], np.float32))
      >>> graph.gather_rows(distributed.sharded(ops.spmm, mesh)(graph, x)).tolist()
      [[4.0], [1.0], [2.0]]
    """
    axis = axis_of("sharded", mesh, axis)
    if outputs not in ("rows", "all"):
        raise bad_input("sharded", "outputs", "'rows' or 'all'", repr(outputs))
    for name, places in (("rows", rows), ("edges", edges)):
        if not isinstance(places, Sequence) or isinstance(places, str):
            raise bad_input("sharded", name, "positions of arguments, such as (1,)", repr(places))
    spread = {*rows, *edges}
    split, everywhere = PartitionSpec(axis), PartitionSpec()

    def run_on_device(*arguments: Any) -> Result:
        return function(*_map(lambda a: a.local if _is_sharded(a) else a, arguments))

    def call(*arguments: Any, **named: Any) -> Result:
        if named:
            raise bad_input("sharded", next(iter(named)), "given by position", "it by name")
        graph = _graph_among(arguments, mesh, axis)
        of_sides = dict.fromkeys((graph.rows, graph.columns.rows))
        _check(arguments, rows, graph.devices, tuple(of_sides), "rows")
        _check(arguments, edges, graph.devices, (graph.layout.edges,), "edge slots")
        specs = tuple(
            split
            if at in spread
            else _map(lambda a: split if _is_sharded(a) else everywhere, argument)
            for at, argument in enumerate(arguments)
        )
        out_specs = split if outputs == "rows" else everywhere
        mapped = jax.shard_map(run_on_device, mesh=mesh, in_specs=specs, out_specs=out_specs)
        try:
            return mapped(*arguments)
        except ValueError as error:
            if "out_specs" not in str(error):
                raise
            raise bad_input("sharded", "outputs", _EXPECTED[outputs], repr(outputs)) from error

    return call


_EXPECTED = {
    "rows": "'all' for results without a row for each own node, such as a mean",
    "all": "'rows' for results that differ between devices; mean_over_nodes and sum_over_devices "
    "make of those what is the same on all",
}


def _graph_among(arguments: tuple[Any, ...], mesh: Mesh, axis: str) -> ShardedGraph:
    """Checks all graphs, and returns the first."""
    graphs = [a for a in _leaves(arguments) if isinstance(a, ShardedGraph)]
    if not graphs:
        got = ", ".join(type(a).__name__ for a in arguments)
        raise bad_input("sharded", "arguments", "a ShardedGraph among them", got)
    for graph in graphs:
        if graph.mesh != mesh or graph.axis != axis:
            expected = f"a graph on axis {axis!r} of {mesh}"
            raise bad_input("sharded", "graph", expected, f"axis {graph.axis!r} of {graph.mesh}")
    first = graphs[0]
    sides = [side for graph in graphs for side in (graph.layout, graph.columns)]
    for at, argument in enumerate(arguments):
        for other in _leaves(argument):
            if isinstance(other, ShardedGraph) and first.is_square and other.is_square:
                expected = "graphs of one partition, as rows belong to the graph that made them"
                _check_same_places("graph", expected, [first.layout], other.layout)
            elif isinstance(other, ShardedMatrix):
                expected = "on the devices of the graph's nodes: its shard_matrix makes it"
                _check_same_places(f"argument {at}", expected, sides, other.layout)
    return first


def _check_same_places(
    argument: str, expected: str, layouts: Sequence[Layout], other: Layout
) -> None:
    """Raises ValueError unless the nodes are placed as in a layout of equal size, if any."""
    theirs = other.partition.part_of
    moved = [
        0 if layout is other else int(np.count_nonzero(layout.partition.part_of != theirs))
        for layout in layouts
        if layout.num_nodes == other.num_nodes
    ]
    if moved and min(moved):
        got = f"{min(moved)} of {len(theirs)} nodes elsewhere"
        raise bad_input("sharded", argument, expected, got)


def _check_spread(at: int, array: Any, devices: int) -> None:
    """Raises ValueError for an array of the host or of one device, where this can be detected.

    Such an array may have the right number of rows, but in another order.
    """
    is_of_host = isinstance(array, np.ndarray)
    is_known = isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer)
    if devices > 1 and (is_of_host or (is_known and len(array.sharding.device_set) == 1)):
        expected = "spread over the devices, as shard_rows or shard_edges of the graph does"
        got = "a numpy array" if is_of_host else "an array on one device"
        raise bad_input("sharded", f"argument {at}", expected, f"{got} of shape {array.shape}")


def _check(
    arguments: tuple[Any, ...],
    places: Sequence[int],
    devices: int,
    each: tuple[int, ...],
    what: str,
) -> None:
    """Raises ValueError unless the arrays at these places have as many entries on each device."""
    for at in places:
        for array in _leaves(arguments[at] if at < len(arguments) else ()):
            if isinstance(array, ShardedMatrix):
                array = jax.ShapeDtypeStruct((devices * array.rows,), bool)
            lengths = [devices * length for length in each]
            if getattr(array, "ndim", 0) < 1 or array.shape[0] not in lengths:
                expected = " or ".join(
                    f"of {total} {what}, {length} for each of {devices} devices"
                    for total, length in zip(lengths, each, strict=True)
                )
                raise bad_input("sharded", f"argument {at}", expected, f"shape {array.shape}")
            _check_spread(at, array, devices)


@overload
def halo_exchange(graph: LocalGraph, x: Array) -> Array: ...
@overload
def halo_exchange(graph: LocalGraph, x: CBSR) -> CBSR: ...
def halo_exchange(
    graph: LocalGraph, x: Float[Array, "rows *features"] | CBSR
) -> Float[Array, "table *features"] | CBSR:
    """Returns the table of the rows that the edges of a device read.

    Ops that take a ``LocalGraph`` call this themselves. ``graph.indices`` are places in the table.
    The gradient is the transpose: the owner of each row sums the gradients of all devices to its
    rows. Of compressed rows only the values have a gradient, so only values are sent back.

    Args:
      graph: the graph of the device, inside of ``sharded`` or ``jax.shard_map``.
      x: features of the own nodes, or compressed rows.

    Returns:
      One row for each entry of the table, of the kind and dtype of ``x``.

    Raises:
      ValueError: if the graph is no ``LocalGraph``, or ``x`` has not one row for each own node.
    """
    if not isinstance(graph, LocalGraph):
        expected = "a LocalGraph, as sharded functions get it"
        got: Any = type(graph).__name__
        raise bad_input("halo_exchange", "graph", expected, got)
    return graph.halo.exchange(x)
