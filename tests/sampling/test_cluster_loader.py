"""Batches of clusters: each node once an epoch, clusters found or given, and kept in a folder."""

import numpy as np
import pytest

from jaxgnn import sampling
from jaxgnn.datasets import SyntheticScale, synthetic
from jaxgnn.distributed import _partition
from jaxgnn.graph import CSRGraph
from tests.sampling._whole_graphs import NODES, random_graph

CLUSTERS = np.arange(NODES) % 7 * 3  # numbers with gaps


def _never(*arguments):
    raise AssertionError("clusters are computed again")


def test_every_node_is_in_one_batch_of_an_epoch_with_all_of_its_cluster():
    loader = sampling.ClusterLoader(random_graph(), CLUSTERS, 2)
    assert len(loader) == 4 and loader.num_clusters == 7
    for epoch in (0, 1):
        nodes = [np.asarray(b.n_id)[np.asarray(b.node_mask)] for b in loader.epoch(epoch)]
        assert np.sort(np.concatenate(nodes)).tolist() == list(range(NODES))
        for each in nodes:
            chosen = np.unique(CLUSTERS[each])
            assert len(chosen) in (1, 2)
            np.testing.assert_array_equal(each, np.flatnonzero(np.isin(CLUSTERS, chosen)))


def test_node_weights_of_an_epoch_have_the_mean_over_training_nodes():
    train = np.arange(5, 40)
    loss = np.random.default_rng(0).random(NODES)
    loader = sampling.ClusterLoader(random_graph(), CLUSTERS, 2, train=train)
    totals = [(np.asarray(b.node_weight) * loss[np.asarray(b.n_id)]).sum() for b in loader]
    np.testing.assert_allclose(np.mean(totals), loss[train].mean(), rtol=1e-6)


def test_found_clusters_cut_fewer_edges_and_are_kept_in_a_folder(tmp_path, monkeypatch):
    data = synthetic(SyntheticScale(500, 10_000, 1, 8, 0.3), homophily=0.9)
    whole = CSRGraph.from_edges(data.senders, data.receivers, 500)
    found = sampling.ClusterLoader(whole, 8, cache=tmp_path).cluster_of
    inside = found[data.senders] == found[data.receivers]
    sizes = np.bincount(found)
    assert inside.mean() > 0.6 and sizes.min() >= 31 and sizes.max() <= 66
    monkeypatch.setitem(_partition._METHODS, "communities", _never)
    again = sampling.ClusterLoader(whole, 8, cache=tmp_path).cluster_of
    np.testing.assert_array_equal(again, found)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"clusters": 0}, "clusters must be an integer of at least 1, got 0"),
        ({"clusters": 61}, "clusters must be at most one for each of 60 nodes, got 61"),
        ({"clusters": np.zeros(59, int)}, r"clusters must be .* of shape \(60,\).*got int64 of"),
        ({"clusters": np.full(60, -1)}, r"clusters\[0\] must be not negative, got -1"),
        ({"batch_clusters": 0}, "batch_clusters must be an integer of at least 1, got 0"),
        ({"method": "louvain"}, "method must be one of 'communities', .*, got 'louvain'"),
    ],
)
def test_errors_name_what_is_wrong(arguments, message):
    with pytest.raises(ValueError, match=f"sampling.ClusterLoader: {message}"):
        sampling.ClusterLoader(random_graph(), **{"clusters": 3, **arguments})
    with pytest.raises(ValueError, match="graph must be not normalised"):
        sampling.ClusterLoader(random_graph().normalized("mean"), 3)
