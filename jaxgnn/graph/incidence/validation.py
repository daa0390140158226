"""Checks of a hypergraph's ids, at trace time and on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import numpy as np

from jaxgnn._arrays.arrays import is_concrete, require_integers, require_length, require_size
from jaxgnn._errors import bad_input
from jaxgnn.graph.csr.validation import check_shapes
from jaxgnn.graph.incidence.incidence_plan import make_incidence_plan

if TYPE_CHECKING:
    from jaxgnn.graph.incidence.incidence import Incidence


def validate_incidence(incidence: Incidence) -> None:
    """Raises ValueError naming the first invalid entry."""
    if not is_concrete(*jax.tree.leaves(incidence)):
        raise bad_input("Incidence.validate", "self", "concrete; call it outside jit", "a tracer")
    check_incidence_shapes("Incidence", incidence)
    check_incidence_ids("Incidence", incidence)
    if incidence.plan is not None:
        _check_plan(incidence)


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
        check_shapes(where, incidence.plan.by_hyperedge)
        check_shapes(where, incidence.plan.by_node)
        for name, graph, shape in (
            ("by_hyperedge", incidence.plan.by_hyperedge, incidence.shape[::-1]),
            ("by_node", incidence.plan.by_node, incidence.shape),
        ):
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


def _check_plan(incidence: Incidence) -> None:
    """Raises unless the plan equals the one of these ids; another gives wrong results."""
    expected = make_incidence_plan(incidence.node_ids, incidence.hyperedge_ids, *incidence.shape)
    given, structure = jax.tree.flatten_with_path(incidence.plan)
    wanted = structure.flatten_up_to(expected)
    for (path, got), want in zip(given, wanted, strict=True):
        name = "plan" + jax.tree_util.keystr(path)
        got, want = np.asarray(got), np.asarray(want)
        if got.shape != want.shape:
            raise bad_input("Incidence", name, f"of shape {want.shape}", got.shape)
        if (got != want).any():
            at = int(np.flatnonzero(got != want)[0])
            raise bad_input("Incidence", f"{name}[{at}]", str(want[at]), got[at])
