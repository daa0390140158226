"""GraphSAINT: samplers have the chances of the paper, and normalised sums are unbiased."""

import numpy as np
import pytest

from jaxgnn import CSRGraph, sampling
from jaxgnn.sampling.subgraphs import subgraph_key
from tests.sampling._whole_graphs import edges_of, random_graph

DRAWS = 600
# Deviations of a mean of draws, by which a fixed seed may be off.
MOST_DEVIATIONS = 4.5


def _graph(weighted=True):
    return random_graph(24, 60, seed=2, weighted=weighted)


def _drawn(loader, draws=DRAWS):
    """For each draw the nodes, as a mask."""
    drawn = np.zeros((draws, 24), bool)
    for at in range(draws):
        drawn[at, loader._sampler.nodes(subgraph_key(loader._seed, 0, at))] = True
    return drawn


def _assert_chances(drawn, expected):
    deviation = np.sqrt(expected * (1 - expected) / len(drawn)) + 1e-9
    assert (np.abs(drawn.mean(axis=0) - expected) < MOST_DEVIATIONS * deviation + 1e-12).all()


@pytest.mark.parametrize("weighted", [False, True])
def test_nodes_are_drawn_by_the_squares_of_their_columns(weighted):
    whole = _graph(weighted)
    columns = (whole.normalized("mean").to_scipy().toarray().astype(float),)
    # Repeated edges are entries of their own, whose squares add up.
    senders, receivers, weights = edges_of(whole)
    weights = np.ones(len(senders)) if weights is None else weights.astype(float)
    entries = weights / np.bincount(receivers, weights, 24)[receivers]
    np.testing.assert_allclose(
        columns[0].sum(axis=1), np.bincount(receivers, entries, 24), atol=1e-6
    )
    chances = np.bincount(senders, entries**2, 24)
    chances /= chances.sum()
    loader = sampling.SaintLoader(whole, "node", size=5, norm_samples=1)
    _assert_chances(_drawn(loader), 1 - (1 - chances) ** 5)


def test_edges_are_drawn_by_the_inverse_degrees_of_their_ends():
    whole = _graph()
    senders, receivers, _ = edges_of(whole)
    degrees = np.bincount(receivers, minlength=24)
    inverse = np.where(degrees > 0, 1 / np.maximum(degrees, 1), 0)
    chances = inverse[senders] + inverse[receivers]
    chances /= chances.sum()
    touching = np.array([chances[(senders == v) | (receivers == v)].sum() for v in range(24)])
    loader = sampling.SaintLoader(whole, "edge", size=4, norm_samples=1)
    _assert_chances(_drawn(loader), 1 - (1 - touching) ** 4)


def test_walks_go_from_uniform_roots_to_uniform_senders():
    whole = _graph(weighted=False)
    senders, receivers, _ = edges_of(whole)
    steps = np.zeros((24, 24))
    np.add.at(steps, (receivers, senders), 1)
    degrees = steps.sum(axis=1)
    steps[degrees > 0] /= degrees[degrees > 0, None]
    missed = np.zeros(24)  # chance that one walk of two steps does not visit a node
    for node in range(24):
        others = np.ones(24)
        others[node] = 0
        # A walk that has ended stays away, too.
        ended = (degrees == 0).astype(float)
        after = others * (steps @ others + ended)
        missed[node] = (others * (steps @ after + ended)).mean()
    loader = sampling.SaintLoader(whole, "walk", size=3, walk_length=2, norm_samples=1)
    _assert_chances(_drawn(loader), 1 - missed**3)


@pytest.mark.parametrize(
    "method, normalization", [("node", "mean"), ("edge", "sym"), ("walk", None)]
)
def test_normalised_sums_and_losses_are_unbiased(method, normalization):
    # No edge leaves node 13, and the last two nodes have none at all.
    whole, train = _graph(), np.append(np.arange(2, 14), [22, 23])
    senders, receivers, weights = edges_of(whole)
    kept = senders != 13
    ends = senders[kept], receivers[kept]
    whole = CSRGraph.from_edges(*ends, 24, weights=weights[kept])
    x, loss = np.random.default_rng(0).normal(size=(2, 24))
    loader = sampling.SaintLoader(
        whole, method, size=6, norm_samples=DRAWS, normalization=normalization, train=train
    )
    expected = whole.normalized(normalization).to_scipy().astype(float) @ x
    sums, squares, seen, losses = np.zeros(24), np.zeros(24), np.zeros(24), []
    for step in range(DRAWS):
        part = loader._drawn(1, step)
        count = len(part.n_id)
        fields = loader._own_fields(part, count)
        receivers = np.repeat(np.arange(count), np.diff(part.indptr))
        found = np.bincount(receivers, loader._weights(part) * x[part.n_id[part.senders]], count)
        sums[part.n_id] += found
        squares[part.n_id] += found**2
        seen[part.n_id] += 1
        losses.append((fields["node_weight"] * loss[part.n_id]).sum())
    often = seen > 80
    means = sums[often] / seen[often]
    deviations = np.sqrt(squares[often] / seen[often] - means**2) / np.sqrt(seen[often])
    assert often.sum() >= 12
    # Two sets of draws: those of the mean, and those that gave the weights.
    most = MOST_DEVIATIONS * np.sqrt(2)
    assert (np.abs(means - expected[often]) < most * deviations + 1e-6).all()
    drawn = {"node": ends[0], "edge": np.concatenate(ends), "walk": train}[method]
    possible = np.intersect1d(train, drawn)
    assert len(possible) == len(train) - {"node": 3, "edge": 2, "walk": 0}[method]
    error = np.std(losses) / np.sqrt(DRAWS) * most
    assert abs(np.mean(losses) - loss[possible].mean()) < error + 1e-6


def test_weights_are_the_entries_by_the_counts_of_the_samples():
    whole = _graph()
    loader = sampling.SaintLoader(whole, "walk", size=4, norm_samples=50)
    nodes, edges = np.zeros(24), np.zeros(60)
    for number in range(50):
        part = loader._pre_sample(number)
        nodes[part.n_id] += 1
        edges[part.e_id] += 1
    batch = loader.batch(0, 0)
    count = int(batch.graph.indptr[-1])
    e_id, n_id = np.asarray(batch.e_id)[:count], np.asarray(batch.n_id)[np.asarray(batch.node_mask)]
    _, receivers, weights = edges_of(whole)
    entries = weights[e_id] / np.bincount(receivers, weights, 24)[receivers[e_id]]
    factor = np.maximum(nodes[receivers[e_id]], 1) / np.maximum(edges[e_id], 1)
    np.testing.assert_allclose(batch.graph.weights[:count], entries * factor, rtol=1e-5)
    assert batch.graph.normalization == "mean"
    expected = 50 / (np.maximum(nodes[n_id], 1) * 24)
    np.testing.assert_allclose(batch.node_weight[: len(n_id)], expected, rtol=1e-6)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"method": "forest"}, "method must be one of 'node', 'edge', 'walk', got 'forest'"),
        ({"size": 0}, "size must be an integer of at least 1, got 0"),
        ({"walk_length": 0}, "walk_length must be an integer of at least 1, got 0"),
        ({"norm_samples": 0}, "norm_samples must be an integer of at least 1, got 0"),
        ({"num_steps": 0}, "num_steps must be an integer of at least 1, got 0"),
        ({"normalization": "max"}, "normalization must be one of 'mean', .*, got 'max'"),
    ],
)
def test_errors_name_what_is_wrong(arguments, message):
    with pytest.raises(ValueError, match=f"sampling.SaintLoader: {message}"):
        sampling.SaintLoader(_graph(), **{"size": 3, **arguments})
    for method in ("node", "edge"):
        with pytest.raises(ValueError, match=f"graph must be with an edge .* by which {method!r}"):
            sampling.SaintLoader(CSRGraph.from_edges([], [], 3), method, size=2)
