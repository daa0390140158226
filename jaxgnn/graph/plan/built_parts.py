"""The parts of the plan of a concrete graph, each built once, when it is first needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int

from jaxgnn._arrays.arrays import put_own
from jaxgnn._arrays.eager import run_now
from jaxgnn.graph.plan.device_sorting import is_for_device, on_gpu, transpose_on_device
from jaxgnn.graph.plan.edge_blocks import EdgeBlocks, make_edge_blocks
from jaxgnn.graph.plan.plan import GraphPlan, Part
from jaxgnn.graph.plan.schedule import RowSchedule, make_schedule
from jaxgnn.graph.plan.sorting import inverse_permutation, transpose_on_host

ALL_PARTS: frozenset[Part] = frozenset(("schedule", "transpose", "permutation", "edge_blocks"))

# Parts that each op needs, for its values and gradients. A graph with weights also needs the
# permutation, if it needs its transpose. ``edge_mlp_aggregate`` asks for that of regular graphs.
_NEEDED: dict[str, tuple[Part, ...]] = {
    "spmm": ("schedule", "transpose"),
    "sddmm": ("schedule", "transpose", "permutation"),
    "segment_softmax": ("schedule",),
    "gat_attention": ("schedule", "transpose", "permutation"),
    "gatv2_attention": ("schedule", "transpose", "permutation"),
    "dot_attention": ("schedule", "transpose", "permutation"),
    "maxk_spmm": ("schedule", "transpose", "edge_blocks"),
    "edge_mlp_aggregate": ("schedule",),
    "interaction": ("schedule", "transpose", "permutation"),
}
OPS = tuple(_NEEDED)
"""The ops with known parts; other ops are assumed to need all parts but the edge blocks."""


def parts_for(op: str | None, *, weighted: bool) -> frozenset[Part]:
    """Returns the parts that an op needs, with or without weights, on the device of new arrays."""
    wanted = set(_NEEDED.get(op or "", ("schedule", "transpose", "permutation")))
    if weighted and "transpose" in wanted:
        wanted.add("permutation")
    return available(wanted)


def parts_of_leaves(*, weighted: bool) -> frozenset[Part]:
    """Returns the parts that a graph from a constructor has as a pytree: those for ``spmm``."""
    return parts_for("spmm", weighted=weighted)


def available(parts: Iterable[Part]) -> frozenset[Part]:
    """Returns the parts among these that are used on the device of new arrays."""
    return frozenset(parts) - (frozenset() if on_gpu() else {"edge_blocks"})


class ConcreteParts:
    """Parts built from the structure of a concrete graph, each once, on first use.

    Graphs with the same edges share one of these. It is not part of the pytree, so a graph that
    gets another part is still the same to ``jit``. A GPU sorts the edges of large graphs, if there
    is one. ``is_checked`` is set when the structure has been validated; nothing is built
    before. ``original`` has the parts of the graph that this one is the transpose of.
    """

    def __init__(
        self,
        indptr: Int[Array, " rows+1"],
        indices: Int[Array, " edges"],
        num_cols: int,
        original: ConcreteParts | None = None,
    ):
        self.indptr, self.indices, self.num_cols = indptr, indices, num_cols
        self.is_checked = original is not None
        self._original = original
        self._plans: dict[frozenset[Part], GraphPlan] = {}

    @classmethod
    def of(cls, indptr: Any, indices: Any, num_cols: int, plan: GraphPlan | None) -> ConcreteParts:
        """Starts with the parts of a plan that the graph has already."""
        parts = cls(indptr, indices, num_cols)
        if plan is None:
            return parts
        built: dict[str, Any] = {"schedule": plan.schedule, "permutation": plan.permutation}
        if plan.transposed_schedule is not None:
            built["transpose"] = plan.transposed_indptr, plan.transposed_indices
            built["transposed_schedule"] = plan.transposed_schedule
        if plan.edge_blocks:
            weighted = plan.edge_blocks[0].edges is not None
            built["weighted_edge_blocks" if weighted else "edge_blocks"] = plan.edge_blocks
        parts.__dict__.update({name: part for name, part in built.items() if part is not None})
        return parts

    def plan(self, parts: Iterable[Part]) -> GraphPlan:
        """Returns a plan of these parts, the same object for the same parts."""
        wanted = frozenset(parts)
        if wanted in self._plans:
            return self._plans[wanted]
        fields: dict[str, Any] = {}
        if "permutation" in wanted:  # It comes first, since it includes the transpose.
            fields["permutation"] = self.permutation
        if "schedule" in wanted:
            fields["schedule"] = self.schedule
        if "transpose" in wanted:
            indptr, indices = self.transpose
            fields |= {"transposed_indptr": indptr, "transposed_indices": indices}
            fields["transposed_schedule"] = self.transposed_schedule
        if "edge_blocks" in wanted:
            weighted = "permutation" in wanted
            fields["edge_blocks"] = self.weighted_edge_blocks if weighted else self.edge_blocks
        plan = self._plans[wanted] = GraphPlan(**fields)
        return plan

    @cached_property
    def schedule(self) -> RowSchedule:
        """Work units over the rows."""
        if self._original is not None:
            return self._original.transposed_schedule
        return _placed(make_schedule(np.asarray(self.indptr), self.indices.shape[0]))

    @cached_property
    def transposed_schedule(self) -> RowSchedule:
        """Work units over the rows of the transposed graph."""
        if self._original is not None:
            return self._original.schedule
        return _placed(make_schedule(np.asarray(self.transpose[0]), self.indices.shape[0]))

    @cached_property
    def transpose(self) -> tuple[Int[Array, " cols+1"], Int[Array, " edges"]]:
        """Offsets and receivers of the transposed graph."""
        if self._original is not None:
            return self._original.indptr, self._original.indices
        return self._sort_by_sender(with_permutation=False)[:2]

    @cached_property
    def permutation(self) -> Int[Array, " edges"]:
        """The position in the graph of each transposed edge."""
        if self._original is not None:
            return put_own(inverse_permutation(np.asarray(self._original.permutation)))
        indptr, indices, permutation = self._sort_by_sender(with_permutation=True)
        self.__dict__.setdefault("transpose", (indptr, indices))
        return permutation

    def _sort_by_sender(self, *, with_permutation: bool) -> tuple[Any, Any, Any]:
        if is_for_device(self.indices.shape[0]):
            return transpose_on_device(self.indptr, self.indices, self.num_cols)
        arrays = np.asarray(self.indptr), np.asarray(self.indices)
        transposed = transpose_on_host(*arrays, self.num_cols, with_permutation=with_permutation)
        return _placed(transposed)

    @cached_property
    def edge_blocks(self) -> tuple[EdgeBlocks, ...]:
        """The edges by block, for graphs without weights."""
        return self._make_edge_blocks(None)

    @cached_property
    def weighted_edge_blocks(self) -> tuple[EdgeBlocks, ...]:
        """The edges by block, with the position of each, which weights need."""
        weighted = self._make_edge_blocks(self.permutation)
        there = self.__dict__.get("edge_blocks")
        if there is None:
            self.__dict__["edge_blocks"] = tuple(
                dataclasses.replace(b, edges=None) for b in weighted
            )
            return weighted
        return tuple(
            dataclasses.replace(b, edges=of_weights.edges)
            for b, of_weights in zip(there, weighted, strict=True)
        )

    def _make_edge_blocks(self, permutation: Any) -> tuple[EdgeBlocks, ...]:
        arrays = (self.indptr, *self.transpose, permutation)
        if is_for_device(self.indices.shape[0]):
            return run_now(_make_edge_blocks_on_device, *arrays)
        return _placed(make_edge_blocks(*jax.tree.map(np.asarray, arrays)))

    @cached_property
    def uniform_degrees(self) -> tuple[int | None, int | None]:
        """The degree of all rows, and of all columns, if all are equal and no slot is padding."""
        num_edges = self.indices.shape[0]
        rows = np.diff(np.asarray(self.indptr))
        row_degree = _common(rows, num_edges)
        if not num_edges or rows.sum() != num_edges or num_edges % self.num_cols:
            return row_degree, None
        columns = np.bincount(np.asarray(self.indices), minlength=self.num_cols)
        return row_degree, _common(columns, num_edges)

    def flipped(self) -> ConcreteParts:
        """Returns the parts of the transposed graph, for which nothing is sorted.

        They reference this object, not the other way round, so that arrays are freed.
        """
        indptr, indices = self.transpose
        return ConcreteParts(indptr, indices, self.indptr.shape[0] - 1, original=self)

    def made(self) -> dict[str, Any]:
        """Returns the parts that have been built, by name."""
        names = ("schedule", "transpose", "transposed_schedule", "permutation")
        blocks = ("edge_blocks", "weighted_edge_blocks")
        return {name: self.__dict__[name] for name in names + blocks if name in self.__dict__}


_make_edge_blocks_on_device = jax.jit(make_edge_blocks)


def _placed[Tree](tree: Tree) -> Tree:
    return jax.tree.map(put_own, tree)


def _common(degrees: np.ndarray, num_edges: int) -> int | None:
    if num_edges == 0 or (degrees != degrees[0]).any() or degrees.sum() != num_edges:
        return None
    return int(degrees[0])


class PlanOnDemand:
    """A descriptor of the field ``plan`` of ``CSRGraph``, built when it is first read.

    All graphs from constructors should be the same pytree, with the parts that ``spmm`` and its
    gradients need: a jitted function can not keep the parts that it computes. Flattening reads the
    field. An op that gets a concrete graph builds only the parts that it needs, which may be fewer.
    """

    def __get__(self, graph: Any, owner: Any = None) -> GraphPlan | None:
        if graph is None:
            return None
        plan = graph.__dict__.get("plan") or graph.__dict__.get(_LEAVES)
        if plan is None and makes_plan(graph):
            parts = parts_of_leaves(weighted=graph.weights is not None)
            plan = graph.__dict__[_LEAVES] = graph.concrete_parts().plan(parts)
        return plan

    def __set__(self, graph: Any, plan: GraphPlan | None) -> None:
        graph.__dict__["plan"] = plan


_MARK, _LEAVES = "_makes_plan_on_demand", "_plan_of_leaves"


def plan_on_demand[Graph](graph: Graph, like: Any = None) -> Graph:
    """Makes ``graph`` build its plan on first read; with ``like``, only if that graph does."""
    if like is None or makes_plan(like):
        graph.__dict__[_MARK] = True
    return graph


def makes_plan(graph: Any) -> bool:
    """Returns whether the graph is from a constructor, which has checked it."""
    return _MARK in graph.__dict__


def given_plan(graph: Any) -> GraphPlan | None:
    """Returns the plan that the graph was given, without building one; None if there is none."""
    return graph.__dict__.get("plan")
