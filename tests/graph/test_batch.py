"""GraphBatch: what its graphs give alone it gives together, in shapes that do not change."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import jraph
import numpy as np
import pytest

from jaxgnn import ops
from jaxgnn.graph import CSRGraph, GraphBatch, GraphSample, dynamic_batches, unbatch
from tests.graph._oracles import assert_same_tree, check_message, dense, random_edges

SIZES = [(4, 7), (1, 0), (6, 11), (0, 0), (3, 9)]
SHAPE = (20, 40, 8)


def sample(num_nodes, num_edges, *, seed=0, weighted=False):
    """A graph with random edges and features that say where they come from."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, num_nodes, (2, num_edges)) if num_nodes else np.zeros((2, 0), int)
    return GraphSample(
        senders=ids[0],
        receivers=ids[1],
        num_nodes=num_nodes,
        nodes={"x": rng.normal(size=(num_nodes, 5)).astype(np.float32)},
        edges=rng.normal(size=(num_edges, 2)).astype(np.float32),
        globals=np.float32(seed),
        weights=rng.uniform(0.5, 2, num_edges).astype(np.float32) if weighted else None,
    )


def samples(**options):
    return [sample(*sizes, seed=at, **options) for at, sizes in enumerate(SIZES)]


def graph_of(item):
    return CSRGraph.from_edges(item.senders, item.receivers, item.num_nodes, item.weights)


def tuple_of(item):
    return jraph.GraphsTuple(
        nodes=item.nodes,
        edges=item.edges,
        globals=item.globals[None],
        senders=item.senders,
        receivers=item.receivers,
        n_node=np.array([item.num_nodes]),
        n_edge=np.array([item.num_edges]),
    )


def block_diagonal(matrices, size):
    """Square matrices along the diagonal of a larger one."""
    joined = np.zeros((size, size))
    first = 0
    for matrix in matrices:
        behind = first + len(matrix)
        joined[first:behind, first:behind] = matrix
        first = behind
    return joined


class TestFromGraphs:
    @pytest.mark.parametrize("weighted", [False, True])
    @pytest.mark.parametrize("kind", ["samples", "graphs", "both"])
    def test_is_block_diagonal_and_valid(self, kind, weighted):
        items = samples(weighted=weighted)
        graphs = [graph_of(item) for item in items]
        bare = [dataclasses.replace(s, nodes=None, edges=None, globals=None) for s in items]
        given = {"samples": items, "graphs": graphs, "both": [*bare[:2], *graphs[2:]]}[kind]
        batch = CSRGraph.batch(given, pad_to=SHAPE)
        expected = block_diagonal([dense(graph) for graph in graphs], 20)
        np.testing.assert_array_equal(dense(batch.graph.validate()), expected)
        assert (batch.graph.shape, batch.graph.num_edges, batch.num_graphs) == ((20, 20), 40, 8)

    def test_ids_counts_and_masks_put_all_padding_into_the_graph_behind_the_last(self):
        batch = GraphBatch.from_graphs(samples(), pad_to=SHAPE)
        assert batch.num_nodes_of_each.tolist() == [4, 1, 6, 0, 3, 6, 0, 0]
        assert batch.num_edges_of_each.tolist() == [7, 0, 11, 0, 9, 13, 0, 0]
        assert batch.graph_ids.tolist() == [0] * 4 + [1] + [2] * 6 + [4] * 3 + [5] * 6
        np.testing.assert_array_equal(batch.node_mask, batch.graph_ids < 5)
        np.testing.assert_array_equal(batch.graph_mask, np.arange(8) < 5)
        np.testing.assert_array_equal(batch.edge_mask(), np.arange(40) < 27)
        np.testing.assert_array_equal(jax.jit(GraphBatch.edge_mask)(batch), batch.edge_mask())

    def test_features_follow_nodes_edges_and_graphs_and_are_zero_behind_them(self):
        items = samples()
        batch = GraphBatch.from_graphs(items, pad_to=SHAPE)
        np.testing.assert_array_equal(
            batch.nodes["x"], np.concatenate([s.nodes["x"] for s in items] + [np.zeros((6, 5))])
        )
        np.testing.assert_array_equal(batch.globals, [0, 1, 2, 3, 4, 0, 0, 0])
        by_receiver = [s.edges[np.argsort(s.receivers, kind="stable")] for s in items]
        np.testing.assert_array_equal(
            batch.edges, np.concatenate([*by_receiver, np.zeros((13, 2))])
        )

    def test_samples_tuples_and_graphs_with_features_give_the_same_bits(self):
        items = samples()
        batch = GraphBatch.from_graphs(items, pad_to=SHAPE)
        assert_same_tree(GraphBatch.from_graphs([tuple_of(s) for s in items], SHAPE), batch)
        order = [np.argsort(item.receivers, kind="stable") for item in items]
        joined = [
            GraphSample.from_graph(graph_of(s), nodes=s.nodes, edges=s.edges[by], globals=s.globals)
            for s, by in zip(items, order, strict=True)
        ]
        assert_same_tree(GraphBatch.from_graphs(joined, SHAPE), batch)

    def test_the_plan_has_the_bits_of_that_of_the_same_graph_from_edges(self):
        batch = GraphBatch.from_graphs(samples(weighted=True), pad_to=SHAPE)
        unplanned = dataclasses.replace(batch.graph, plan=None)
        assert_same_tree(batch.graph, unplanned.prepared())

    def test_arrays_are_read_only_and_of_numpy(self):
        items = samples(weighted=True)
        batch = GraphBatch.from_graphs(items, pad_to=None)
        assert all(type(leaf) is np.ndarray for leaf in jax.tree.leaves(batch))
        assert not any(leaf.flags.writeable for leaf in jax.tree.leaves(batch))
        before = batch.nodes["x"].copy()
        items[0].nodes["x"][:] = 7
        np.testing.assert_array_equal(batch.nodes["x"], before)

    def test_lists_without_edges_are_a_graph(self):
        batch = GraphBatch.from_graphs([GraphSample([], [], 2, edges=np.zeros((0, 3)))])
        assert batch.graph.validate().shape == (2, 2)
        assert batch.edges.shape == (0, 3)

    def test_padding_slots_of_the_graphs_are_left_out(self):
        graphs = [random_edges(seed, 5, 5, 12).graph() for seed in range(3)]
        batch = GraphBatch.from_graphs(graphs)
        expected = block_diagonal([dense(graph) for graph in graphs], 15)
        np.testing.assert_array_equal(dense(batch.graph.validate()), expected)
        assert batch.graph.num_edges == sum(int(graph.indptr[-1]) for graph in graphs) < 36
        assert (batch.num_graphs, batch.graph_mask.all()) == (3, True)
        masked = GraphSample.from_graph(graphs[0], edges=np.arange(12))
        assert masked.edges.tolist() == list(range(masked.num_edges))

    @pytest.mark.parametrize("kind", ["mean", "sym"])
    @pytest.mark.parametrize("weighted", [False, True])
    def test_normalised_graphs_stay_so(self, kind, weighted):
        graphs = [graph_of(s).normalized(kind) for s in samples(weighted=weighted)]
        batch = GraphBatch.from_graphs(graphs, pad_to=SHAPE)
        expected = block_diagonal([dense(graph) for graph in graphs], 20)
        np.testing.assert_allclose(dense(batch.graph.validate()), expected, rtol=1e-6)
        assert batch.graph.normalization == kind

    @pytest.mark.parametrize("kind", ["mean", "sym"])
    def test_normalises_like_its_graphs(self, kind):
        graphs = [graph_of(item) for item in samples()]
        together = GraphBatch.from_graphs(graphs, pad_to=SHAPE).graph.normalized(kind)
        alone = GraphBatch.from_graphs([graph.normalized(kind) for graph in graphs], SHAPE)
        np.testing.assert_allclose(dense(together), dense(alone.graph), rtol=1e-6)


class TestShape:
    @pytest.mark.parametrize(
        ("pad_to", "shape"),
        [
            (None, (14, 27, 5)),
            ((15, 27), (15, 27, 6)),
            ((100, 50, 9), (100, 50, 9)),
            ("power_of_two", (16, 32, 8)),
            ([(8, 8), (14, 64), (15, 64), (99, 99)], (15, 64, 6)),
            ([(64, 64, 5), (99, 99, 16)], (99, 99, 16)),
        ],
    )
    def test_is_what_is_asked_for(self, pad_to, shape):
        batch = GraphBatch.from_graphs(samples(), pad_to)
        assert (batch.graph.num_rows, batch.graph.num_edges, batch.num_graphs) == shape

    @pytest.mark.parametrize(("edges", "slots"), [(0, 1), (4, 4), (5, 8)])
    def test_powers_of_two_are_the_least(self, edges, slots):
        batch = GraphBatch.from_graphs([sample(7, edges)], "power_of_two")
        assert (batch.graph.num_rows, batch.graph.num_edges, batch.num_graphs) == (8, slots, 2)

    def test_a_jitted_step_compiles_once_for_each_bucket(self):
        traces = []

        @jax.jit
        def step(batch):
            traces.append(batch.graph.shape)
            x = ops.spmm(batch.graph, batch.nodes["x"])
            return jax.ops.segment_sum(x, batch.graph_ids, batch.num_graphs)

        table = [(8, 16, 8), (32, 64, 8)]
        for seed, sizes in enumerate([(3, 4), (7, 16), (8, 3), (2, 0), (5, 20), (30, 60)]):
            step(GraphBatch.from_graphs([sample(*sizes, seed=seed), sample(0, 0)], table))
        assert traces == [(8, 8), (32, 32)]


# Each of a graph, node features x [nodes, 5] and a number per edge e [edges].
OPS = {
    "spmm": lambda graph, x, e: ops.spmm(graph.with_weights(e), x),
    "maxk_spmm": lambda graph, x, e: ops.maxk_spmm(graph.with_weights(e), ops.maxk(x, 2)),
    "segment_softmax": lambda graph, x, e: ops.segment_softmax(graph, e),
}


@pytest.mark.parametrize("implementation", ["xla", "ffi"])
@pytest.mark.parametrize("name", OPS)
def test_ops_of_a_batch_give_values_and_gradients_of_its_graphs(name, implementation):
    items = [item for item in samples() if item.num_edges]
    batch = GraphBatch.from_graphs(items, pad_to=SHAPE)
    x, e = batch.nodes["x"], batch.edges[:, 0]

    def loss(graph, x, e):
        y = OPS[name](graph, x, e)
        return jnp.sum(jnp.sin(y)), y

    run = jax.value_and_grad(loss, argnums=(1, 2), has_aux=True)
    with ops.default_implementation(implementation):
        (_, y), (of_x, of_e) = jax.jit(run)(batch.graph, x, e)
    y = unbatch(batch, y, of="edges" if name == "segment_softmax" else "nodes")
    together = y, unbatch(batch, of_x), unbatch(batch, of_e, of="edges")
    inputs = unbatch(batch, x), unbatch(batch, e, of="edges")
    for item, operands, results in zip(
        items, zip(*inputs, strict=True), zip(*together, strict=True), strict=True
    ):
        (_, alone), gradients = run(graph_of(item), *operands)
        for result, expected in zip(results, (alone, *gradients), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


class TestUnbatch:
    def test_gives_back_what_went_in_as_views(self):
        items = samples()
        batch = GraphBatch.from_graphs(items, pad_to=SHAPE)
        nodes = unbatch(batch, batch.nodes)
        edges = unbatch(batch, batch.edges, of="edges")
        assert len(nodes) == len(edges) == len(items)
        for item, of_nodes, of_edges in zip(items, nodes, edges, strict=True):
            np.testing.assert_array_equal(of_nodes["x"], item.nodes["x"])
            assert of_nodes["x"].base is batch.nodes["x"]
            by_receiver = np.argsort(item.receivers, kind="stable")
            np.testing.assert_array_equal(of_edges, item.edges[by_receiver])
        assert unbatch(batch, batch.globals, of="globals") == [0, 1, 2, 3, 4]

    def test_takes_results_from_the_device(self):
        batch = GraphBatch.from_graphs(samples())
        doubled = jax.jit(lambda b: 2 * b.nodes["x"])(batch)
        for once, twice in zip(unbatch(batch, batch.nodes), unbatch(batch, doubled), strict=True):
            np.testing.assert_array_equal(twice, 2 * once["x"])


class TestDynamicBatches:
    def test_fill_the_budget_in_order_and_have_one_shape(self):
        rng = np.random.default_rng(0)
        items = [sample(*rng.integers(1, 9, 2), seed=seed) for seed in range(40)]
        batches = list(dynamic_batches(iter(items), 24, 30, 6))
        shapes = {(b.graph.num_rows, b.graph.num_edges, b.num_graphs) for b in batches}
        assert shapes == {(24, 30, 6)}
        back = [x for b in batches for x in unbatch(b, b.nodes["x"])]
        for item, x in zip(items, back, strict=True):
            np.testing.assert_array_equal(x, item.nodes["x"])
        # The first graph of each batch had no room in the one before.
        for one, following in itertools.pairwise(batches):
            with_next = (
                one.node_mask.sum() + following.num_nodes_of_each[0],
                one.edge_mask().sum() + following.num_edges_of_each[0],
                one.graph_mask.sum() + 1,
            )
            assert any(size > most for size, most in zip(with_next, (23, 30, 5), strict=True))

    def test_are_those_of_jraph(self):
        items = samples()[::2] + samples()[:3]
        expected = jraph.dynamically_batch(map(tuple_of, items), n_node=12, n_edge=20, n_graph=4)
        pairs = zip(dynamic_batches(items, 12, 20, 4), expected, strict=True)
        for batch, of_jraph in pairs:
            assert_same_tree(batch, GraphBatch.from_graphs_tuple(of_jraph, padded=True))

    def test_read_no_further_than_they_need(self):
        batches = dynamic_batches((sample(5, 5) for _ in itertools.count()), 11, 100, 9)
        assert next(batches).graph_mask.sum() == 2

    def test_of_nothing_are_none(self):
        assert list(dynamic_batches([], 10, 10, 2)) == []


class TestJraph:
    def test_padded_tuples_convert_both_ways(self):
        items = samples()
        batched = jraph.batch_np([tuple_of(item) for item in items])
        padded = jraph.pad_with_graphs(batched, n_node=20, n_edge=40, n_graph=8)
        batch = GraphBatch.from_graphs_tuple(padded, padded=True)
        assert_same_tree(batch, GraphBatch.from_graphs(items, pad_to=SHAPE))
        back = batch.to_graphs_tuple()
        assert isinstance(back, jraph.GraphsTuple)
        np.testing.assert_array_equal(
            jraph.get_edge_padding_mask(back), jraph.get_edge_padding_mask(padded)
        )
        np.testing.assert_array_equal(
            jraph.get_node_padding_mask(back), jraph.get_node_padding_mask(padded)
        )
        order = np.argsort(padded.receivers, kind="stable")
        for name in ("senders", "receivers", "edges"):
            np.testing.assert_array_equal(getattr(back, name), getattr(padded, name)[order])
        assert_same_tree(GraphBatch.from_graphs_tuple(back, padded=True), batch)

    def test_tuples_without_padding_convert_both_ways(self):
        items = samples()
        batch = GraphBatch.from_graphs_tuple(jraph.batch_np([tuple_of(item) for item in items]))
        assert_same_tree(batch, GraphBatch.from_graphs(items))
        assert_same_tree(GraphBatch.from_graphs_tuple(batch.to_graphs_tuple()), batch)


def test_shows_shapes_also_under_jit():
    batch = GraphBatch.from_graphs(samples(), pad_to=SHAPE)
    shown = []
    jax.jit(lambda b: shown.append(repr(b)) or b.graph_ids)(batch)
    for text in (repr(batch), *shown):
        assert text.startswith("GraphBatch(num_graphs=8, graph=CSRGraph(")
        assert text.endswith("nodes={x: float32[20, 5]}, edges=float32[40, 2], globals=float32[8])")


def changed(**fields):
    return [*samples(), dataclasses.replace(sample(3, 4), **fields)]


PAIR = CSRGraph.from_edges([0], [1], 2)
WEIGHTED = PAIR.with_weights(np.ones(1, np.float32))
FALLING = CSRGraph(np.array([0, 2, 1], np.int32), np.zeros(2, np.int32))
make = GraphBatch.from_graphs
WRONG = {
    "an empty list": (lambda: make([]), ["GraphBatch.from_graphs: graphs", "at least one graph"]),
    "one graph": (lambda: make(PAIR), ["graphs", "a list of graphs", "CSRGraph"]),
    "one tuple": (lambda: make(tuple_of(sample(2, 1))), ["a list of graphs", "GraphsTuple"]),
    "something else": (lambda: make([PAIR, 7]), ["graphs[1]", "CSRGraph", "int"]),
    "rectangular": (
        lambda: make([PAIR, CSRGraph.from_edges([0], [1], 2, num_senders=3)]),
        ["graphs[1]", "square", "(2, 3)"],
    ),
    "some weighted": (lambda: make([PAIR, WEIGHTED]), ["graphs[1].weights", "structure"]),
    "some normalised": (
        lambda: make([PAIR, PAIR.normalized("mean")]),
        ["graphs[1].normalization", "None", "'mean'"],
    ),
    "other axes of features": (
        lambda: make(changed(nodes={"x": np.zeros((3, 4), np.float32)})),
        ["graphs[5].nodes['x']", "(3, 5)", "(3, 4)"],
    ),
    "ragged features": (
        lambda: make(changed(edges=np.zeros((3, 2), np.float32))),
        ["graphs[5].edges", "(4, 2)", "(3, 2)"],
    ),
    "ragged globals": (lambda: make(changed(globals=np.zeros(1))), ["graphs[5].globals", "(1,)"]),
    "other dtype": (
        lambda: make(changed(globals=np.int32(1))),
        ["graphs[5].globals", "float32", "int32"],
    ),
    "other structure": (lambda: make(changed(nodes=None)), ["graphs[5].nodes", "structure"]),
    "id out of range": (
        lambda: make(changed(receivers=np.array([0, 1, 3, 2]))),
        ["graphs[5].receivers[2]", "[0, 3)", "got 3"],
    ),
    "negative id": (
        lambda: make(changed(senders=np.array([0, -1, 0, 2]))),
        ["graphs[5].senders[1]", "[0, 3)", "got -1"],
    ),
    "falling offsets": (lambda: make([PAIR, FALLING]), ["graphs[1].indptr[2]", "at least 2"]),
    "falling offsets beside a sample": (
        lambda: make([GraphSample([0], [0], 1), FALLING]),
        ["graphs[1].indptr[2]", "at least 2"],
    ),
    "weights that are no numbers": (
        lambda: make([WEIGHTED, WEIGHTED.with_weights(np.array([np.nan], np.float32))]),
        ["graphs[1].weights[0]", "finite", "nan"],
    ),
    "weights of unsorted edges": (
        lambda: make([GraphSample([0, 0], [1, 0], 2, weights=np.array([np.inf, 1.0]))]),
        ["graphs[0].weights[0]", "finite", "inf"],
    ),
    "offsets that begin behind 0": (
        lambda: make([PAIR, CSRGraph(np.array([1, 2], np.int32), np.zeros(2, np.int32))]),
        ["graphs[1].indptr", "from 0", "1 to 2"],
    ),
    "pad_to too small": (
        lambda: make(samples(), (11, 99)),
        ["pad_to", "(15, 27, 6)", "(11, 99, 6)", "graphs[2] of 6 nodes and 11 edges"],
    ),
    "no table row is enough": (
        lambda: make(samples(), [(8, 8), (99, 26)]),
        ["pad_to", "(99, 26, 6)", "graphs[4] of 3 nodes and 9 edges"],
    ),
    "no padding node": (lambda: make(samples(), (14, 27)), ["pad_to", "graphs[4]"]),
    "too few graphs": (lambda: make(samples(), (99, 99, 5)), ["pad_to", "graphs[4]"]),
    "other pad_to": (lambda: make([PAIR], "powers"), ["pad_to", "power_of_two", "'powers'"]),
    "pad_to of one number": (lambda: make([PAIR], 8), ["pad_to", "(nodes, edges)", "8"]),
    "empty table": (lambda: make([PAIR], []), ["pad_to", "(nodes, edges)", "[]"]),
    "a large graph in a stream": (
        lambda: list(dynamic_batches(samples(), 6, 99, 9)),
        ["dynamic_batches: graphs[2]", "at most 5 nodes", "6 nodes and 11 edges"],
    ),
    "no room for padding": (
        lambda: dynamic_batches([], 8, 8, 1),
        ["dynamic_batches: max_graphs", "at least 2", "got 1"],
    ),
    "a float as id": (
        lambda: GraphSample(np.zeros(2), np.zeros(2, int), 1),
        ["GraphSample: senders", "integer", "float64"],
    ),
    "an edge without receiver": (
        lambda: GraphSample([0, 1], [0], 2),
        ["GraphSample: senders", "(1,)", "(2,)"],
    ),
    "a sample of a normalised graph": (
        lambda: GraphSample.from_graph(PAIR.normalized("sym")),
        ["GraphSample.from_graph: graph", "not normalised", "'sym'"],
    ),
    "a sample of too many features": (
        lambda: GraphSample.from_graph(PAIR, edges=np.zeros(2)),
        ["GraphSample.from_graph: edges", "[1, ...]", "(2,)"],
    ),
    "weights of other edges": (
        lambda: GraphSample([0], [0], 1, weights=np.ones(2)),
        ["GraphSample: weights", "(1,)", "(2,)"],
    ),
    "weights that are integers": (
        lambda: make([GraphSample([0], [0], 1, weights=np.ones(1, int))]),
        ["graphs[0].weights", "floating", "int64"],
    ),
    "unbatch of a graph": (lambda: unbatch(PAIR, np.zeros(2)), ["batch", "GraphBatch", "CSRGraph"]),
    "unbatch of other arrays": (
        lambda: unbatch(make([PAIR], (8, 4)), {"h": np.zeros(7)}),
        ["tree['h']", "[8, ...]", "(7,)"],
    ),
    "unbatch along no axis": (
        lambda: unbatch(make([PAIR]), np.zeros(2), of="rows"),
        ["of", "'nodes'", "'rows'"],
    ),
    "a weighted batch as a tuple": (
        lambda: make([WEIGHTED]).to_graphs_tuple(),
        ["to_graphs_tuple: self.graph", "unweighted", "float32[1]"],
    ),
    "a batch of tuples in a list": (
        lambda: make([jraph.batch_np([tuple_of(s) for s in samples()])]),
        ["graphs[0]", "of one graph", "(5,)"],
    ),
    "no tuple": (lambda: GraphBatch.from_graphs_tuple(PAIR), ["GraphsTuple", "CSRGraph"]),
    "a tuple said to be padded": (
        lambda: GraphBatch.from_graphs_tuple(tuple_of(sample(2, 1)), padded=True),
        ["graphs", "at least one graph", "padded=True"],
    ),
    "an edge between graphs": (
        lambda: GraphBatch.from_graphs_tuple(
            jraph.batch_np([tuple_of(sample(3, 2))] * 2)._replace(senders=np.array([0, 1, 2, 3]))
        ),
        ["from_graphs_tuple: graphs[1].senders[0]", "[0, 3)", "-1"],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_input_names_what_is_wrong(name):
    call, fragments = WRONG[name]
    with pytest.raises(ValueError, match=": ") as error:
        call()
    check_message(str(error.value), fragments)


@pytest.mark.parametrize(
    "function",
    [
        lambda b: GraphBatch.from_graphs([b.graph]),
        lambda b: unbatch(b, np.zeros(14)),
        GraphBatch.to_graphs_tuple,
    ],
)
def test_under_jit_what_the_host_does_is_refused(function):
    batch = GraphBatch.from_graphs(samples())
    with pytest.raises(ValueError, match="outside jit, got a tracer"):
        jax.jit(function)(batch)


def test_stacked_batches_are_refused_outside_of_vmap():
    batches = [make([PAIR], (4, 2)) for _ in range(2)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *batches)
    with pytest.raises(ValueError, match=r"jax\.vmap"):
        unbatch(stacked, np.zeros(8))
    sums = jax.vmap(functools.partial(ops.spmm, x=np.ones((4, 1))))(stacked.graph)
    assert sums.shape == (2, 4, 1)
