"""The methods without a network do what they say, and only validation nodes choose settings."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse

from experiments import _baselines
from experiments._baselines import _say_once, baselines
from jaxgnn.datasets import NodeDataset, cora
from jaxgnn.metrics import mean_roc_auc
from tests.datasets import formats

NAMES = [
    "majority class",
    "label propagation",
    "logistic regression",
    "logistic regression, smoothed",
    "nearest neighbours",
]


@pytest.fixture(scope="module")
def papers():
    return cora(seed=0)


@pytest.fixture(scope="module")
def found_on_papers(papers):
    return baselines(papers)


def ids(*values):
    return np.array(values, np.int32)


def path_graph(features, labels, train, validation, test):
    """Nodes in a row, each joined to the next."""
    left = np.arange(len(labels) - 1, dtype=np.int32)
    return NodeDataset(
        name="path",
        senders=np.concatenate([left, left + 1]),
        receivers=np.concatenate([left + 1, left]),
        features=np.asarray(features, np.float32)[:, None],
        labels=ids(*labels),
        train=ids(*train),
        validation=ids(*validation),
        test=ids(*test),
        num_classes=2,
    )


def predictions(method, dataset):
    return {setting: found.argmax(axis=1).tolist() for setting, found in method(dataset)}


def test_the_graph_of_cora_says_more_than_its_words_and_both_together_most(found_on_papers):
    assert list(found_on_papers) == NAMES[:4]
    majority, propagated, words, smoothed = (one.test for one in found_on_papers.values())
    assert majority < 0.2 < 0.5 < words < 0.68 < propagated < 0.78 < 0.8 < smoothed


def test_labels_of_test_nodes_change_neither_setting_nor_validation(papers, found_on_papers):
    labels = papers.labels.copy()
    labels[papers.test] = (labels[papers.test] + 1) % papers.num_classes
    spoiled = baselines(dataclasses.replace(papers, labels=labels))
    for name, score in found_on_papers.items():
        assert spoiled[name].setting == score.setting
        assert spoiled[name].validation == score.validation
    assert spoiled["label propagation"].test < 0.2


def test_majority_is_that_of_the_training_nodes():
    data = path_graph(np.zeros(7), [0, 1, 1, 0, 0, 0, 0], (0, 1, 2), (3, 4), (5, 6))
    assert predictions(_baselines._majority, data) == {"": [1] * 7}


def test_labels_spread_one_edge_a_step_and_training_nodes_keep_theirs():
    data = path_graph(np.zeros(9), [1, 1, 1, 1, 0, 0, 0, 0, 0], (0, 7, 8), (1, 2, 5), (3, 4, 6))
    found = predictions(_baselines._label_propagation, data)
    # Two of three training nodes are of class 0, which stands where nothing has arrived yet.
    assert found["1 steps"] == [1, 1, 0, 0, 0, 0, 0, 0, 0]
    assert found["4 steps"] == [1, 1, 1, 0, 0, 0, 0, 0, 0]
    assert found["128 steps"] == [1, 1, 1, 1, 0, 0, 0, 0, 0]


def test_neighbours_vote_and_a_training_node_is_not_its_own():
    data = path_graph([0, 1, 2, 9, 10, 11, 3], [0, 1, 0, 1, 1, 1, 0], (0, 1, 2, 3, 4), (5,), (6,))
    found = predictions(_baselines._nearest_neighbours, data)
    assert found["k = 1"] == [1, 0, 1, 1, 1, 1, 0]
    assert found["k = 3"][5:] == [1, 0]
    assert "k = 5" not in found


def test_regression_is_at_the_minimum_of_its_objective():
    rng = np.random.default_rng(0)
    x, classes = rng.normal(size=(30, 4)), rng.integers(0, 3, 30)
    targets = np.eye(3)[classes]

    def objective(weights):
        logits = x @ weights[:-1] + weights[-1]
        losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(30), classes]
        return losses.mean() + 0.05 * (weights[:-1] ** 2).sum()

    found = _baselines._fit(x, targets, 0.1, np.zeros((5, 3)), tasks=False)
    steps = 1e-3 * rng.normal(size=(20, 5, 3))
    assert all(objective(found + step) > objective(found) for step in steps)


@pytest.mark.parametrize("make", [np.asarray, scipy.sparse.csr_array])
def test_regression_in_the_span_of_training_nodes_is_the_one_of_all_features(make):
    rng = np.random.default_rng(1)
    features = rng.normal(size=(40, 25)) * (rng.random((40, 25)) < 0.4)
    train, targets = np.arange(12), np.eye(3)[rng.integers(0, 3, 12)]
    short = _baselines._in_training_span(make(features), train)
    assert short.shape == (40, 12)
    few = _baselines._fit(short[train], targets, 0.1, np.zeros((13, 3)), tasks=False)
    all_ = _baselines._fit(features[train], targets, 0.1, np.zeros((26, 3)), tasks=False)
    expected = features @ all_[:-1] + all_[-1]
    np.testing.assert_allclose(short @ few[:-1] + few[-1], expected, atol=2e-4)


def test_tasks_are_scored_by_what_the_data_set_is_scored_by():
    data = formats.small_dataset(tasks=3)
    labels = (data.features > 0).astype(np.float32)
    data = dataclasses.replace(data, labels=labels)
    for score in (None, mean_roc_auc):
        found = baselines(data, score)
        assert list(found) == NAMES
        assert all(
            0 <= value <= 1 for one in found.values() for value in (one.test, one.validation)
        )
    assert found["majority class"].test == 0.5
    assert found["logistic regression"].validation > 0.8


def test_what_takes_too_long_is_left_out_and_the_reason_printed(papers, monkeypatch, capsys):
    _say_once.cache_clear()  # another test may have been told already
    monkeypatch.setattr(_baselines, "_MOST_WORK", 1_000)
    assert list(baselines(papers)) == ["majority class"]
    printed = capsys.readouterr().out
    assert "label propagation is left out on cora: 70,966 edges times classes, more than" in printed
    assert "nearest neighbours is left out on cora: 1433 features, more than 256" in printed
