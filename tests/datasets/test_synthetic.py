import dataclasses

import jax
import numpy as np
import pytest

from jaxgnn.datasets import SCALES, SyntheticScale, synthetic

TINY = SCALES["tiny"]
TASKS = dataclasses.replace(TINY, tasks=9)
DENSE = SyntheticScale(120, 4_000, 4, 3, 0.6)  # a third of all pairs
FULL = SyntheticScale(6, 30, 4, 3, 0.6)


@pytest.fixture(scope="module")
def data():
    return synthetic("tiny", seed=3)


def same_community(data):
    return (data.labels[data.senders] == data.labels[data.receivers]).mean()


def nearest_centre_accuracy(data, features):
    """Test accuracy of assigning each node to the closest mean of the training classes."""
    train, test = data.train, data.test
    centres = np.stack(
        [features[train][data.labels[train] == c].mean(0) for c in range(data.num_classes)]
    )
    distances = ((features[test][:, None] - centres[None]) ** 2).sum(-1)
    return (distances.argmin(1) == data.labels[test]).mean()


@pytest.mark.costly
@pytest.mark.parametrize("sizes", [TINY, TASKS, DENSE], ids=["tiny", "tasks", "dense"])
def test_arrays_are_consistent_and_sized_as_asked(sizes):
    data = synthetic(sizes, seed=3)
    data.validate()
    assert data.features.shape == (sizes.nodes, sizes.features)
    assert data.num_edges == pytest.approx(sizes.edges, rel=0.03)
    assert data.multilabel == (sizes.tasks is not None)
    assert data.num_classes == (sizes.tasks or sizes.communities)
    assert data.train.size == round(sizes.train * sizes.nodes)
    assert sum(s.size for s in (data.train, data.validation, data.test)) == sizes.nodes


def test_splits_have_their_decimal_share_of_the_nodes():
    # As floats, 0.29 · 100 and 0.57 · 100 are below 29 and 57.
    data = synthetic(SyntheticScale(100, 200, 4, 3, 0.5, train=0.29, validation=0.57))
    assert (data.train.size, data.validation.size, data.test.size) == (29, 57, 14)


def test_graph_is_symmetric_without_self_edges_or_repeats(data):
    forward = data.receivers.astype(np.int64) * data.num_nodes + data.senders
    backward = data.senders.astype(np.int64) * data.num_nodes + data.receivers
    assert (np.diff(forward) > 0).all()  # sorted by receiver, then sender, hence no repeats
    np.testing.assert_array_equal(forward, np.sort(backward))
    assert (data.senders != data.receivers).all()


def test_degrees_follow_the_power_law(data):
    degrees = np.sort(np.bincount(data.receivers, minlength=data.num_nodes))[::-1]
    # With weights r^-s, the first 1 % of the ranks has about 0.01^(1-s) of the edges.
    share = degrees[: data.num_nodes // 100].sum() / data.num_edges
    assert share == pytest.approx(0.01 ** (1 - TINY.exponent), rel=0.3)


def test_exponent_zero_gives_even_degrees():
    data = synthetic(dataclasses.replace(TINY, exponent=0.0))
    degrees = np.bincount(data.receivers, minlength=data.num_nodes)
    assert degrees.max() < 4 * degrees.mean()


def test_homophily_sets_the_share_of_edges_within_communities(data):
    chance = 1 / data.num_classes
    none = synthetic("tiny", seed=3, homophily=0.0)
    full = synthetic("tiny", seed=3, homophily=1.0)
    assert same_community(none) == pytest.approx(chance, abs=0.03)
    assert same_community(data) == pytest.approx(0.6 + 0.4 * chance, abs=0.03)
    assert same_community(full) == 1


def test_node_ids_carry_no_order(data):
    degrees = np.bincount(data.receivers, minlength=data.num_nodes)
    assert abs(np.corrcoef(np.arange(data.num_nodes), degrees)[0, 1]) < 0.1
    shares = np.bincount(data.labels) / data.num_nodes
    np.testing.assert_allclose(shares, 1 / data.num_classes, atol=0.01)


def test_neighbours_tell_a_community_better_than_features_alone(data):
    mean = np.zeros_like(data.features)
    np.add.at(mean, data.receivers, data.features[data.senders])
    mean /= np.maximum(np.bincount(data.receivers, minlength=data.num_nodes), 1)[:, None]
    alone = nearest_centre_accuracy(data, data.features)
    together = nearest_centre_accuracy(data, mean)
    assert 1.5 / data.num_classes < alone < 0.75
    assert together > alone + 0.1


def test_tasks_depend_on_the_community_alone_and_differ_between_tasks():
    data = synthetic(TASKS, seed=3)
    assert len(np.unique(data.labels, axis=0)) <= TASKS.communities
    assert len(np.unique(data.labels, axis=1).T) > 1
    assert 0.2 < data.labels.mean() < 0.8


def test_same_seed_same_data_and_other_seed_other_data(data):
    again, other = synthetic("tiny", seed=3), synthetic("tiny", seed=4)
    for field in ("senders", "receivers", "features", "labels", "train", "validation", "test"):
        np.testing.assert_array_equal(getattr(again, field), getattr(data, field))
        assert not np.array_equal(getattr(other, field), getattr(data, field)), field


def test_on_device_returns_the_same_data_as_jax_arrays(data):
    device = synthetic("tiny", seed=3, on_device=True)
    for field in ("senders", "receivers", "features", "labels", "train", "validation", "test"):
        array = getattr(device, field)
        assert isinstance(array, jax.Array)
        assert isinstance(getattr(data, field), np.ndarray)
        np.testing.assert_array_equal(array, getattr(data, field))


def test_every_published_scale_has_the_published_shape():
    published = {
        "flickr": (89_250, 500, 7),
        "reddit": (232_965, 602, 41),
        "products": (2_449_029, 100, 47),
        "proteins": (132_534, 8, 112),
    }
    for name, expected in published.items():
        sizes = SCALES[name]
        assert (sizes.nodes, sizes.features, sizes.tasks or sizes.communities) == expected


@pytest.mark.parametrize(
    ("scale", "options", "fragment"),
    [
        ("huge", {}, "expected one of .*tiny.*'huge'"),
        ("tiny", {"homophily": 1.5}, "homophily: expected 0 to 1, got 1.5"),
        (dataclasses.replace(TINY, exponent=1.0), {}, "0 <= exponent < 1"),
        (dataclasses.replace(TINY, communities=0), {}, "communities >= 1"),
        (dataclasses.replace(TINY, nodes=9), {}, r"nodes >= 2 \* communities"),
        (dataclasses.replace(DENSE, edges=120 * 119 + 1), {}, "edges <= nodes"),
        (dataclasses.replace(TINY, validation=0.0), {}, "every split gets a node"),
        (dataclasses.replace(TINY, train=float("nan")), {}, "every split gets a node"),
        (dataclasses.replace(TINY, train=float("inf")), {}, "every split gets a node"),
        (FULL, {"homophily": 1.0}, "30 edges are too many for .* found 6"),
    ],
)
def test_impossible_requests_are_refused(scale, options, fragment):
    with pytest.raises(ValueError, match=fragment):
        synthetic(scale, **options)
