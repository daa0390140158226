import sys

import numpy as np
import pytest

from jaxgnn.datasets import digits


@pytest.fixture(scope="module")
def data():
    return digits()


def edge_set(data):
    return set(zip(data.senders.tolist(), data.receivers.tolist(), strict=True))


def test_shapes_dtypes_and_ranges(data):
    data.validate()
    assert data.features.shape == (1797, 64)
    assert (data.features.min(), data.features.max()) == (0, 1)
    assert data.num_classes == 10


def test_graph_is_symmetric_without_self_edges_or_repeats(data):
    edges = edge_set(data)
    assert len(edges) == data.num_edges
    assert all((receiver, sender) in edges for sender, receiver in edges)
    assert all(sender != receiver for sender, receiver in edges)


def test_edges_are_the_nearest_neighbours_of_a_brute_force_search(data):
    distances = ((data.features[:50, None] - data.features[None]) ** 2).sum(-1)
    distances[np.arange(50), np.arange(50)] = np.inf
    eighth = np.sort(distances, axis=1)[:, 7]
    edges = edge_set(data)
    for node in range(50):
        closer = np.flatnonzero(distances[node] < eighth[node])
        assert all((neighbor, node) in edges for neighbor in closer.tolist())
    degrees = np.bincount(data.receivers)
    assert degrees.min() >= 8


def test_split_covers_every_digit_in_the_same_proportion(data):
    splits = (data.train, data.validation, data.test)
    assert sum(split.size for split in splits) == data.num_nodes
    totals = np.bincount(data.labels)
    for split, fraction in zip(splits, (0.6, 0.2, 0.2), strict=True):
        share = np.bincount(data.labels[split], minlength=10) / totals
        np.testing.assert_allclose(share, fraction, atol=0.006)


def test_same_seed_same_split_and_other_seed_other_split(data):
    np.testing.assert_array_equal(digits().test, data.test)
    assert not np.array_equal(digits(seed=1).test, data.test)


def test_training_neighbours_predict_the_digit(data):
    votes = np.zeros((data.num_nodes, 10))
    seen = np.isin(data.senders, data.train)
    np.add.at(votes, (data.receivers[seen], data.labels[data.senders[seen]]), 1)
    accuracy = (votes.argmax(1) == data.labels)[data.test].mean()
    assert accuracy > 0.97


@pytest.mark.parametrize("neighbors", [0, 1797])
def test_impossible_number_of_neighbours_is_refused(neighbors):
    with pytest.raises(ValueError, match=f"neighbors: expected 1 to 1796, got {neighbors}"):
        digits(neighbors)


def test_missing_scikit_learn_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"jaxgnn\[experiments\]"):
        digits()
