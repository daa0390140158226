"""Communities: those that were planted are found, and none where there are none."""

import jax
import numpy as np
import pytest

from jaxgnn import CSRGraph
from jaxgnn.graph.plan import communities as _communities
from jaxgnn.graph.plan.communities import find_communities
from jaxgnn.testing import GRAPHS
from tests.graph._oracles import edges_by_sender

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
    found = find_communities(*edges_by_sender(graph))
    assert found.dtype == np.int32
    together = np.zeros((COMMUNITIES, 256), int)
    np.add.at(together, (planted, found), 1)
    # A community may be cut in two by a split, and two may fall on the same sides of all.
    two_largest = np.sort(together, axis=1)[:, -2:].sum()
    assert two_largest >= 0.95 * NODES
    assert together.max(0).sum() >= 0.8 * NODES


@pytest.mark.parametrize(
    "inside, options",
    [
        (0.0, {}),
        (0.6, {"communities": 1}),
        (0.15, {}),
        (0.2, {"communities": 24, "edges": 900_000}),
    ],
)
def test_rows_have_one_number_where_edges_go_anywhere(inside, options):
    graph, _ = _planted(inside, **options)
    np.testing.assert_array_equal(find_communities(*edges_by_sender(graph)), 0)


def test_a_fifth_of_the_edges_inside_would_be_found_if_that_were_enough(monkeypatch):
    monkeypatch.setattr(_communities, "_LEAST_INSIDE", 6)
    graph, planted = _planted(0.2, communities=24, edges=900_000)
    found = find_communities(*edges_by_sender(graph))
    assert np.mean([np.bincount(found[planted == c]).max() for c in range(24)]) > 200


def test_padding_is_not_inside_a_community():
    rng = np.random.default_rng(0)
    ends, padding = rng.integers(NODES - 1, size=(2, 100_000)), 300_000
    # The last sender and the last receiver, where padding is counted, are a community.
    ends = np.concatenate([ends, np.full((2, 1 + padding), NODES - 1)], axis=1)
    mask = np.arange(ends.shape[1]) <= 100_000
    graph = CSRGraph.from_edges(*ends, NODES, edge_mask=mask)
    np.testing.assert_array_equal(find_communities(*edges_by_sender(graph)), 0)


def _loops_and_a_path(count=10_000, path=4):
    """Each node sends to itself, and a few in turn to the next."""
    nodes = np.arange(count)
    senders, receivers = np.append(nodes, nodes[:path]), np.append(nodes, nodes[1 : path + 1])
    return CSRGraph.from_edges(senders, receivers, count)


BUILDS = {case.name: case.build for case in GRAPHS} | {
    "planted": lambda: _planted(0.6)[0],
    "anywhere": lambda: _planted(0.0)[0],
    "hardly a change in the first round": _loops_and_a_path,
    "bipartite, masked edges": lambda: _planted(0.6, senders=1_500, padding=5_000)[0],
}


@pytest.mark.costly
@pytest.mark.parametrize("name", BUILDS)
def test_found_under_jit_are_those_of_the_host(name):
    arrays = edges_by_sender(BUILDS[name]())
    np.testing.assert_array_equal(jax.jit(find_communities)(*arrays), find_communities(*arrays))
