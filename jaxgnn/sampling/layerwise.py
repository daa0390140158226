"""Inference of one layer after the other for all nodes of a graph that no device holds."""

from __future__ import annotations

import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxgnn._arrays.arrays import own
from jaxgnn._errors import bad_input
from jaxgnn._modes import in_evaluation_mode, refusing_changes
from jaxgnn.graph import CSRGraph
from jaxgnn.sampling import checks, options
from jaxgnn.sampling.features import FeatureStore, as_store
from jaxgnn.sampling.loader import StagedRows, default_device
from jaxgnn.sampling.subgraphs import WholeGraph, checked_size, filled

Layer = Callable[[CSRGraph, tuple[Any, Any]], Any]
"""A layer of a pair ``(x_dst, x_src)``, or a function of the same arguments."""


_WHERE = "sampling.infer_layerwise"


# A batch of rows has at most as many edges as its share of all edges, by this.
_MARGIN = 1.25


_MULTIPLE = 128


# Batches that a device computes while the host prepares the next one.
_AHEAD = 2


def infer_layerwise(
    layers: Sequence[Layer],
    graph: CSRGraph,
    features: Any,
    *,
    batch_size: int = 4096,
    out: np.ndarray | str | os.PathLike[str] | None = None,
    scratch: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> np.ndarray:
    """Applies a network to all nodes of a graph, layer by layer, with all neighbours of each node.

    The device has one batch of rows at a time, with the features of their senders. So a layer
    computes each node once, whereas batches of sampled or whole neighbourhoods of several hops
    compute most nodes many times (GraphSAGE, https://arxiv.org/abs/1706.02216, and all samplers
    since). The results are those of the layers on the whole graph, up to rounding.

    Layers see a graph of some rows, whose columns are these rows and then their other senders, and
    a pair ``(x_dst, x_src)``, as bipartite layers do. Put norms, activations and linear layers
    between convolutions into functions. ``GCNConv`` needs the degrees of senders, so its graph must
    be normalised, ``graph.with_self_loops().normalized("gcn")``, and it takes one array:
    ``lambda block, x: layer(block, x[1])``. Each layer is compiled once. Its arrays are arguments
    if it is a pytree of arrays, as Flax modules are, and otherwise constants.

    Args:
      layers: ``layer(block, (x_dst, x_src)) -> [rows, ...]``, in their order. Modules are applied
        in evaluation mode, whatever their mode is, and do not change. A module that a function
        refers to must be in it: ``model.eval()``.
      graph: a square graph, normalised or not, without or with one weight for each edge.
      features: of the nodes, [nodes, ...]: an array, ``np.memmap`` or an object with
        ``gather(ids)``.
      batch_size: most rows of a batch. A batch also has at most 1.25 times its share of all edges,
        or as many as the largest row.
      out: array that the results are written to, such as a ``np.memmap``; or the path of a
        ``.npy`` file, which is created and mapped; None for a new array.
      scratch: folder for the results of the layers before the last, in files that are deleted at
        the end; it is created if there is none. None keeps them in memory.
      progress: whether to show on stderr the layer, and the nodes that are done.

    Returns:
      Results of the last layer, [nodes, ...]: ``out``, a mapped file, or a new array.

    Raises:
      ValueError: if there are no layers; the graph is traced, not square, without nodes, or has
        weights that are not finite; features have another length; ``batch_size`` is below 1; or
        ``out`` has another shape or dtype than the result, or is a path in no folder; ``scratch``
        is not a folder that can be written to; a layer does not return a row for each row of its
        block; or a function refers to a module that is in training mode.

    Example:
      >>> ring = CSRGraph.from_edges(range(8), np.roll(range(8), -1), 8).normalized("mean")
      >>> from jaxgnn import ops
      >>> layer = lambda block, x: x[0] + ops.spmm(block, x[1])
      >>> made = infer_layerwise([layer, layer], ring, np.eye(8), batch_size=3, progress=False)
      >>> made[2].tolist()
      [1.0, 2.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    """
    layers = list(layers) if isinstance(layers, Sequence) else layers
    if not isinstance(layers, list) or not layers or not all(map(callable, layers)):
        expected = "a list of layers or functions, at least one"
        raise bad_input(_WHERE, "layers", expected, repr(layers)[:80])
    whole = WholeGraph.read(_WHERE, graph, allow_normalized=True)
    x = options.checked_store(_WHERE, features, whole.num_nodes)
    blocks = _Blocks.of(graph, whole, checked_size(_WHERE, "batch_size", batch_size))
    _check_out(out)
    checks.flags(_WHERE, progress=progress)
    results = np.empty(0)
    with _scratch_folder(scratch) as folder:
        paths = [os.path.join(folder, f"{number}.npy") for number in range(len(layers) - 1)]
        targets = [*(paths if scratch is not None else [None] * len(paths)), out]
        for number, (layer, target) in enumerate(zip(layers, targets, strict=True), 1):
            name = f"layer {number} of {len(layers)}" if progress else None
            results = _apply(layer, blocks, x, _Results(target, whole.num_nodes), name)
            x = as_store(_WHERE, results)
        return results


def _check_out(out: Any) -> None:
    """Raises ValueError unless ``out`` is None, an array or a path in a folder."""
    if out is None or isinstance(out, np.ndarray):
        return
    expected = "an array, the path of a .npy file in a folder that exists, or None"
    if not isinstance(out, str | os.PathLike):
        raise bad_input(_WHERE, "out", expected, type(out).__name__)
    path = os.fspath(out)
    if not path or os.path.isdir(path) or not os.path.isdir(os.path.dirname(path) or "."):
        raise bad_input(_WHERE, "out", expected, repr(path))


def _scratch_folder(scratch: Any) -> tempfile.TemporaryDirectory[str]:
    """A new folder, in that of the user if there is one, which is created."""
    expected = "a folder that can be written to, or None"
    if scratch is not None and not isinstance(scratch, str | os.PathLike):
        raise bad_input(_WHERE, "scratch", expected, type(scratch).__name__)
    try:
        if scratch is not None:
            os.makedirs(scratch, exist_ok=True)
        return tempfile.TemporaryDirectory(dir=scratch)
    except OSError as error:
        got = f"{os.fspath(scratch)!r}: {error.strerror}" if scratch is not None else str(error)
        raise bad_input(_WHERE, "scratch", expected, got) from error


def _apply(
    layer: Layer, blocks: _Blocks, x: FeatureStore, results: _Results, shown: str | None
) -> np.ndarray:
    """Applies a layer to all rows; reading the device lags, so that it computes meanwhile."""
    from jaxgnn.training.progress import Progress

    apply, rows = _compiled(layer), StagedRows(_WHERE, x, default_device())
    pending: deque[tuple[slice, Any]] = deque()
    total = len(blocks)
    with Progress(0, total, blocks.rows, "nodes", enabled=shown is not None) as bar:
        bar.begin(shown or "")
        started = time.monotonic()
        for number, block in enumerate(blocks, 1):
            pending.append((block.place, apply(block.graph, rows.gather(block.n_id))))
            while len(pending) > (0 if number == total else _AHEAD):
                results.write(*pending.popleft())
            bar.update(number, {}, 1e3 * (time.monotonic() - started) / number)
    return results.array


def _compiled(layer: Layer) -> Callable[[CSRGraph, Any], Any]:
    """The layer as a compiled function of a block and the features of its columns."""

    def apply(layer: Layer, block: CSRGraph, x: Any) -> Any:
        result = layer(block, (x[: block.num_rows], x))
        if not hasattr(result, "shape") or result.shape[:1] != (block.num_rows,):
            got = f"shape {result.shape}" if hasattr(result, "shape") else type(result).__name__
            expected = f"to return an array of {block.num_rows} rows, as the block has"
            raise bad_input(_WHERE, "layers", expected, got)
        return result

    if all(isinstance(leaf, jax.Array | np.ndarray) for leaf in jax.tree.leaves(layer)):
        compiled, evaluated = jax.jit(apply), in_evaluation_mode(layer)
        return lambda block, x: compiled(evaluated, block, x)

    @jax.jit
    def apply_function(block: CSRGraph, x: Any) -> Any:
        with refusing_changes(_WHERE, "layers"):
            return apply(layer, block, x)

    return apply_function


class _Results:
    """Rows of a layer, which are written to an array, a new file or new memory."""

    def __init__(self, target: Any, num_nodes: int):
        self._target, self._num_nodes = target, num_nodes
        self._array: np.ndarray | None = None

    @property
    def array(self) -> np.ndarray:
        """The array of all rows."""
        assert self._array is not None
        return self._array

    def write(self, place: slice, rows: Any) -> None:
        """Writes the first rows of a batch."""
        values = np.asarray(rows)[: place.stop - place.start]
        if self._array is None:
            self._array = self._made((self._num_nodes, *values.shape[1:]), values.dtype)
        self._array[place] = values

    def _made(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        target = self._target
        if target is None:
            return np.empty(shape, dtype)
        if isinstance(target, str | os.PathLike):
            path = os.fspath(target)
            try:
                return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
            except OSError as error:
                expected = "a path that can be written to"
                got = f"{path!r}: {error.strerror}"
                raise bad_input(_WHERE, "out", expected, got) from error
        is_array = isinstance(target, np.ndarray)
        if not is_array or (target.shape, target.dtype.newbyteorder("=")) != (shape, dtype):
            expected = f"an array of {dtype} and shape {shape}, as the results, or a path"
            kind = type(target).__name__
            got = f"{target.dtype} of shape {target.shape}" if hasattr(target, "shape") else kind
            raise bad_input(_WHERE, "out", expected, got)
        return target


class _Block(NamedTuple):
    """Some rows of a graph with all their edges, padded.

    Attributes:
      graph: the rows, and as columns these rows followed by the other senders.
      n_id: node of each column, -1 for padding.
      place: the rows.
    """

    graph: CSRGraph
    n_id: np.ndarray
    place: slice


@dataclass(frozen=True, eq=False)
class _Blocks:
    """The rows of a graph, cut into blocks of one shape.

    Attributes:
      graph: the graph with its scales.
      host: its arrays.
      starts: first row of each block, and the number of rows.
      rows: row slots of a block.
      others: column slots of a block after those of its rows.
      edges: edge slots of a block.
    """

    graph: CSRGraph
    host: WholeGraph
    starts: np.ndarray
    rows: int
    others: int
    edges: int

    @classmethod
    def of(cls, graph: CSRGraph, host: WholeGraph, batch_size: int) -> _Blocks:
        """Cuts the rows, then counts the columns of each block."""
        rows = min(batch_size, host.num_nodes)
        share = _MARGIN * host.num_edges * rows / host.num_nodes
        edges = _slots(max(share, host.degrees().max()), host.num_edges)
        starts = _cut(host.indptr, rows, edges)
        pairs = zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
        others = max(len(_other_senders(host, *pair)) for pair in pairs)
        return cls(graph, host, starts, rows, _slots(others, host.num_nodes), edges)

    def __len__(self) -> int:
        """Number of blocks of rows that a layer is computed in."""
        return len(self.starts) - 1

    def __iter__(self) -> Iterator[_Block]:
        """The blocks in the order of the rows."""
        for begin, end in zip(self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True):
            self.host.check_files(_WHERE)
            yield self._block(begin, end)

    def _block(self, begin: int, end: int) -> _Block:
        host, indptr = self.host, self.host.indptr
        others = _other_senders(host, begin, end)
        rows = filled(np.arange(begin, end), self.rows, -1, np.int64)
        n_id = own(np.concatenate([rows, filled(others, self.others, -1, np.int64)]))
        edges = slice(int(indptr[begin]), int(indptr[end]))
        senders = host.indices[edges]
        is_own = (senders >= begin) & (senders < end)
        columns = self.rows + np.searchsorted(others, senders)
        columns = np.where(is_own, senders - begin, columns)
        count = edges.stop - edges.start
        offsets = filled(indptr[begin : end + 1] - indptr[begin], self.rows + 1, count, np.int32)
        weights = None
        if host.weights is not None:
            weights = filled(host.weights[edges], self.edges, 0, host.weights.dtype)
        block = CSRGraph(
            offsets,
            filled(columns, self.edges, 0, np.int32),
            weights,
            len(n_id),
            row_scale=_scale(self.graph.row_scale, rows),
            col_scale=_scale(self.graph.col_scale, n_id),
            normalization=self.graph.normalization,
            in_range=True,
        )
        return _Block(block, n_id, slice(begin, end))


def _other_senders(host: WholeGraph, begin: int, end: int) -> np.ndarray:
    """Distinct senders of some rows that are not among the rows, ascending."""
    senders = host.distinct(host.indices[host.indptr[begin] : host.indptr[end]])
    return senders[(senders < begin) | (senders >= end)]


def _scale(scale: Any, nodes: np.ndarray) -> Any:
    """The scales of some nodes; padding has that of another node, since it has no edges."""
    return None if scale is None else own(np.asarray(scale)[nodes])


def _cut(indptr: np.ndarray, rows: int, edges: int) -> np.ndarray:
    """Starts of blocks of at most ``rows`` rows and ``edges`` edges; no row has more edges."""
    starts = [0]
    while starts[-1] < len(indptr) - 1:
        begin = starts[-1]
        by_edges = int(np.searchsorted(indptr, indptr[begin] + edges, side="right")) - 1
        starts.append(min(by_edges, begin + rows, len(indptr) - 1))
    return np.array(starts, np.int64)


def _slots(size: float, most: int) -> int:
    """The next multiple of 128, at most ``most``."""
    return min(-(-int(np.ceil(size)) // _MULTIPLE) * _MULTIPLE, most)
