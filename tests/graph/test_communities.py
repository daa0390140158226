"""Communities: those that were planted are found, and none where there are none."""

import jax
import numpy as np
import pytest

from jaxgnn import CSRGraph
from jaxgnn.graph._communities import find_communities
from jaxgnn.testing import GRAPHS

NODES, COMMUNITIES = 6_000, 6


def _planted(inside, edges=240_000, senders=NODES, communities=COMMUNITIES, padding=0):
    """A graph some of whose edges stay in a community, and the community of each row."""
    rng = np.random.default_rng(0)
    of_rows, of_cols = rng.integers(communities, size=NODES), np.arange(senders) % communities
    receivers = rng.integers(NODES, size=edges)
    anywhere = rng.integers(senders, size=edges)
    nearest = anywhere - anywhere % communities + of_rows[receivers]
    stays = (rng.random(edges) < inside) & (nearest < senders)
    mask = np.arange(edges + padding) < edges
    ends = (
        np.append(e, np.zeros(padding, int))
        for e in (np.where(stays, nearest, anywhere), receivers)
    )
    graph = CSRGraph.from_edges(*ends, NODES, num_senders=senders, edge_mask=mask)
    assert (of_cols[nearest[stays]] == of_rows[receivers[stays]]).all()
    return graph, of_rows


def _arrays(graph):
    plan = graph.plan
    senders = np.full(graph.num_edges, graph.num_cols, np.int32)
    degrees = np.diff(plan.transposed_indptr)
    senders[: int(graph.indptr[-1])] = np.repeat(np.arange(graph.num_cols), degrees)
    ends = graph.indptr, plan.transposed_indptr, plan.transposed_indices
    return *map(np.asarray, ends), senders


CASES = {
    "square": {},
    "bipartite": {"senders": 1_500},
    "masked edges": {"padding": 5_000},
    "few edges a row": {"edges": 120_000, "inside": 0.8},
    "many edges leave": {"edges": 600_000, "inside": 0.4},
}


@pytest.mark.parametrize("case", CASES)
def test_planted_communities_are_found(case):
    graph, planted = _planted(**{"inside": 0.6} | CASES[case])
    found = find_communities(*_arrays(graph))
    assert found.dtype == np.int32
    together = np.zeros((COMMUNITIES, 256), int)
    np.add.at(together, (planted, found), 1)
    # A community may be cut in two by a split, and two may fall on the same sides of all.
    two_largest = np.sort(together, axis=1)[:, -2:].sum()
    assert two_largest >= 0.95 * NODES
    assert together.max(0).sum() >= 0.8 * NODES


@pytest.mark.parametrize("inside, communities", [(0.0, 6), (0.6, 1), (0.15, 6)])
def test_rows_have_one_number_where_edges_go_anywhere(inside, communities):
    graph, _ = _planted(inside, communities=communities)
    np.testing.assert_array_equal(find_communities(*_arrays(graph)), 0)


BUILDS = {case.name: case.build for case in GRAPHS} | {
    "planted": lambda: _planted(0.6)[0],
    "bipartite, masked edges": lambda: _planted(0.6, senders=1_500, padding=5_000)[0],
}


@pytest.mark.parametrize("name", BUILDS)
def test_found_under_jit_are_those_of_the_host(name):
    arrays = _arrays(BUILDS[name]())
    np.testing.assert_array_equal(jax.jit(find_communities)(*arrays), find_communities(*arrays))
