"""CompressedRows: the arrays of a ``CSRGraph``, and the parts of a plan that are built for them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, Self, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from jaxgnn._arrays.arrays import (
    KeepsArrays,
    is_concrete,
    put_own,
    require_one,
    requires_one,
    shown,
)
from jaxgnn._errors import bad_input
from jaxgnn.graph.csr.edge_list import EdgeNames, keep_order, known_order, ordered_edge_data
from jaxgnn.graph.csr.validation import arrays_of, bounded_graph, validate_structure
from jaxgnn.graph.plan.built_parts import (
    ConcreteParts,
    PlanOnDemand,
    given_plan,
    makes_plan,
    parts_for,
    plan_on_demand,
)
from jaxgnn.graph.plan.device_sorting import is_for_device
from jaxgnn.graph.plan.plan import GraphPlan, Part, make_traced_plan
from jaxgnn.graph.plan.row_sums import sum_rows
from jaxgnn.graph.plan.sorting import row_ids, row_ids_on_host

Normalization = Literal["mean", "sym", "gcn"]
"""Kind of normalisation: ``"mean"`` is ``D⁻¹ A``, ``"sym"`` is ``D_r^-½ A D_c^-½``, with the
degrees of rows and of columns, and ``"gcn"`` is ``D_r^-½ A D_r^-½``."""


@dataclass(frozen=True, eq=False)
class CompressedRows(KeepsArrays):
    """Base class of ``CSRGraph``, which describes the fields: what functions of a graph rest on."""

    indptr: Int[Array, " rows+1"]
    indices: Int[Array, " edges"]
    weights: Float[Array, "edges *heads"] | None = None
    num_cols: int = dataclasses.field(default=cast(int, None), metadata={"static": True})
    row_scale: Float[Array, " rows"] | None = None
    col_scale: Float[Array, " cols"] | None = None
    plan: GraphPlan | None = None
    normalization: Normalization | None = dataclasses.field(default=None, metadata={"static": True})
    in_range: bool = dataclasses.field(default=False, metadata={"static": True})

    def __post_init__(self):
        super().__post_init__()
        if self.num_cols is None:
            object.__setattr__(self, "num_cols", self.indptr.shape[-1] - 1)

    def __repr__(self) -> str:
        """Shows shapes instead of arrays, the parts that have been built, and the total size."""
        names = ("indptr", "indices", "weights", "row_scale", "col_scale")
        arrays = ", ".join(f"{name}={shown(getattr(self, name))}" for name in names)
        built = ", ".join(sorted(self._built_parts()))
        rest = f"num_cols={self.num_cols}, normalization={self.normalization!r}, made=[{built}]"
        return f"CSRGraph({arrays}, {rest}, nbytes={self.nbytes})"

    def _repr_html_(self) -> str:
        """Returns a table for notebooks, and a drawing of a small graph; under a trace, shapes."""
        from jaxgnn.graph.html import html_of_graph

        return html_of_graph(self)

    @property
    def nbytes(self) -> int:
        """Size of all current arrays in bytes, including the parts that ops have built.

        Arrays that the graph shares with another one, such as its transpose, count for both.
        """
        arrays = jax.tree.leaves((arrays_of(self), self._built_parts(), known_order(self)))
        distinct = {id(array): array for array in arrays if hasattr(array, "dtype")}
        return sum(array.size * array.dtype.itemsize for array in distinct.values())

    def _built_parts(self) -> dict[str, Any]:
        """Returns the parts that have been built from the structure, by name."""
        plan, parts = given_plan(self), self.__dict__.get("_parts")
        of_plan: dict[str, Any] = {} if plan is None else {p: plan.arrays_of(p) for p in plan.parts}
        if parts is None:
            return of_plan
        built = parts.made()
        return built | {part: (arrays, built.get(part)) for part, arrays in of_plan.items()}

    @property
    def num_rows(self) -> int:
        """The number of receivers."""
        return self.indptr.shape[-1] - 1

    @property
    def num_edges(self) -> int:
        """Number of edge slots, including padding."""
        return self.indices.shape[-1]

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the adjacency, ``(num_rows, num_cols)``."""
        return self.num_rows, self.num_cols

    @property
    def is_square(self) -> bool:
        """Whether rows and columns can be the same nodes."""
        return self.num_rows == self.num_cols

    @property
    def is_normalized(self) -> bool:
        """Whether the graph is normalised already, by scales or in the weights."""
        has_scales = self.row_scale is not None or self.col_scale is not None
        return has_scales or self.normalization is not None

    @requires_one
    def degrees(self) -> Int[Array, " rows"]:
        """Returns the number of edges that enter each row."""
        if is_concrete(self.indptr):  # The host compiles nothing for a new length.
            return put_own(np.diff(np.asarray(self.indptr)))
        return self.indptr[1:] - self.indptr[:-1]

    @requires_one
    def uniform_degrees(self) -> tuple[int | None, int | None]:
        """Returns the common degree of all rows, and of all columns, if the host knows them.

        A degree is None where degrees differ, and for a graph that is traced, has padding slots
        or no edge. The number is static, so that a sum over edges can be one over an axis.

        Example:
          >>> from jaxgnn import CSRGraph
          >>> CSRGraph.from_edges([0, 1, 0, 2], [0, 0, 1, 1], 2, num_senders=3).uniform_degrees()
          (2, None)
        """
        degrees = self.__dict__.get("_uniform_degrees")
        if degrees is None:
            if not is_concrete(self.indptr, self.indices):
                return None, None
            degrees = self.__dict__["_uniform_degrees"] = self.concrete_parts().uniform_degrees
        return degrees

    @requires_one
    def with_known_degrees(self, degrees: tuple[int | None, int | None]) -> Self:
        """Returns the same, possibly traced, graph with ``uniform_degrees`` known to the caller."""
        graph = self._with_fields()
        graph.__dict__["_uniform_degrees"] = degrees
        return graph

    @property
    def senders(self) -> Int[Array, " edges"]:
        """Sender of each edge slot: an alias of ``indices``."""
        return self.indices

    @requires_one
    def senders_as_rows(self) -> Int[Array, " edges"]:
        """The row that is the same node as the sender of each edge slot of a square graph."""
        return jnp.asarray(self.indices)

    @requires_one
    def sender_table(self, of_nodes: Array) -> Array:
        """The table that ``indices`` point into: the array, which has a row for each node."""
        return of_nodes

    @requires_one
    def receivers(self) -> Int[Array, " edges"]:
        """Returns the row of each edge; padding slots get ``num_rows``, which is out of range."""
        if is_concrete(self.indptr, self.indices) and not is_for_device(self.num_edges):
            self.concrete_parts()  # This checks the structure.
            return put_own(row_ids_on_host(self.indptr, self.num_edges))
        return row_ids(jnp.asarray(self.indptr), self.num_edges)

    @property
    def structure(self) -> Self:
        """The same edges with the same scales, without weights."""
        return self if self.weights is None else self._with_fields(weights=None)

    def _with_fields(self, **fields: Any) -> Self:
        """Returns the same edges, in the same order, with other values of some fields."""
        changed = dataclasses.replace(self, **{"plan": given_plan(self), **fields})
        if is_concrete(self.indptr, self.indices):
            changed.__dict__["_parts"] = self._shared_parts()
        return plan_on_demand(keep_order(changed, known_order(self)), like=self)

    @requires_one
    def prepared_for(self, op: str | None) -> Self:
        """Returns this graph with the parts that an op needs; a traced one stays unchanged."""
        if not is_concrete(self.indptr, self.indices):
            return self
        return self.with_parts(*parts_for(op, weighted=self.weights is not None))

    @requires_one
    def with_parts(self, *parts: Part) -> Self:
        """Returns this graph, its ids clamped if traced, with these parts of a plan."""
        graph = self if is_concrete(self.indptr, self.indices) else bounded_graph(self)
        plan = graph.made_plan(*parts)
        if plan is given_plan(graph):
            return graph
        return graph._with_fields(plan=plan, in_range=True)

    @requires_one
    def concrete_parts(self) -> ConcreteParts:
        """Returns the parts of this concrete graph, whose offsets and senders are checked once."""
        parts = self._shared_parts()
        if not parts.is_checked:
            if given_plan(self) is None and not makes_plan(self):
                validate_structure(self)
            parts.is_checked = True
        return parts

    def _shared_parts(self) -> ConcreteParts:
        """Returns the same object for all graphs that have been derived with the same edges."""
        parts = self.__dict__.get("_parts")
        if parts is None:
            plan = given_plan(self)
            parts = ConcreteParts.of(self.indptr, self.indices, self.num_cols, plan)
            self.__dict__["_parts"] = parts
        return parts

    @requires_one
    def made_plan(self, *parts: Part) -> GraphPlan:
        """Returns a plan with these parts, by default all but the edge blocks, built if missing."""
        wanted = frozenset[Part](parts or ("schedule", "transpose", "permutation"))
        there = given_plan(self)
        missing = wanted if there is None else there.missing(wanted)
        if there is not None and not missing:
            return there
        if is_concrete(self.indptr, self.indices):
            plan = self.concrete_parts().plan(wanted)
        else:
            blocks = "edge_blocks" in missing
            ids = jnp.asarray(self.indptr), jnp.asarray(self.indices)
            plan = make_traced_plan(*ids, num_cols=self.num_cols, edge_blocks=blocks)
            plan = GraphPlan().with_parts_of(plan, wanted)
        return plan if there is None else there.with_parts_of(plan, missing)

    def _sums_of_senders(self, of_edges: Array) -> Array:
        """Returns the sum over the edges that leave each node, by ``indices``; traced."""
        plan = self.made_plan()
        return sum_rows(of_edges[plan.permutation], plan.transposed_indptr)

    def _column_degrees(self) -> Int[Array, " cols"] | np.ndarray:
        """Returns the number of edges that leave each column; in numpy if the graph is concrete."""
        plan = given_plan(self)
        if is_concrete(self.indptr, self.indices):
            real = np.asarray(self.indices)[: np.asarray(self.indptr)[-1]]
            return np.bincount(real, minlength=self.num_cols)[: self.num_cols]
        if plan is not None and plan.transposed_indptr is not None:
            return plan.transposed_indptr[1:] - plan.transposed_indptr[:-1]
        columns = jnp.where(self.receivers() < self.num_rows, self.indices, self.num_cols)
        return jnp.zeros(self.num_cols, jnp.int32).at[columns].add(1, mode="drop")

    @property
    def edge_order(self) -> Int[Array, " edges"] | np.ndarray:
        """Position in the input of each edge slot, int32 [edges] (int64 beyond 2^31 - 1 edges).

        A loop that ``with_self_loops`` has added has -1. Padding edges are last. The order is a
        numpy array, or traced inside of ``jit``.

        It is kept only on request: by ``from_edges`` and ``from_edge_index`` with ``edge_data``, by
        ``from_graphs_tuple`` with ``return_edges``, and by ``from_networkx``. Methods that derive
        graphs keep it. It is not part of the pytree, so graphs that were passed to or returned by
        ``jit``, ``jax.tree.map`` or a checkpoint do not have it.

        Raises:
          ValueError: if the graph does not have its order.
        """
        return self._known_order("CSRGraph.edge_order")

    def _known_order(self, where: str) -> Any:
        """The position in the input of each edge slot; ValueError in the name of ``where``."""
        require_one(where, "self", self)
        order = known_order(self)
        if order is None:
            expected = (
                "built with edge_data (() keeps the order alone), and not have passed through jit "
                "or another function of pytrees"
            )
            raise bad_input(where, "self", expected, "a graph of unknown order")
        return order

    def sort_edges(self, edges: PyTree) -> PyTree:
        """Brings features of edges from the order of the input into that of the edge slots.

        Constructors do this with their ``edge_data``; here it is for data that comes later. The
        graph has to be built with ``edge_data``, ``()`` for no data yet.

        Args:
          edges: a pytree of arrays [edges, ...], with an entry for each edge of the input, padding
            included.

        Returns:
          The same tree of JAX arrays, with an entry for each edge slot.

        Raises:
          ValueError: if the graph does not know its order (see ``edge_order``) or has self loops
            that ``with_self_loops`` has added, which have no entry; or an array does not have one
            entry for each edge.

        Example:
          >>> import jax.numpy as jnp
          >>> from jaxgnn import CSRGraph
          >>> graph, _ = CSRGraph.from_edges([2, 1, 0], [1, 0, 1], 3, edge_data=())
          >>> graph.sort_edges(jnp.array([20.0, 0.5, 1.0])).tolist()
          [0.5, 20.0, 1.0]
        """
        where = "CSRGraph.sort_edges"
        order = self._known_order(where)
        if is_concrete(order) and (np.asarray(order) < 0).any():
            expected = "without self loops that with_self_loops has added"
            way = "sort the features by the graph from before, then choose those of the loops"
            raise bad_input(where, "self", expected, f"some; {way}")
        return ordered_edge_data(EdgeNames(where, edge_data="edges"), edges, order)


type.__setattr__(CompressedRows, "plan", PlanOnDemand())
