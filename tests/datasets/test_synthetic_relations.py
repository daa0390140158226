"""A generated graph of several types has the classes, the edges and the sizes that it promises."""

import numpy as np
import pytest

from jaxgnn import datasets

WRITES, PUBLISHES, CITES = (
    ("author", "writes", "paper"),
    ("venue", "publishes", "paper"),
    ("paper", "cites", "paper"),
)
# Smallest of everything, and relations without a signal or without noise.
CASES = {
    "default": {},
    "smallest": {"papers": 100, "authors": 4, "venues": 2, "signal": 0.0},
    "odd": {"papers": 203, "authors": 51, "venues": 7, "fidelity": 1.0},
    "random": {"papers": 400, "authors": 9, "venues": 3, "fidelity": 0.0},
}


@pytest.mark.parametrize("name", CASES)
def test_edges_are_distinct_and_sorted_and_classes_of_equal_size(name):
    data = datasets.synthetic_relations(**CASES[name], seed=3)
    assert list(data.edges) == [WRITES, PUBLISHES, CITES] and data.target == "paper"
    for (sender, _, receiver), ends in data.edges.items():
        assert ends.dtype == np.int32 and ends.min() >= 0
        assert (ends.max(axis=1) < [data.num_nodes[sender], data.num_nodes[receiver]]).all()
        keys = ends[1].astype(np.int64) * data.num_nodes[sender] + ends[0]
        assert (np.diff(keys) > 0).all()
    papers = data.num_nodes["paper"]
    authors = np.bincount(data.edges[WRITES][1], minlength=papers)
    assert authors.min() == 1 and authors.max() <= 4
    np.testing.assert_array_equal(data.edges[PUBLISHES][1], np.arange(papers))
    cited, citing = data.edges[CITES]
    assert (cited != citing).all() and np.bincount(citing).max() == 4
    assert np.ptp(np.bincount(data.labels, minlength=data.num_classes)) <= 1
    parts = np.concatenate([data.train, data.validation, data.test])
    np.testing.assert_array_equal(np.sort(parts), np.arange(papers))
    for part in (data.train, data.validation, data.test):
        assert np.unique(data.labels[part]).size == data.num_classes
    for kind, rows in data.features.items():
        assert rows.shape == (data.num_nodes[kind], 16) and rows.dtype == np.float32


def _agreement(labels, one, other):
    """Shares of pairs of papers with equal topics and equal areas."""
    return [np.mean(part[one] == part[other]) for part in (labels // 2, labels % 2)]


def _papers_of_one(ends):
    """Pairs of successive papers of one sender."""
    order = np.lexsort((ends[1], ends[0]))
    senders, papers = ends[:, order]
    same = senders[1:] == senders[:-1]
    return papers[:-1][same], papers[1:][same]


@pytest.mark.parametrize(("fidelity", "follow"), [(0.8, 0.8), (1.0, 1.0), (0.0, 0.0)])
def test_authors_and_citations_tell_the_topic_and_venues_the_area(fidelity, follow):
    data = datasets.synthetic_relations(8000, 2000, 60, fidelity=fidelity, seed=1)
    of_same = follow**2  # both papers were joined to the sender's own group
    topic, area = 1 / 4, 1 / 2
    expected = {
        "writes": (_papers_of_one(data.edges[WRITES]), (of_same + (1 - of_same) * topic, area)),
        "publishes": (
            _papers_of_one(data.edges[PUBLISHES]),
            (topic, of_same + (1 - of_same) * area),
        ),
        "cites": (data.edges[CITES], (follow + (1 - follow) * topic, area)),
    }
    for name, (pairs, shares) in expected.items():
        np.testing.assert_allclose(_agreement(data.labels, *pairs), shares, atol=0.03, err_msg=name)


def test_equal_seeds_give_equal_data_and_others_differ():
    data, again, other = (datasets.synthetic_relations(seed=seed) for seed in (4, 4, 5))
    for a, b in ((data.edges, again.edges), (data.features, again.features)):
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])
    np.testing.assert_array_equal(data.train, again.train)
    assert not np.array_equal(data.labels, other.labels)
    assert not np.array_equal(data.train, other.train)


def test_features_without_signal_have_no_centres():
    data = datasets.synthetic_relations(8000, seed=2, signal=0.0)
    strong = datasets.synthetic_relations(8000, seed=2, signal=4.0)
    for dataset, low, high in ((data, 0, 0.2), (strong, 2, 6)):
        rows = dataset.features["paper"]
        centres = [rows[dataset.labels == label].mean(axis=0) for label in range(8)]
        assert low <= np.linalg.norm(centres, axis=1).mean() <= high


BAD = {
    "papers": (99, "papers must be an int of at least 100, got 99"),
    "authors": (3, "authors must be an int of at least 4, got 3"),
    "venues": (2.0, "venues must be an int of at least 2, got 2.0"),
    "fidelity": (float("nan"), r"fidelity must be in \[0, 1\], got nan"),
    "signal": (float("inf"), "signal must be finite and at least 0, got inf"),
    "seed": (-1, "seed must be an integer from 0 on, got -1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_numbers_are_named(name):
    value, message = BAD[name]
    with pytest.raises(ValueError, match=f"datasets.synthetic_relations: {message}"):
        datasets.synthetic_relations(**{name: value})
