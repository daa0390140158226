"""Dense neighbour lists: arrays [nodes, neighbours, ...], and the same by edges.

``table[ids]`` with ids [nodes, neighbours] has a row for each pair. With pairs
numbered row by row it is an array of edges, whose receivers are counted up. ``Flattened`` writes an
array of a list as such an array of edges, as code with gathers and segment sums would compute it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxgnn.fusion.program.matching import need, or_none
from jaxgnn.fusion.program.program import Atom, Equation, Values
from jaxgnn.fusion.program.variables import View

Made = Callable[[Values], Any]  # Computes an array of edges from the values of its inputs.

# Primitives of one entry each, through which products of edges are followed.
_ENTRYWISE = frozenset(("mul", "div", "neg", "convert_element_type", "select_n"))


@dataclass(frozen=True)
class ListGather:
    """Gather of rows of ``table`` by a list of ids."""

    equation: Equation  # Equation of the gather.
    table: Atom  # Array that is read along its first axis.
    ids: Atom  # Variable of the ids, integers [nodes, neighbours, 1].

    def read(self, table: Any, ids: Any) -> Any:
        """Reads rows of a table as an array of edges, [nodes * neighbours, ...]."""
        params = dict(self.equation.params)
        kept = tuple(range(1, table.ndim))
        params["dimension_numbers"] = params["dimension_numbers"]._replace(offset_dims=kept)
        return self.equation.primitive.bind(table, ids.reshape(-1, 1), **params)


@or_none
def list_gather(view: View, atom: Atom) -> ListGather:
    """Returns the gather by a list [nodes, neighbours] that computes an atom, or None."""
    equation = view.match(atom, "gather")
    table, ids = equation.invars
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    need(not numbers.operand_batching_dims and not numbers.start_indices_batching_dims)
    need(ids.aval.ndim == 3 and ids.aval.shape[2] == 1)
    need(tuple(numbers.collapsed_slice_dims) == tuple(numbers.start_index_map) == (0,))
    need(tuple(numbers.offset_dims) == tuple(range(2, 1 + table.aval.ndim)))
    need(list(sizes) == [1, *table.aval.shape[1:]])
    return ListGather(equation, table, ids)


@dataclass
class Flattened:
    """Arrays of a list, written as arrays of edges.

    Attributes:
      view: the view of the program.
      nodes: number of nodes.
      neighbours: number of neighbours of a node.
      inputs: atoms that the arrays of edges are computed of.
      gathers: the gathers that were met.
    """

    view: View
    nodes: int
    neighbours: int
    inputs: list[Atom] = field(default_factory=list)
    gathers: list[ListGather] = field(default_factory=list)

    @property
    def receivers(self) -> np.ndarray:
        """The node of each edge, int32 [nodes * neighbours]."""
        return np.repeat(np.arange(self.nodes, dtype=np.int32), self.neighbours)

    def edge_array(self, atom: Atom) -> Made:
        """Returns the computation of an array [nodes, neighbours, ...] as an array of edges.

        Either axis may have one entry instead, which is repeated along it.
        """
        if tuple(atom.aval.shape[:2]) != (self.nodes, self.neighbours):
            return self._repeated(atom)
        gather = list_gather(self.view, atom)
        if gather is not None:
            return self._rows(gather)
        equation = self.view.producer(atom)
        name = "" if equation is None else equation.primitive.name
        if equation is not None and name in _ENTRYWISE and not equation.params.get("sharding"):
            return self._entrywise(equation)
        if equation is not None and name == "broadcast_in_dim" and len(equation.invars) == 1:
            return self._broadcast(equation)
        if equation is not None and name in ("reshape", "squeeze"):
            inner = equation.invars[0]
            if tuple(inner.aval.shape[:2]) == (self.nodes, self.neighbours):
                array, shape = self.edge_array(inner), (-1, *atom.aval.shape[2:])
                return lambda values: array(values).reshape(shape)
        return self._unchanged(atom)

    def _rows(self, gather: ListGather) -> Made:
        self.gathers.append(gather)
        self.inputs += [gather.table, gather.ids]
        return lambda values: gather.read(values[gather.table], values[gather.ids])

    def _entrywise(self, equation: Equation) -> Made:
        parts = [self.edge_array(a) if a.aval.ndim else self._number(a) for a in equation.invars]
        params = equation.params
        return lambda values: equation.primitive.bind(*(p(values) for p in parts), **params)

    def _repeated(self, atom: Atom) -> Made:
        """Repeats an array that has one entry along an axis of the list, or along both."""
        nodes, neighbours, *behind = atom.aval.shape
        self.inputs.append(atom)
        if neighbours != 1 and nodes == 1:
            positions = np.tile(np.arange(neighbours, dtype=np.int32), self.nodes)
        else:
            positions = self.receivers

        def repeat(values: Values) -> Any:
            table = values[atom].reshape(-1, *behind)
            if nodes == neighbours == 1:
                return table
            return table.at[positions].get(mode="promise_in_bounds")

        return repeat

    def _broadcast(self, equation: Equation) -> Made:
        """Writes a broadcast, whose operand may have both axes of the list, by edges."""
        (inner,), (output,) = equation.invars, equation.outvars
        dims, shape = equation.params["broadcast_dimensions"], output.aval.shape
        if tuple(dims[:2]) == (0, 1):
            array, kept = self.edge_array(inner), (0, *(d - 1 for d in dims[2:]))
        elif not dims or dims[0] > 1:  # All edges share the operand.
            self.inputs.append(inner)
            array, kept = (lambda values: values[inner]), tuple(d - 1 for d in dims)
        else:
            return self._unchanged(output)
        of_edges = self.nodes * self.neighbours, *shape[2:]
        return lambda values: lax.broadcast_in_dim(array(values), of_edges, kept)

    def _number(self, atom: Atom) -> Made:
        self.inputs.append(atom)
        return lambda values: values[atom]

    def _unchanged(self, atom: Atom) -> Made:
        self.inputs.append(atom)
        shape = self.nodes * self.neighbours, *atom.aval.shape[2:]
        return lambda values: jnp.reshape(values[atom], shape)
