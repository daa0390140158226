"""Batches of pairs do not read what they predict, and are a function of epoch and step."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgnn import CSRGraph, metrics, nn, ops
from jaxgnn.graph import to_undirected
from jaxgnn.sampling import LinkNeighborLoader, NegativeSampler, masked_mean
from jaxgnn.training import LoopConfig, fit
from tests.sampling._graphs import without_edges

NODES = 60
rng = np.random.default_rng(7)
# The last two nodes are isolated, and some edges are repeated.
ENDS = rng.integers(0, NODES - 2, (2, 220))
ENDS = np.concatenate([ENDS, ENDS[:, :40]], axis=1)
DIRECTED = CSRGraph.from_edges(*ENDS, NODES)
GRAPH = CSRGraph.from_edges(*np.concatenate([ENDS, ENDS[::-1]], axis=1), NODES)
SUPERVISION = ENDS[:, :90]
X = rng.normal(size=(NODES, 3)).astype(np.float32)


def _loader(graph=GRAPH, edges=SUPERVISION, fanouts=(-1, 4), batch_size=16, **options):
    return LinkNeighborLoader(graph, edges, fanouts, batch_size, **options)


def _edge_set(graph):
    receivers = np.repeat(np.arange(graph.num_rows), np.diff(graph.indptr))
    return set(zip(np.asarray(graph.indices).tolist(), receivers.tolist(), strict=True))


def _pairs(batch):
    """Given pairs and negatives as ids of the graph, without those that the mask excludes."""
    ends, mask = np.asarray(batch.n_id)[np.asarray(batch.pairs).T], np.asarray(batch.pair_mask)
    given = np.asarray(batch.pair_labels) > 0
    both = ends[mask & given], ends[mask & ~given]
    return [[tuple(pair) for pair in pairs.tolist()] for pairs in both]


def _messages(batch):
    """Sender, receiver and position of the edges of each block, as ids of the graph."""
    n_id = np.asarray(batch.n_id)
    found = []
    for block, e_id in zip(batch.blocks, batch.e_id, strict=True):
        indptr, e_id = np.asarray(block.indptr), np.asarray(e_id)
        rows = np.repeat(np.arange(block.num_rows), np.diff(indptr))
        senders = np.asarray(block.indices)[: indptr[-1]]
        assert (e_id[indptr[-1] :] == -1).all() and (e_id[: indptr[-1]] >= 0).all()
        found += zip(n_id[senders].tolist(), n_id[rows].tolist(), e_id[e_id >= 0], strict=True)
    return found


def _assert_equal(batches, expected):
    for ours, theirs in zip(batches, expected, strict=True):
        for a, b in zip(*map(jax.tree.leaves, (ours, theirs)), strict=True):
            np.testing.assert_array_equal(a, b)


# -- messages --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"undirected": False, "graph": DIRECTED},
        {"undirected": False, "graph": DIRECTED, "direction": "out"},
        {"method": "labor", "replace": False},
        {"replace": True},
    ],
    ids=["undirected", "directed", "out", "labor", "replace"],
)
def test_messages_are_those_of_the_graph_without_the_given_pairs(options):
    loader = _loader(**options)
    graph, host = options.get("graph", GRAPH), loader._graph
    (relation,) = loader._source.relations.values()
    removed = 0
    for step, batch in enumerate(loader.epoch(0)):
        given, _ = _pairs(batch)
        hidden = set(given)
        if options.get("undirected", True):
            hidden |= {(v, u) for u, v in given}
        kept = _messages(batch)
        assert sum(map(int, batch.num_edges)) == len(kept)
        is_out = options.get("direction") == "out"  # rows send
        if is_out:
            kept = [(row, col, e_id) for col, row, e_id in kept]
        # The same draws from a graph that has been made without these edges.
        receivers = np.repeat(np.arange(NODES), np.diff(graph.indptr))
        senders = np.asarray(graph.indices)
        edges = np.stack([senders, receivers], axis=1)
        edge_ids = np.arange(len(edges)) if host.edge_ids is None else host.edge_ids
        excluded = np.flatnonzero([tuple(edge) in hidden for edge in edges[edge_ids].tolist()])
        *fewer, _, left = without_edges(host.indptr, host.indices, None, excluded)
        fewer = replace(relation, graph=replace(host, indptr=fewer[0], indices=fewer[1]))
        source = replace(loader._source, relations={("", "", ""): fewer})
        ends = loader.draw(loader._step(0, step, 0)).asked.seeds
        drawn = source.draw(ends, 0, step).hops[0][::-1]
        e_id = edge_ids[left[np.concatenate([hop.e_id for hop in drawn])]]
        assert kept == [(*edge, at) for edge, at in zip(edges[e_id].tolist(), e_id, strict=True)]
        removed += len(excluded)
    both = 1 + options.get("undirected", True)
    assert removed > both * len(SUPERVISION[0])  # repeats and both directions were there


@pytest.mark.parametrize("on", ["host", "device"])
def test_other_neighbours_are_drawn_in_place_of_those_of_given_pairs(on):
    node = np.arange(400)
    ring = to_undirected(CSRGraph.from_edges(node, (node + 1) % 400, 400))
    pairs = node[::2], node[1::2]  # every node has another neighbour, beside that of its pair
    loader = LinkNeighborLoader(ring, pairs, (1,), 50, negatives=0, on=on)
    for batch in loader.epoch(0):
        (block,) = batch.blocks
        assert np.diff(block.indptr)[: int(batch.seed_mask.sum())].tolist() == [1] * 100
        assert not {(u, v) for u, v, _ in _messages(batch)} & set(_pairs(batch)[0])


def test_a_batch_without_edges_between_its_pairs_is_that_of_the_ends_alone():
    isolated = np.array([[NODES - 1, 3], [NODES - 2, NODES - 1]])
    (batch,) = _loader(edges=isolated, negatives=0, shuffle=False, features=X)
    assert batch.n_id[:3].tolist() == [NODES - 1, NODES - 2, 3]
    assert batch.pairs.tolist() == [[0, 2], [1, 0]] and batch.pair_mask.all()
    np.testing.assert_array_equal(batch.x[:3], X[[NODES - 1, NODES - 2, 3]])
    assert np.diff(batch.blocks[-1].indptr)[:2].tolist() == [0, 0]


def test_blocks_of_a_graph_without_edges_and_of_a_pair_with_itself():
    empty = CSRGraph.from_edges([], [], 4)
    (batch,) = _loader(empty, ([1, 2], [1, 3]), shuffle=False)
    assert batch.num_edges.tolist() == [0, 0] and batch.pairs[:, 0].tolist() == [0, 0]
    loops = CSRGraph.from_edges([0, 1, 1], [0, 0, 1], 3)
    (batch,) = _loader(loops, ([1], [1]), negatives=0)
    assert not _messages(batch)


def test_weights_and_features_belong_to_what_is_left():
    weighted = GRAPH.with_weights(np.arange(1.0, GRAPH.num_edges + 1, dtype=np.float32))
    for batch in _loader(weighted, features=X):
        n_id = np.asarray(batch.n_id)
        np.testing.assert_array_equal(batch.x, np.where(n_id[:, None] >= 0, X[n_id], 0))
        for block, e_id in zip(batch.blocks, batch.e_id, strict=True):
            np.testing.assert_array_equal(block.weights, np.asarray(e_id) + 1)


def test_a_normalised_row_is_the_mean_of_its_remaining_neighbours():
    batch = _loader(GRAPH.normalized("mean"), fanouts=(-1,), features=X).batch(0, 0)
    (block,) = batch.blocks
    rows = np.repeat(np.arange(block.num_rows), np.diff(block.indptr))
    count = int(block.indptr[-1])
    sums = np.zeros((block.num_rows, 3))
    np.add.at(sums, rows, np.asarray(batch.x)[np.asarray(block.indices)[:count]])
    means = sums / np.maximum(np.diff(block.indptr), 1)[:, None]
    np.testing.assert_allclose(ops.spmm(block, batch.x), means, rtol=1e-5, atol=1e-6)


# -- pairs -----------------------------------------------------------------------------------


def test_an_epoch_has_every_pair_once_with_its_label_and_pads_the_last_batch():
    labels = np.arange(1, 91, dtype=np.int32)
    batches = list(_loader(labels=labels, negatives=2))
    assert [int(b.pair_mask.sum()) for b in batches] == [48] * 5 + [30]
    assert {b.pairs.shape for b in batches} == {(2, 48)}
    seen = []
    for batch in batches:
        ends, named = np.asarray(batch.n_id)[batch.pairs.T], np.asarray(batch.pair_labels)
        assert named.dtype == np.int32 and not named[16:].any()
        real = np.asarray(batch.pair_mask)[:16]
        np.testing.assert_array_equal(ends[:16][real].T, SUPERVISION[:, named[:16][real] - 1])
        seen += named[:16][real].tolist()
    assert sorted(seen) == labels.tolist() and seen != sorted(seen)
    # 10 given pairs, their 20 negatives, and padding after both.
    mask = np.asarray(batches[-1].pair_mask)
    assert mask[:10].all() and mask[16:36].all() and mask.sum() == 30
    assert not np.asarray(batches[-1].pairs)[:, ~mask].any()


def test_repeated_pairs_share_their_ends():
    (batch,) = _loader(edges=([5, 5, 6], [6, 6, 5]), negatives=0, shuffle=False)
    assert batch.pairs.tolist() == [[0, 0, 1], [1, 1, 0]] and int(batch.num_nodes[-1]) == 2
    assert batch.seed_mask.sum() == 2 and batch.n_id[:2].tolist() == [5, 6]


@pytest.mark.parametrize("on", ["host", "device"])
def test_a_process_without_pairs_in_the_last_step_has_padding_alone(on):
    edges = SUPERVISION[:, :5]
    first, second = (_loader(edges=edges, batch_size=2, processes=(i, 2), on=on) for i in (0, 1))
    assert len(first) == len(second) == 2
    assert [int(part.batch(0, 1).pair_mask.sum()) for part in (first, second)] == [2, 0]
    assert second.batch(0, 1).num_nodes.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "graph, undirected",
    [(GRAPH, True), (DIRECTED, True), (DIRECTED, False)],
    ids=["both directions", "one direction", "directed"],
)
def test_negatives_are_neither_edges_nor_given_pairs_and_differ_by_step_and_epoch(
    graph, undirected
):
    given = np.concatenate([SUPERVISION, [[NODES - 1], [0]]], axis=1)  # the last is no edge
    known = _edge_set(graph) | set(zip(*given.tolist(), strict=True))
    if undirected:
        known |= {(v, u) for u, v in known}
    loader = _loader(graph, given, negatives=3, undirected=undirected)
    drawn = [_pairs(b)[1] for epoch in (0, 1) for b in loader.epoch(epoch)]
    every = [pair for pairs in drawn for pair in pairs]
    assert len(every) == 2 * 3 * 91
    assert not known & set(every) and all(u != v for u, v in every)
    assert len({tuple(pairs) for pairs in drawn}) == len(drawn)
    assert len(set(every)) > 0.85 * len(every)


def test_negatives_are_those_of_the_sampler_at_any_number_of_processes():
    sampler = NegativeSampler.of(GRAPH, weights="degree")
    options = {"negative_sampler": sampler, "keep_senders": True, "negatives": 2}
    given, drawn = _pairs(_loader(**options).batch(0, 0))
    assert [pair[0] for pair in drawn] == [pair[0] for pair in given for _ in range(2)]
    assert max(max(pair) for pair in drawn) < NODES - 2  # nodes without edges have no weight
    parts = [_loader(batch_size=8, processes=(i, 2), **options).batch(0, 0) for i in (0, 1)]
    shared = [_pairs(part) for part in parts]
    assert [shared[0][i] + shared[1][i] for i in (0, 1)] == [given, drawn]


def test_negatives_have_equal_chances():
    path = to_undirected(CSRGraph.from_edges([0, 1, 2], [1, 2, 3], 5))
    pairs = np.repeat([[0], [1]], 64, axis=1)
    loader = LinkNeighborLoader(path, pairs, (1,), 64, negatives=40)
    drawn = _pairs(loader.batch(0, 0))[1]
    counts = np.zeros((5, 5), int)
    np.add.at(counts, tuple(np.array(drawn).T), 1)
    possible = counts[counts > 0]
    assert possible.size == 5 * 4 - 6  # all pairs but six edges
    expected = len(drawn) / possible.size
    assert np.abs(possible - expected).max() < 5 * np.sqrt(expected)


def test_a_sender_that_is_joined_to_all_has_no_negative():
    star = CSRGraph.from_edges([0, 0, 0, 1], [1, 2, 3, 0], 4)
    (batch,) = _loader(
        star, ([0, 1], [1, 0]), undirected=False, keep_senders=True, shuffle=False, negatives=2
    )
    assert batch.pair_mask.tolist() == [True, True, False, False, True, True]
    assert {pair[0] for pair in _pairs(batch)[1]} == {1}


# -- determinism -----------------------------------------------------------------------------


def test_reads_are_counted_for_a_cache():
    counts = _loader(num_threads=1).read_counts(num_batches=2)
    expected = np.zeros(NODES, int)
    for step in range(2):
        n_id = np.asarray(_loader().batch(0, step).n_id)
        expected[n_id[n_id >= 0]] += 1
    np.testing.assert_array_equal(counts, expected)


@pytest.mark.parametrize(
    "options",
    [
        {"graph": GRAPH.normalized("mean")},
        {"graph": DIRECTED, "undirected": False, "direction": "out", "method": "labor"},
    ],
    ids=["undirected", "out"],
)
def test_the_device_makes_the_same_batches(options):
    loader = _loader(on="device", features=X, fanouts=(5, -1), **options)
    capacity = replace(loader.capacity, candidates=())
    expected = _loader(capacity=capacity, features=X, fanouts=(5, -1), **options)
    for ours, theirs in zip(loader.epoch(0), expected.epoch(0), strict=True):
        for name in (*vars(theirs).keys() - {"blocks"},):
            _assert_equal([getattr(ours, name)], [getattr(theirs, name)])
        for a, b in zip(ours.blocks, theirs.blocks, strict=True):
            for name in ("indptr", "indices", "row_scale"):
                _assert_equal([getattr(a, name)], [getattr(b, name)])


# -- training --------------------------------------------------------------------------------


def _grouped(groups=8, size=12, seed=0):
    """Edges within groups of nodes, in random order."""
    random = np.random.default_rng(seed)
    first, second = np.triu_indices(size, 1)
    chosen = random.random((groups, first.size)) < 0.5
    ends = [(g * size + first[c], g * size + second[c]) for g, c in enumerate(chosen)]
    edges = np.concatenate([np.stack(pair) for pair in ends], axis=1)
    return edges[:, random.permutation(edges.shape[1])], groups * size


def test_a_training_beats_chance_on_pairs_it_has_not_seen_and_compiles_once():
    edges, nodes = _grouped()
    training, asked = edges[:, 60:], edges[:, :60]
    graph = to_undirected(CSRGraph.from_edges(*training, nodes))
    x = np.eye(nodes, dtype=np.float32)
    loader = LinkNeighborLoader(graph, training, (-1,), 50, x, num_threads=1)
    decoder, traces = nn.DotDecoder(), []

    def loss(model, batch, rngs):
        traces.append(batch.pairs.shape)
        (block,) = batch.blocks
        h = model(block, (batch.x[: block.num_rows], batch.x))
        logits = decoder(h, batch.pairs)
        losses = optax.sigmoid_binary_cross_entropy(logits, batch.pair_labels)
        return masked_mean(losses, batch.pair_mask), {}

    model = nn.SAGEConv(nodes, 16, rngs=nnx.Rngs(0))
    config = LoopConfig(steps=10 * len(loader))
    result = fit(model, optax.adam(1e-2), loss, loader, config=config, progress=False)
    assert len(traces) == 1
    h = result.model(graph, jnp.asarray(x))
    whole = to_undirected(CSRGraph.from_edges(*edges, nodes))
    others = NegativeSampler.of(whole).sample(jax.random.key(0), 200)
    scores = jnp.concatenate([decoder(h, jnp.asarray(asked)), decoder(h, others)])
    assert metrics.roc_auc(scores, jnp.arange(260) < 60) > 0.8


# -- bad input -------------------------------------------------------------------------------

BAD = [
    ({"edges": ([0, NODES], [1, 2])}, rf"edges must be node ids .* got senders\[1\] = {NODES}"),
    ({"edges": ([0], [-1])}, r"edges must be node ids .* got receivers\[0\] = -1"),
    (
        {"edges": ([0, 1], [1])},
        r"edges must be two lists of one length.* got shapes \(2,\) and \(1,\)",
    ),
    ({"edges": np.zeros((5, 2), int)}, r"edges must be two lists of one length.* got \(5, 2\)"),
    ({"edges": None}, "edges must be two lists .* got NoneType"),
    ({"edges": ([], [])}, "edges must be at least one pair"),
    ({"edges": ([0.5], [1])}, "edges must be senders that are integers"),
    ({"labels": np.ones(3)}, r"labels must be of shape \(90, ...\)"),
    ({"negatives": -1}, "negatives must be an int of at least 0, got -1"),
    ({"negatives": 0.5}, "negatives must be an int of at least 0, got 0.5"),
    ({"negative_sampler": 3}, "negative_sampler must be a NegativeSampler"),
    (
        {"negative_sampler": NegativeSampler.of(CSRGraph.from_edges([0], [1], 3))},
        f"negative_sampler must be of a graph of {NODES} nodes",
    ),
    ({"fanouts": (2, 0)}, "fanouts must be positive"),
    ({"fanouts": ()}, "fanouts must be a number for each layer"),
    ({"edge_times": np.zeros(3), "seed_times": np.zeros(90)}, "edge_times must be left out"),
    ({"batch_size": 0}, "batch_size must be an int of at least 1"),
    ({"seed": -1}, "seed must be"),
    ({"on": "moon"}, 'on must be "host" or "device"'),
    ({"on": np.ones(9)}, 'on must be "host" or "device", got array'),
    ({"undirected": None}, "undirected must be True or False, got None"),
    ({"keep_senders": np.ones(2)}, "keep_senders must be True or False, got array"),
    ({"features": X[1:]}, f"features must be of {NODES} rows"),
    (
        {"edges": ([0, 1, 2], [3, 4, 5]), "processes": (0, 2), "drop_last": True},
        "batch_size must be at most the number of edges, 3, with drop_last, got 2",
    ),
]


@pytest.mark.parametrize(("changed", "message"), BAD, ids=[next(iter(b[0])) for b in BAD])
def test_bad_input_is_named(changed, message):
    with pytest.raises(ValueError, match="sampling.LinkNeighborLoader: " + message):
        _loader(**changed)


def test_a_complete_graph_has_no_negatives():
    complete = CSRGraph.from_edges([0, 1], [1, 0], 2)
    with pytest.raises(ValueError, match="with some pair of nodes that no edge joins"):
        _loader(complete, ([0], [1]))
    assert _loader(complete, ([0], [1]), negatives=0).batch(0, 0).num_edges.tolist() == [0, 0]
