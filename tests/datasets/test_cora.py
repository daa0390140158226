"""Cora has the published numbers of papers, words, citations and classes, and its two splits."""

import dataclasses

import numpy as np
import pytest

from jaxgnn.datasets import cora

SIZES = {
    "Case_Based": 298,
    "Genetic_Algorithms": 418,
    "Neural_Networks": 818,
    "Probabilistic_Methods": 426,
    "Reinforcement_Learning": 217,
    "Rule_Learning": 180,
    "Theory": 351,
}


@pytest.fixture(scope="module")
def everything():
    return cora(split="planetoid")


@pytest.fixture(scope="module")
def component():
    return cora()


def pairs(data):
    return set(zip(data.senders.tolist(), data.receivers.tolist(), strict=True))


def test_numbers_are_the_published_ones(everything):
    assert (everything.num_nodes, everything.num_edges) == (2708, 2 * 5278)
    assert everything.features.shape == (2708, 1433)
    assert set(np.unique(everything.features)) == {0, 1}
    assert everything.features.sum() == 49_216
    sizes = np.bincount(everything.labels).tolist()
    assert dict(zip(everything.class_names, sizes, strict=True)) == SIZES


def test_largest_component_has_the_published_size_and_is_connected(component):
    assert (component.num_nodes, component.num_edges) == (2485, 2 * 5069)
    reached = np.arange(component.num_nodes) == 0
    for _ in range(component.num_nodes):
        before = reached.sum()
        reached[component.receivers[reached[component.senders]]] = True
        if reached.sum() == before:
            break
    assert reached.all()


@pytest.mark.parametrize("name", ["everything", "component"])
def test_every_pair_is_there_in_both_directions_once(name, request):
    data = request.getfixturevalue(name)
    found = pairs(data)
    assert len(found) == data.num_edges
    assert all((receiver, sender) in found and sender != receiver for sender, receiver in found)


def test_papers_keep_their_words_links_and_class_in_the_component(everything, component):
    where = {name: node for node, name in enumerate(everything.node_names.tolist())}
    kept = np.array([where[name] for name in component.node_names.tolist()])
    np.testing.assert_array_equal(component.features, everything.features[kept])
    np.testing.assert_array_equal(component.labels, everything.labels[kept])
    moved = {(int(kept[sender]), int(kept[receiver])) for sender, receiver in pairs(component)}
    inside = set(kept.tolist())
    assert moved == {pair for pair in pairs(everything) if pair[0] in inside}


def test_best_known_paper_is_the_one_of_its_number(everything):
    (paper,) = np.flatnonzero(everything.node_names == 35)
    assert everything.class_names[everything.labels[paper]] == "Genetic_Algorithms"
    assert (everything.receivers == paper).sum() == 168


def test_split_has_twenty_and_thirty_papers_of_each_class_and_all_others(component):
    assert np.bincount(component.labels[component.train]).tolist() == [20] * 7
    assert np.bincount(component.labels[component.validation]).tolist() == [30] * 7
    assert component.test.size == 2485 - 7 * 50


def test_seed_decides_the_split_and_nothing_else(component):
    again, other = cora(seed=0), cora(seed=1)
    for field in dataclasses.fields(component):
        expected = getattr(component, field.name)
        np.testing.assert_array_equal(getattr(again, field.name), expected)
        if field.name not in ("train", "validation", "test"):
            np.testing.assert_array_equal(getattr(other, field.name), expected)
    assert not np.array_equal(other.train, component.train)


def test_fixed_split_has_planetoids_sizes_and_classes(everything):
    sizes = [part.size for part in (everything.train, everything.validation, everything.test)]
    assert sizes == [140, 500, 1000]
    assert np.bincount(everything.labels[everything.train]).tolist() == [20] * 7
    tested = np.bincount(everything.labels[everything.test]).tolist()
    assert tested == [130, 91, 144, 319, 149, 103, 64]


def test_all_papers_can_be_split_at_random_too():
    data = cora(largest_component=False, seed=3)
    assert data.num_nodes == 2708
    assert data.test.size == 2708 - 7 * 50


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "random"}, "datasets.cora: split must be one of shchur, planetoid, got 'rand"),
        (
            {"split": "planetoid", "largest_component": True},
            "datasets.cora: largest_component must be False or None with the split planetoid",
        ),
    ],
)
def test_options_that_do_not_go_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        cora(**options)
