"""A subgraph for each seed: its root, its scope, and the chances of its nodes."""

import numpy as np
import pytest
from scipy.stats import chisquare

from jaxgnn import CSRGraph, sampling
from tests.sampling._whole_graphs import NODES, assert_induced, edges_of, random_graph

LABELS = np.arange(NODES) * 2


def _distances(graph, seed, most):
    """Nodes within some hops against the direction of edges."""
    senders, receivers, _ = edges_of(graph)
    found = {seed}
    for _ in range(most):
        found |= set(senders[np.isin(receivers, list(found))].tolist())
    return found


def test_a_subgraph_has_its_seed_first_and_nodes_of_its_scope():
    whole = random_graph()
    seeds = [5, 5, 59, 17, 3]  # repeated, and without edges
    options = {"labels": LABELS, "shuffle": False}
    for fanouts in ((2, 1), (-1, -1), (100,)):
        loader = sampling.ShadowLoader(whole, seeds, fanouts, 3, **options)
        for step, expected in enumerate(([5, 5, 59], [17, 3])):
            batch = loader.batch(0, step)
            assert_induced(batch, whole)
            assert batch.seed_mask.tolist() == [True, True, step == 0]
            root, ids = np.asarray(batch.root), np.asarray(batch.graph_ids)
            assert batch.n_id[root][: len(expected)].tolist() == expected
            assert batch.y[: len(expected)].tolist() == [2 * seed for seed in expected]
            for at, seed in enumerate(expected):
                own = np.asarray(batch.n_id)[ids == at].tolist()
                assert own[0] == seed and own[1:] == sorted(own[1:])
                scope = _distances(whole, seed, len(fanouts))
                assert set(own) <= scope
                if -1 in fanouts or 100 in fanouts:
                    assert set(own) == scope
                else:
                    assert len(own) <= 1 + 2 + 2
    assert ids[~np.asarray(batch.node_mask)].tolist() == [3] * int((~batch.node_mask).sum())


def test_neighbours_are_drawn_with_equal_chances_without_replacement():
    # Node 0 has senders 1 to 6; each of them has two senders of its own.
    senders = [*range(1, 7), *range(7, 19)]
    receivers = [0] * 6 + [1 + i // 2 for i in range(12)]
    tree = CSRGraph.from_edges(senders, receivers, 19)
    loader = sampling.ShadowLoader(tree, [0], (2, 1), 1)
    draws, counts, pairs = 400, np.zeros(19, int), np.zeros((7, 7), int)
    for epoch in range(draws):
        nodes = loader.draw(loader._step(epoch, 0, 0)).n_id
        assert len(nodes) == 5
        counts[nodes] += 1
        pairs[tuple(nodes[1:3])] += 1
    assert counts[0] == draws
    assert chisquare(counts[1:7]).pvalue > 1e-3 and chisquare(counts[7:]).pvalue > 1e-3
    assert chisquare(pairs[np.triu_indices(7, 1)][6:]).pvalue > 1e-3  # all pairs of 1 to 6


def test_seeds_are_shuffled_and_each_is_once_in_an_epoch():
    loader = sampling.ShadowLoader(random_graph(), np.arange(NODES) < 25, (1,), 10)
    orders = [
        np.concatenate([b.n_id[b.root[np.asarray(b.seed_mask)]] for b in loader.epoch(epoch)])
        for epoch in (0, 1)
    ]
    assert [np.sort(order).tolist() for order in orders] == [list(range(25))] * 2
    assert (orders[0] != orders[1]).any()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"seeds": []}, "seeds must be at least one node, got none"),
        ({"seeds": [1, 60]}, "seeds must be node ids from 0 to 59, got 60"),
        ({"seeds": np.ones(59, bool)}, "seeds must be a mask of shape"),
        ({"fanouts": (2, 0)}, "fanouts must be positive"),
        ({"fanouts": (2, -2)}, "fanouts must be positive"),
        ({"fanouts": 3}, "fanouts must be a number for each layer"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
    ],
)
def test_errors_name_what_is_wrong(arguments, message):
    with pytest.raises(ValueError, match=f"sampling.ShadowLoader: {message}"):
        sampling.ShadowLoader(random_graph(), **{"seeds": [1], **arguments})
