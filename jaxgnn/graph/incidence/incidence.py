"""Incidence: the nodes of the hyperedges of a hypergraph, as a pytree."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import scipy.sparse
from jaxtyping import Array, Bool, Float, Int

from jaxgnn._arrays.arrays import (
    KeepsArrays,
    is_concrete,
    put_own,
    require_integers,
    require_length,
    require_one,
    require_size,
    requires_one,
    shown,
)
from jaxgnn._errors import bad_input
from jaxgnn.graph.csr.csr_graph import CSRGraph
from jaxgnn.graph.csr.edge_list import as_array
from jaxgnn.graph.csr.validation import check_equal, check_shapes
from jaxgnn.graph.incidence.incidence_plan import (
    IncidencePlan,
    in_range,
    make_incidence_plan,
    make_traced_incidence_plan,
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Incidence(KeepsArrays):
    """A hypergraph: the nodes of its hyperedges, with one entry for each incidence.

    The numbers of nodes and hyperedges are static, so there may be hyperedges without nodes and
    nodes without hyperedges. A node that is in a hyperedge several times counts as often.

    A slot with ``node_ids == num_nodes`` and ``hyperedge_ids == num_hyperedges`` is padding: it is
    no incidence, so hypergraphs of different sizes can share one shape and one compilation
    (``padded``).

    The constructors (``from_hyperedges``, ``from_matrix``, ``from_hyperedge_index``, ``batch``)
    check the ids and, on concrete input, build the ``plan``. For a hypergraph built directly the
    plan is computed on demand: once if concrete, inside every step if traced. Traced ids that are
    out of range are treated as padding.

    Attributes:
      node_ids: node of each incidence, integers.
      hyperedge_ids: hyperedge of each incidence, integers.
      num_nodes: number of nodes.
      num_hyperedges: number of hyperedges.
      plan: the incidences by hyperedge and by node, or None.

    Example:
      >>> from jaxgnn import Incidence
      >>> hypergraph = Incidence.from_hyperedges([{0, 1, 2}, {2, 3}], num_nodes=5)
      >>> hypergraph.hyperedge_ids.tolist(), hypergraph.node_degrees().tolist()
      ([0, 0, 0, 1, 1], [1, 1, 2, 1, 0])
    """

    node_ids: Int[Array, " incidences"]
    hyperedge_ids: Int[Array, " incidences"]
    num_nodes: int = dataclasses.field(metadata={"static": True})
    num_hyperedges: int = dataclasses.field(metadata={"static": True})
    plan: IncidencePlan | None = None

    def __repr__(self) -> str:
        """Shows shapes instead of arrays, and only whether there is a plan."""
        arrays = f"node_ids={shown(self.node_ids)}, hyperedge_ids={shown(self.hyperedge_ids)}"
        sizes = f"num_nodes={self.num_nodes}, num_hyperedges={self.num_hyperedges}"
        return f"Incidence({arrays}, {sizes}, plan={'None' if self.plan is None else '...'})"

    # -- constructors ------------------------------------------------------------------------

    @classmethod
    def from_hyperedges(cls, hyperedges: Iterable[Iterable[int]], num_nodes: int) -> Incidence:
        """Builds a hypergraph from its hyperedges, each a set or a sequence of nodes.

        Args:
          hyperedges: nodes of each hyperedge. Nodes of a set are sorted in ascending order. Empty
            hyperedges are kept, and so are repeated nodes of a sequence.
          num_nodes: number of nodes.

        Raises:
          ValueError: if a node is no integer in ``[0, num_nodes)``, or a hyperedge no set or
            sequence of them.
        """
        hyperedges = list(hyperedges)
        for edge in hyperedges:
            if not isinstance(edge, Iterable):
                expected = "sets or sequences of nodes, [{0, 1}] for one hyperedge of two"
                raise bad_input("Incidence.from_hyperedges", "hyperedges", expected, repr(edge))
        members = [sorted(e) if isinstance(e, set | frozenset) else list(e) for e in hyperedges]
        sizes = np.fromiter(map(len, members), np.int32, len(members))
        nodes = np.asarray(list(itertools.chain.from_iterable(members)) or np.zeros(0, np.int32))
        ids = np.repeat(np.arange(len(members), dtype=np.int32), sizes)
        return _new_incidence("Incidence.from_hyperedges", nodes, ids, num_nodes, len(members))

    @classmethod
    def from_matrix(cls, matrix: Any) -> Incidence:
        """Builds a hypergraph from an incidence matrix ``[nodes, hyperedges]``.

        Args:
          matrix: dense, or any scipy.sparse format. Entries are the number of times that a node is
            in a hyperedge: whole numbers of any dtype, booleans too.

        Raises:
          ValueError: if it is not two-dimensional, or an entry is no such number.
        """
        where = "Incidence.from_matrix"
        sparse = matrix if scipy.sparse.issparse(matrix) else np.asarray(matrix)
        if sparse.ndim != 2:
            expected = "two-dimensional, nodes by hyperedges"
            raise bad_input(where, "matrix", expected, f"shape {sparse.shape}")
        entries = scipy.sparse.coo_array(sparse)
        counts = entries.data
        if not np.can_cast(counts.dtype, np.float64):
            expected = "of a boolean, integer or floating dtype up to 64 bits"
            raise bad_input(where, "matrix", expected, counts.dtype)
        strange = np.flatnonzero((counts < 0) | (counts != np.floor(counts)) | np.isinf(counts))
        if strange.size:
            node, hyperedge = (int(axis[strange[0]]) for axis in (entries.row, entries.col))
            expected = "a whole number, how often the node is in the hyperedge"
            raise bad_input(where, f"matrix[{node}, {hyperedge}]", expected, counts[strange[0]])
        times = counts.astype(np.int64)
        nodes, hyperedges = np.repeat(entries.row, times), np.repeat(entries.col, times)
        return _new_incidence(where, nodes, hyperedges, *sparse.shape)

    @classmethod
    def from_hyperedge_index(
        cls,
        hyperedge_index: npt.ArrayLike,
        num_nodes: int,
        num_hyperedges: int | None = None,
    ) -> Incidence:
        """Builds a hypergraph from a ``hyperedge_index`` as in torch-geometric.

        Args:
          hyperedge_index: integers ``[2, incidences]``: nodes above hyperedges.
          num_nodes: number of nodes.
          num_hyperedges: number of hyperedges; None for one more than the largest id, which drops
            empty hyperedges at the end.

        Raises:
          ValueError: if it has another shape or dtype, an id is out of range, or the number of
            hyperedges is not given for a traced index.
        """
        where = "Incidence.from_hyperedge_index"
        index: Any = as_array(hyperedge_index)
        if index.ndim != 2 or index.shape[0] != 2:
            expected = "of shape (2, incidences), nodes above hyperedges"
            raise bad_input(where, "hyperedge_index", expected, f"shape {index.shape}")
        if not index.size:
            index = np.zeros((2, 0), np.int32)
        if num_hyperedges is None:
            if not is_concrete(index):
                raise bad_input(where, "num_hyperedges", "given for a traced index", None)
            num_hyperedges = int(np.max(np.asarray(index[1]), initial=-1)) + 1
        return _new_incidence(where, index[0], index[1], num_nodes, num_hyperedges)

    @classmethod
    def batch(cls, hypergraphs: Sequence[Incidence]) -> Incidence:
        """Joins several hypergraphs into one, as disjoint parts; ValueError if there is none."""
        for hypergraph in hypergraphs:
            require_one("Incidence.batch", "hypergraphs", hypergraph)
        if not hypergraphs:
            raise bad_input("Incidence.batch", "hypergraphs", "at least one", "none")
        first_nodes = np.cumsum([0, *(h.num_nodes for h in hypergraphs)])
        first_hyperedges = np.cumsum([0, *(h.num_hyperedges for h in hypergraphs)])
        sizes = int(first_nodes[-1]), int(first_hyperedges[-1])
        parts = [
            h._moved(int(node), int(hyperedge), sizes)
            for h, node, hyperedge in zip(
                hypergraphs, first_nodes[:-1], first_hyperedges[:-1], strict=True
            )
        ]
        return _joined("Incidence.batch", parts, sizes)

    # -- shape -------------------------------------------------------------------------------

    @property
    def num_incidences(self) -> int:
        """Number of incidence slots, including padding."""
        return self.node_ids.shape[-1]

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the incidence matrix, ``(num_nodes, num_hyperedges)``."""
        return self.num_nodes, self.num_hyperedges

    @requires_one
    def mask(self) -> Bool[Array, " incidences"]:
        """Returns a mask of the slots that are incidences, [incidences] bool; False for padding."""
        return in_range(*self._ids(), *self.shape)

    @requires_one
    def node_degrees(self) -> Int[Array, " nodes"]:
        """Returns the number of incidences of each node."""
        return self.by_node().degrees()

    @requires_one
    def hyperedge_sizes(self) -> Int[Array, " hyperedges"]:
        """Returns the number of incidences of each hyperedge."""
        return self.by_hyperedge().degrees()

    # -- other forms -------------------------------------------------------------------------

    @requires_one
    def by_hyperedge(self) -> CSRGraph:
        """Returns a graph whose rows are the hyperedges and whose columns are their nodes."""
        return self.made_plan().by_hyperedge

    @requires_one
    def by_node(self) -> CSRGraph:
        """Returns a graph whose rows are the nodes and whose columns are their hyperedges."""
        return self.made_plan().by_node

    @requires_one
    def todense(self, dtype: Any = jnp.float32) -> Float[Array, "nodes hyperedges"]:
        """Returns the incidence matrix: the number of times that each node is in each hyperedge."""
        if is_concrete(self.node_ids, self.hyperedge_ids):
            dense = np.zeros(self.shape, dtype)
            nodes, hyperedges = np.asarray(self.node_ids), np.asarray(self.hyperedge_ids)
            real = in_range(nodes, hyperedges, *self.shape)
            np.add.at(dense, (nodes[real], hyperedges[real]), dense.dtype.type(1))
            return put_own(dense)
        nodes, hyperedges = self._ids()
        # Negative ids would count from the end, and narrow ones could not hold num_nodes.
        nodes = jnp.where(self.mask(), nodes.astype(jnp.int32), self.num_nodes)
        at = nodes, hyperedges.astype(jnp.int32)
        return jnp.zeros(self.shape, dtype).at[at].add(1, mode="drop")

    # -- derived hypergraphs -----------------------------------------------------------------

    @requires_one
    def padded(
        self,
        *,
        num_incidences: int | None = None,
        num_nodes: int | None = None,
        num_hyperedges: int | None = None,
    ) -> Incidence:
        """The same hypergraph with more slots, and more nodes and hyperedges without incidences.

        Raises:
          ValueError: if a number is less than the current one.
        """
        slots = self._padded_size("num_incidences", num_incidences)
        sizes = (
            self._padded_size("num_nodes", num_nodes),
            self._padded_size("num_hyperedges", num_hyperedges),
        )
        added = slots - self.num_incidences
        padding = np.full((2, added), np.array(sizes, np.int32)[:, None])
        return _joined("Incidence.padded", (self._moved(0, 0, sizes), padding), sizes)

    @requires_one
    def with_self_loops(self) -> Incidence:
        """Returns the hypergraph with one more hyperedge for each node, after the others."""
        nodes = np.arange(self.num_nodes, dtype=np.int32)
        sizes = self.num_nodes, self.num_hyperedges + self.num_nodes
        parts = self._moved(0, 0, sizes), (nodes, nodes + self.num_hyperedges)
        return _joined("Incidence.with_self_loops", parts, sizes)

    @requires_one
    def prepared(self) -> Incidence:
        """Returns this hypergraph with its plan, built on the host and cached if concrete.

        Raises:
          ValueError: if it is concrete and its ids are out of range or of a wrong dtype or shape.
        """
        return self if self.plan is not None else dataclasses.replace(self, plan=self.made_plan())

    @requires_one
    def made_plan(self) -> IncidencePlan:
        """Returns the plan, built now if there is none."""
        if self.plan is not None:
            return self.plan
        if not is_concrete(self.node_ids, self.hyperedge_ids):
            return make_traced_incidence_plan(*self._ids(), *self.shape)
        plan = self.__dict__.get("_host_plan")
        if plan is None:
            check_incidence_ids("Incidence", self)
            plan = make_incidence_plan(self.node_ids, self.hyperedge_ids, *self.shape)
            plan = jax.tree.map(put_own, plan)
            self.__dict__["_host_plan"] = plan
        return plan

    @requires_one
    def validate(self) -> Incidence:
        """Checks the values of all arrays on the host, and returns itself; call it outside ``jit``.

        On a validated hypergraph no kernel reads out of bounds.

        Raises:
          ValueError: names the first bad entry: an id out of range, or a plan of another
            hypergraph; or a wrong shape or dtype.
        """
        validate_incidence(self)
        return self

    def _padded_size(self, name: str, size: int | None) -> int:
        there = getattr(self, name)
        if size is not None and size < there:
            expected = f"at least {there}, the number that there is"
            raise bad_input("Incidence.padded", name, expected, size)
        return there if size is None else size

    def _ids(self) -> tuple[Int[Array, " incidences"], Int[Array, " incidences"]]:
        return jnp.asarray(self.node_ids), jnp.asarray(self.hyperedge_ids)

    def _moved(
        self, first_node: int, first_hyperedge: int, sizes: Sequence[int]
    ) -> tuple[Any, Any]:
        """Adds an offset to the ids; padding gets the padding ids for a hypergraph of ``sizes``."""
        check_incidence_shapes("Incidence", self)
        xp: Any = jnp
        ids: tuple[Any, Any] = (self.node_ids, self.hyperedge_ids)
        if is_concrete(*ids):
            check_incidence_ids("Incidence", self)
            xp, ids = np, (np.asarray(ids[0]), np.asarray(ids[1]))
        real = in_range(*ids, *self.shape)
        firsts = first_node, first_hyperedge
        nodes, hyperedges = (
            xp.where(real, i.astype(np.int32) + np.int32(first), np.int32(size))
            for i, first, size in zip(ids, firsts, sizes, strict=True)
        )
        return nodes, hyperedges


def _joined(where: str, parts: Sequence[Any], sizes: Sequence[int]) -> Incidence:
    xp: Any = np if is_concrete(*itertools.chain.from_iterable(parts)) else jnp
    nodes, hyperedges = (xp.concatenate(ids) for ids in zip(*parts, strict=True))
    return _new_incidence(where, nodes, hyperedges, *sizes)


def _new_incidence(
    where: str, node_ids: Any, hyperedge_ids: Any, num_nodes: int, num_hyperedges: int
) -> Incidence:
    """Checks the ids and builds the plan, if they are concrete."""
    require_size(where, "num_nodes", num_nodes)
    require_size(where, "num_hyperedges", num_hyperedges)
    incidence = Incidence(node_ids, hyperedge_ids, int(num_nodes), int(num_hyperedges))
    check_incidence_shapes(where, incidence)
    if is_concrete(node_ids, hyperedge_ids):
        check_incidence_ids(where, incidence)
    nodes, hyperedges = _as_int32(incidence.node_ids), _as_int32(incidence.hyperedge_ids)
    incidence = dataclasses.replace(incidence, node_ids=nodes, hyperedge_ids=hyperedges)
    return incidence.prepared() if is_concrete(nodes, hyperedges) else incidence


def _as_int32(ids: Any) -> jax.Array:
    """Returns ids as int32, read-only if of numpy."""
    if isinstance(ids, jax.Array) and (ids.dtype == jnp.int32 or not is_concrete(ids)):
        return ids.astype(jnp.int32)
    return put_own(np.asarray(ids, np.int32))


def validate_incidence(incidence: Incidence) -> None:
    """Raises ValueError naming the first invalid entry."""
    if not is_concrete(*jax.tree.leaves(incidence)):
        raise bad_input("Incidence.validate", "self", "concrete; call it outside jit", "a tracer")
    check_incidence_shapes("Incidence", incidence)
    check_incidence_ids("Incidence", incidence)
    if incidence.plan is not None:  # Another plan gives wrong results.
        ids = incidence.node_ids, incidence.hyperedge_ids
        expected = make_incidence_plan(*ids, *incidence.shape)
        check_equal("Incidence", "plan", incidence.plan, expected)


def check_incidence_shapes(where: str, incidence: Incidence) -> None:
    """The checks that shapes and dtypes allow, at trace time; ``where`` is the calling op."""
    require_size(where, "num_nodes", incidence.num_nodes)
    require_size(where, "num_hyperedges", incidence.num_hyperedges)
    for name in ("node_ids", "hyperedge_ids"):
        ids = getattr(incidence, name)
        if not hasattr(ids, "dtype"):
            raise bad_input(where, name, "an array of integers", type(ids).__name__)
        require_integers(where, name, ids)
    nodes = incidence.node_ids
    require_length(where, "node_ids", nodes, nodes.size, "per incidence")
    require_length(where, "hyperedge_ids", incidence.hyperedge_ids, nodes.size, "per node id")
    if incidence.plan is not None:
        shapes = {"by_hyperedge": incidence.shape[::-1], "by_node": incidence.shape}
        for name, shape in shapes.items():
            graph = getattr(incidence.plan, name)
            check_shapes(where, graph)
            if (graph.shape, graph.num_edges) != (shape, nodes.size):
                expected = f"of shape {shape} with {nodes.size} slots, as this hypergraph is"
                got = f"shape {graph.shape} with {graph.num_edges}"
                raise bad_input(where, f"plan.{name}", expected, got)


def check_incidence_ids(where: str, incidence: Incidence) -> None:
    """Raises ValueError unless each incidence is in range, or padding; for concrete ids."""
    nodes, hyperedges = np.asarray(incidence.node_ids), np.asarray(incidence.hyperedge_ids)
    padding = (nodes == incidence.num_nodes) & (hyperedges == incidence.num_hyperedges)
    for name, ids, size in (
        ("node", nodes, incidence.num_nodes),
        ("hyperedge", hyperedges, incidence.num_hyperedges),
    ):
        outside = ((ids < 0) | (ids >= size)) & ~padding
        if outside.any():
            at = int(np.flatnonzero(outside)[0])
            expected = f"in [0, {size}), as num_{name}s is {size}"
            raise bad_input(where, f"{name}_ids[{at}]", expected, int(ids[at]))
