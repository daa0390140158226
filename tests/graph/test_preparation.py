"""What is made of a graph, when, and where; and what its methods cost."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgnn
from jaxgnn import ops
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.plan import built_parts as _parts
from jaxgnn.graph.plan import device_sorting as _device_sorting
from jaxgnn.graph.plan import edge_blocks as _edge_blocks
from tests._eager_costs import counted_compilations
from tests.graph._oracles import (
    assert_same_tree,
    check_message,
    dense,
    holds_tracer,
    random_edges,
)

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(6, 2)
WHOLE = frozenset(("schedule", "transpose", "permutation"))


def graph_of(seed=0, *, weighted=False, masked=False, edges=40):
    return random_edges(seed, 6, 6, edges).graph(weighted=weighted, masked=masked)


def made(graph):
    """The names of what has been made of a graph."""
    return set(repr(graph).split("made=[")[1].split("]")[0].split(", ")) - {""}


@pytest.fixture
def sorts(monkeypatch):
    """A list that grows by one entry when the edges of a graph are sorted by sender."""
    seen, original = [], _parts.transpose_on_host

    def spy(*arguments, **options):
        seen.append(options["with_permutation"])
        return original(*arguments, **options)

    monkeypatch.setattr(_parts, "transpose_on_host", spy)
    return seen


class TestWhenAnOpFirstRuns:
    def test_a_constructor_makes_nothing_and_each_op_what_it_needs(self):
        graph = graph_of()
        assert made(graph) == set()
        ops.segment_softmax(graph, np.zeros(40, np.float32))
        assert made(graph) == {"schedule"}
        ops.spmm(graph, X)
        assert made(graph) == {"schedule", "transpose", "transposed_schedule"}
        ops.sddmm(graph, X, X)
        assert made(graph) == {"schedule", "transpose", "transposed_schedule", "permutation"}

    @pytest.mark.parametrize("direct", [False, True])
    def test_once_for_all_graphs_of_the_same_edges_in_and_out_of_jit(self, direct, sorts):
        graph = graph_of(weighted=True)
        if direct:
            graph = CSRGraph(graph.indptr, graph.indices, graph.weights)

        def loss(weights, x):
            other = graph.with_weights(weights)
            return jnp.sum(ops.spmm(other, ops.spmm(graph.with_weights(None), x)) ** 2)

        gradient = jax.grad(loss, argnums=(0, 1))
        # JAX calls traces of Mosaic GPU kernels leaked.
        with jax.checking_leaks(), jaxgnn.default_implementation("ffi"):
            expected = jax.jit(gradient)(graph.weights, X)
        for _ in range(2):
            for one, other in zip(gradient(graph.weights, X), expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5)
        jax.jit(jax.vmap(gradient, (None, 0)))(graph.weights, np.stack([X, X]))
        # The graph without weights comes first, and needs no permutation.
        assert sorts == [False, True]
        assert not holds_tracer(graph.made_plan())

    def test_the_transpose_of_a_transpose_sorts_nothing_again(self, sorts):
        graph = graph_of()
        for transposed in (graph.transpose(), graph.transpose()):
            jax.grad(lambda x, t=transposed: jnp.sum(ops.spmm(t, x)))(X)
            np.testing.assert_array_equal(transposed.transpose().indices, graph.indices)
        assert sorts == [False]

    def test_with_gradients_spmm_needs_at_most_2_2_of_the_edges_themselves(self):
        graph = graph_of(edges=20_000)
        alone = graph.indptr.nbytes + graph.indices.nbytes
        assert graph.nbytes == alone
        jax.jit(jax.grad(lambda x: jnp.sum(ops.spmm(graph, x))))(X)
        assert alone < graph.nbytes <= 2.2 * alone

    def test_for_maxk_spmm_on_a_gpu_it_is_at_most_4_5(self, monkeypatch):
        monkeypatch.setattr(_parts, "on_gpu", lambda: True)
        monkeypatch.setattr(_edge_blocks, "_rows_of_blocks", lambda *sizes: ((2, 3), False))
        graph = graph_of(edges=20_000).prepared("maxk_spmm")
        assert len(graph.plan.edge_blocks) == 2
        assert graph.nbytes <= 4.5 * (graph.indptr.nbytes + graph.indices.nbytes)
        assert sum(leaf.nbytes for leaf in jax.tree.leaves(graph)) == graph.nbytes

    def test_blocks_know_the_weights_of_a_graph_that_has_some(self, monkeypatch):
        monkeypatch.setattr(_parts, "on_gpu", lambda: True)
        graph = graph_of()
        without = graph.prepared("maxk_spmm").plan.edge_blocks[0]
        weighted = graph.prepared("maxk_spmm").with_weights(np.ones(40, np.float32))
        assert weighted.plan.edge_blocks[0].edges is without.edges is None
        weighted = weighted.prepared("maxk_spmm")
        assert weighted.plan.edge_blocks[0].entries is without.entries
        assert_same_tree(np.sort(weighted.plan.edge_blocks[0].edges), np.arange(40, dtype=np.int32))
        weighted.validate()


class TestAsAPytree:
    @pytest.mark.parametrize("weighted", [False, True])
    def test_what_ops_make_or_what_is_read_changes_no_structure(self, weighted):
        fresh, used = (graph_of(weighted=weighted) for _ in range(2))
        ops.sddmm(used.without_weights(), X, X)
        assert used.plan.parts == (WHOLE if weighted else WHOLE - {"permutation"})
        traces = []

        @jax.jit
        def run(graph, x):
            traces.append(graph)
            return ops.spmm(graph, x)

        for graph in (fresh, used, fresh, used.with_weights(used.weights), fresh.transpose()):
            run(graph, X)
        assert len(traces) == 1
        assert_same_tree(fresh, used)

    def test_other_weights_are_other_leaves_whether_or_not_the_plan_was_read(self):
        graphs = [graph_of(weighted=True) for _ in range(2)]
        assert graphs[0].plan is not None
        structures = {jax.tree.structure(graph.with_weights(None)) for graph in graphs}
        assert len(structures) == 1
        assert "permutation" not in graphs[0].with_weights(None).plan.parts

    def test_parts_that_were_asked_for_are_leaves(self):
        graph = graph_of()
        assert graph.prepared("segment_softmax").plan.parts == WHOLE - {"permutation"}
        assert graph.prepared("spmm", "sddmm").plan.parts == WHOLE
        assert graph.prepared().plan is graph.prepared().plan
        bare = CSRGraph(graph.indptr, graph.indices)
        assert bare.prepared("segment_softmax").plan.parts == {"schedule"}
        for op in ("gat_attention", "gatv2_attention", "dot_attention"):
            assert bare.prepared(op).plan.parts == WHOLE
        assert jax.jit(lambda g: g.prepared("spmm"))(bare).plan.parts == WHOLE - {"permutation"}

    def test_an_unknown_op_is_refused(self):
        with pytest.raises(ValueError, match="spmm") as error:
            graph_of().prepared("spmm", "spnn")
        check_message(str(error.value), ["CSRGraph.prepared: ops", "maxk_spmm", "'spnn'"])

    def test_a_transpose_of_another_graph_is_refused(self):
        graph, other = graph_of(0).prepared("spmm"), graph_of(1).prepared("spmm")
        graph.validate()
        indices = other.plan.transposed_indices
        plan = dataclasses.replace(graph.plan, transposed_indices=indices)
        with pytest.raises(ValueError, match=r"plan\.transposed_indices\[\d+\]"):
            dataclasses.replace(graph, plan=plan).validate()


METHODS = {
    "with_self_loops": lambda graph: graph.with_self_loops(),
    "receivers": lambda graph: graph.receivers(),
    "degrees": lambda graph: graph.degrees(),
    "mean": lambda graph: graph.normalized("mean").row_scale,
    "sym": lambda graph: graph.normalized("sym"),
    "transpose": lambda graph: graph.transpose().transpose(),
    "uniform_degrees": lambda graph: graph.uniform_degrees(),
    "prepared": lambda graph: graph.prepared(),
    "nbytes": lambda graph: graph.nbytes,
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_methods_of_concrete_graphs_compile_nothing_for_another_size(method, weighted):
    graphs = [
        random_edges(size, 6 + size, 6 + size, 50 + 3 * size).graph(
            weighted=weighted, masked=masked
        )
        for size in range(10)
        for masked in (False, True)
    ]
    with counted_compilations() as compiled:
        for graph in graphs:
            jax.block_until_ready(METHODS[method](graph))
    assert not compiled


class TestSelfLoopsOfPaddedGraphs:
    def test_graphs_of_one_shape_give_graphs_of_one_shape(self):
        padded = [graph_of(seed, masked=True) for seed in range(4)]
        assert all(int(graph.indptr[-1]) < 40 for graph in padded)
        traces = []

        @jax.jit
        def run(graph):
            traces.append(graph)
            return ops.spmm(graph, X)

        for graph in padded:
            looped = graph.with_self_loops().validate()
            assert looped.num_edges == 40 + 6
            np.testing.assert_allclose(run(looped), dense(looped) @ X, rtol=1e-4, atol=1e-5)
            assert_same_tree(jax.jit(lambda g: g.with_self_loops())(graph).indices, looped.indices)
        assert len(traces) == 1

    @pytest.mark.parametrize("masked", [False, True])
    @pytest.mark.parametrize("count", [0, 4, 6])
    def test_padding_nodes_get_none_if_told_where_nodes_end(self, masked, count):
        graph = graph_of(2, masked=masked, edges=9)
        diagonal = np.diag(np.arange(6) < count) & (np.diag(dense(graph)) == 0)
        looped = graph.with_self_loops(num_real_nodes=count).validate()
        np.testing.assert_array_equal(dense(looped), dense(graph) + diagonal)
        assert looped.num_edges == 9 + 6
        traced = jax.jit(lambda g, n: g.with_self_loops(num_real_nodes=n))(graph, np.int32(count))
        assert_same_tree(traced.prepared(), looped.prepared())

    @pytest.mark.parametrize(
        "count, got", [(7, "7"), (-1, "-1"), (2.0, "2.0"), (np.ones(2, int), "1")]
    )
    def test_another_number_of_nodes_is_refused(self, count, got):
        with pytest.raises(ValueError, match="num_real_nodes") as error:
            graph_of().with_self_loops(num_real_nodes=count)
        where = "CSRGraph.with_self_loops: num_real_nodes"
        check_message(str(error.value), [where, "an integer in [0, 6]", got])


class TestOnADevice:
    @pytest.fixture
    def on_device(self, monkeypatch):
        monkeypatch.setattr(_device_sorting, "_LEAST_EDGES", 1)
        monkeypatch.setattr(_device_sorting, "on_gpu", lambda: True)

    @pytest.mark.parametrize("edges, masked", [(900, True), (900, False), (3, True)])
    def test_results_have_the_bits_of_the_host(self, edges, masked, request):
        listed = random_edges(0, 6, 9, edges)

        def build():
            graph, data = CSRGraph.from_edges(
                jnp.asarray(listed.senders),
                listed.receivers,
                6,
                listed.weights,
                num_senders=9,
                edge_mask=listed.mask if masked else None,
                edge_data=listed.weights,
            )
            arrays = (
                graph.indptr,
                *graph.made_plan("transpose", "permutation").arrays_of("transpose"),
            )
            plan = graph.made_plan()
            blocks = graph.concrete_parts().weighted_edge_blocks
            return graph, data, graph.edge_order, plan, blocks, arrays, graph.transpose()

        expected = build()
        request.getfixturevalue("on_device")
        assert_same_tree(build(), expected)

    def test_a_bad_id_is_still_named(self, on_device):
        with pytest.raises(ValueError, match=r"senders\[1\]") as error:
            CSRGraph.from_edges(jnp.array([0, 9]), jnp.array([1, 1]), 3)
        check_message(str(error.value), ["CSRGraph.from_edges: senders[1]", "[0, 3)", "9"])

    def test_sizes_of_one_bucket_share_the_program(self, on_device):
        sizes = range(897, 1024, 40)
        assert {_device_sorting.bucket(size) for size in sizes} == {1024}
        before = _device_sorting._sort._cache_size()
        for size in sizes:
            random_edges(0, 100, 100, size).graph(weighted=False, masked=False)
        assert _device_sorting._sort._cache_size() == before + 1

    @pytest.mark.parametrize("traced", [False, True])
    def test_programs_have_no_constants_of_the_size_of_the_graph(self, traced, on_device, tmp_path):
        listed, edges = random_edges(0, 50, 50, 60_000 if traced else 40_000), []

        def build():
            graph = CSRGraph.from_edges(listed.senders, listed.receivers, 50)
            edges.append(graph.transpose().indices)
            assert graph.concrete_parts().edge_blocks
            return jnp.zeros(())

        jax.config.update("jax_dump_ir_to", str(tmp_path))
        try:
            (jax.jit(build) if traced else build)()
        finally:
            jax.config.update("jax_dump_ir_to", None)
        assert isinstance(edges[0], jax.Array) and not isinstance(edges[0], jax.core.Tracer)
        sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
        assert any("_sort" in name for name in sizes) and max(sizes.values()) < 80_000

    def test_graphs_can_be_made_where_nothing_is_compiled(self, on_device):
        expected = random_edges(0, 20, 20, 90).graph(weighted=False, masked=False)
        with jax.disable_jit():
            made = random_edges(0, 20, 20, 90).graph(weighted=False, masked=False)
        assert_same_tree(made, expected)

    def test_padding_to_a_bucket_is_less_than_a_quarter(self):
        for size in (1, 2, 3, 5, 31, 32, 33, 1000, 2**20 + 1, 114_615_892):
            assert size <= _device_sorting.bucket(size) < 1.25 * size + 1
        assert len({_device_sorting.bucket(size) for size in range(1024, 2048)}) == 5
