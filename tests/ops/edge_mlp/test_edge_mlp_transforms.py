"""edge_mlp_aggregate under JAX's transformations, on batches of graphs, and refusals."""

import functools

import jax
import jax.numpy as jnp
import jraph
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import jaxgnn
from jaxgnn import CSRGraph, ops
from jaxgnn.graph import sort_edges
from jaxgnn.testing import random_array
from tests._programs import equations_of
from tests.ops.edge_mlp._edges import BIPARTITE, QUICK, REDUCTIONS, RING, apply, inputs, params

_jit = functools.partial(jax.jit, compiler_options=QUICK)


def _value_and_gradients(graph, *arguments, **options):
    def loss(*arguments):
        return jnp.sum(apply(graph, *arguments, activation="gelu", **options) ** 2)

    return jax.value_and_grad(loss, argnums=(0, 1, 2, 3))(*arguments)


def _assert_near(actual, expected):
    for a, e in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5 * max(1.0, float(jnp.abs(e).max())))


def _item(tree, i):
    return jax.tree.map(lambda a: a[i], tree)


def test_vmap_over_features_equals_leading_axes_with_its_gradients():
    ends, *rest = inputs(RING, batch=(2,))
    plain = functools.partial(apply, RING, reduce="mean", activation="gelu")

    def gradients(run):
        loss = lambda *arguments: jnp.sum(run(*arguments) ** 2)  # noqa: E731
        return jax.value_and_grad(loss, argnums=(0, 1, 2, 3))(ends, *rest)

    mapped = jax.vmap(plain, in_axes=(0, None, None, None))
    _assert_near(*_jit(lambda: (gradients(mapped), gradients(plain)))())


def test_vmap_of_grad_sums_nothing_over_the_batch():
    graph = BIPARTITE["padding"]
    ends, layers, *rest = inputs(graph, num_layers=2)
    stacked = jax.tree.map(lambda p: jnp.stack([p, 0.5 * p]), (ends, layers))
    run = functools.partial(_value_and_gradients, graph)
    made = _jit(jax.vmap(run, in_axes=(0, 0, None, None)))(*stacked, *rest)
    _assert_near(_item(made, 0), _jit(run)(ends, layers, *rest))


# A graph, and what of (ends, layers, features, weights) each vmap maps, the outermost first.
MAPS = {
    "all of edges": (RING, [(0, None, 0, 0)]),
    "one end": (BIPARTITE["random"], [((0, None), None, None, None)]),
    "weights, inside nodes": (RING, [(0, None, None, None), (None, None, None, 0)]),
    "nodes, inside both": (BIPARTITE["padding"], [(0, None, None, 0), (0, None, None, None)]),
    "other axes": (BIPARTITE["random"], [((2, 2), None, None, 1)]),
    "parameters as well": (RING, [(0, 0, None, None)]),
}


def _mapped_inputs(graph, maps):
    """Inputs with an axis of two for each map, at the axis that it maps."""
    made = inputs(graph, num_layers=3)
    for i, in_axes in enumerate(reversed(maps)):

        def stacked(axis, tree, i=i):
            if axis is None:
                return tree
            return jax.tree.map(lambda x: jnp.stack([x, (0.5 + i) * x], axis), tree)

        made = jax.tree.map(stacked, in_axes, made, is_leaf=lambda axis: axis is None)
    return made


def test_vmap_over_no_members_gives_none_of_them():
    graph, _ = MAPS["all of edges"]
    h, *rest = inputs(graph, num_layers=3)

    def one(h):
        return apply(graph, h, *rest)

    none = jax.tree.map(lambda ends: jnp.zeros((0, *ends.shape), ends.dtype), h)
    y, pull_back = jax.vjp(jax.vmap(one), none)
    assert y.shape == (0, *jax.eval_shape(one, h).shape)
    assert jax.tree.map(jnp.shape, pull_back(y)[0]) == jax.tree.map(jnp.shape, none)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_a_batch_without_members_has_none_in_its_result_and_no_gradients(reduce):
    arguments = inputs(RING, batch=(0,), own=True)
    y, pull_back = jax.vjp(functools.partial(apply, RING, reduce=reduce), *arguments)
    assert y.shape == (0, 12, 3)
    gradients = pull_back(y)
    assert jax.tree.map(jnp.shape, gradients) == jax.tree.map(jnp.shape, arguments)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradients))


@pytest.mark.costly
@pytest.mark.parametrize("name", MAPS)
def test_vmap_is_one_member_at_a_time_with_gradients_inside_and_outside(name):
    graph, maps = MAPS[name]
    arguments = _mapped_inputs(graph, maps)

    def mapped(function):
        return functools.reduce(lambda f, axes: jax.vmap(f, axes), reversed(maps), function)

    def run(implementation):
        one = functools.partial(apply, graph, reduce="mean", implementation=implementation)

        def total(*arguments):
            return jnp.sum(jnp.sin(mapped(one)(*arguments)))

        outside = jax.grad(total, argnums=(0, 1, 2, 3))(*arguments)
        of_one = functools.partial(_value_and_gradients, graph, implementation=implementation)
        return mapped(one)(*arguments), outside, mapped(of_one)(*arguments)

    made, expected = (_jit(run, static_argnums=0)(i) for i in (None, "xla"))
    _assert_near(made, expected)


def test_many_cotangents_of_one_result_have_gradients_of_their_own():
    graph = BIPARTITE["repeated edges"]
    arguments = inputs(graph, batch=(2,))
    cotangents = random_array((3, 2, graph.num_rows, 3), "float32", seed=5)

    def run(implementation):
        pull_back = jax.vjp(
            functools.partial(apply, graph, implementation=implementation), *arguments
        )[1]
        return jax.vmap(pull_back)(cotangents)

    _assert_near(*(_jit(run, static_argnums=0)(i) for i in (None, "xla")))


def test_vmap_works_in_a_scan_that_is_recomputed_and_twice_differentiated():
    layers, h = params(2, 6), random_array((2, 12, 3), "float32", seed=1)

    def loss(layers, implementation):
        def step(h, _):
            options = {"activation": "silu", "implementation": implementation}
            run = functools.partial(ops.edge_mlp_aggregate, RING, **options)
            return jax.vmap(run, (0, None))(h, layers), None

        return jnp.sum(jax.lax.scan(jax.checkpoint(step), h, length=2)[0] ** 2)

    def of_gradient(layers, implementation):
        gradient = jax.grad(loss)(layers, implementation)
        return sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient))

    run = _jit(jax.grad(of_gradient), static_argnums=1)
    _assert_near(*(run(layers, implementation) for implementation in (None, "xla")))


def _shapes(jaxpr, dtype):
    """Shapes of all arrays of a dtype in a program, those of its parts included."""
    for equation in equations_of(jaxpr):
        for variable in (*equation.invars, *equation.outvars):
            if jnp.issubdtype(getattr(variable.aval, "dtype", jnp.bool), dtype):
                yield variable.aval.shape


@pytest.mark.parametrize("graph", [BIPARTITE["random"], RING], ids=["random", "ring"])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_neither_vmap_nor_leading_axes_tile_the_graph_forward_or_backward(reduce, graph):
    ends, *rest = inputs(graph, batch=(1000,))
    run = functools.partial(_value_and_gradients, graph, reduce=reduce)
    for function in (run, jax.vmap(run, in_axes=(0, None, None, None))):
        program = jax.make_jaxpr(function)(ends, *rest).jaxpr
        integers = [shape for kind in (jnp.integer, jnp.bool) for shape in _shapes(program, kind)]
        of_a_batch = [shape for shape in integers if 1000 in shape and graph.num_edges in shape]
        # Signs of activations and ties are booleans of every edge; indices are not.
        assert integers and all(len(shape) > 2 for shape in of_a_batch), of_a_batch


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_with_one_degree_for_all_nodes_there_is_no_scatter_forward_or_backward(reduce):
    arguments = inputs(RING, batch=(3,))
    run = functools.partial(_value_and_gradients, RING, reduce=reduce)
    assert "scatter" not in str(jax.make_jaxpr(run)(*arguments))
    traced = functools.partial(_value_and_gradients, reduce=reduce)
    assert "scatter" in str(jax.make_jaxpr(traced)(RING, *arguments))


@pytest.mark.parametrize("platform, is_stored", [("cpu", True), ("cuda", False)])
def test_on_a_cpu_the_values_of_edges_are_stored_before_rows_of_one_degree_are_reduced(
    platform, is_stored
):
    """Otherwise XLA computes them inside of the reduction, in a loop without vectors."""
    ends, layers, *rest = inputs(RING, num_layers=2)
    reduced = f"tensor<1x{RING.num_edges}x{layers.kernels[0].shape[1]}xf32>"
    run = jax.jit(functools.partial(_value_and_gradients, RING))
    lowered = run.trace(ends, layers, *rest).lower(lowering_platforms=(platform,)).as_text()
    barriers = [line for line in lowered.splitlines() if "optimization_barrier" in line]
    assert any(line.endswith(f": {reduced}") for line in barriers) == is_stored


def test_vmap_over_whole_graphs():
    graphs = [BIPARTITE[name] for name in ("random", "padding", "isolated nodes")]
    arguments = inputs(graphs[0])

    def run(graph):
        return [apply(graph, *arguments, reduce=reduce) for reduce in ("sum", "max")]

    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *graphs)
    together, alone = _jit(lambda graphs: (jax.vmap(run)(graphs), jax.lax.map(run, graphs)))(
        stacked
    )
    _assert_near(together, alone)


def test_works_under_scan_and_checkpoint():
    layers, h = params(2, 6), random_array((12, 3), "float32", seed=1)

    def loss(layers, wrap, implementation):
        def step(h, _):
            options = {"reduce": "mean", "implementation": implementation}
            return ops.edge_mlp_aggregate(RING, h, layers, **options), None

        return jnp.sum(jax.lax.scan(wrap(step), h, length=3)[0] ** 2)

    gradients = [
        _jit(jax.grad(functools.partial(loss, wrap=wrap, implementation=implementation)))(layers)
        for wrap, implementation in ((lambda f: f, "xla"), (jax.checkpoint, None))
    ]
    _assert_near(*gradients)


def test_the_gradient_can_be_differentiated():
    graph, layers = BIPARTITE["repeated edges"], params(2, 6)
    ends = random_array((9, 3), "float32", seed=1), random_array((7, 3), "float32", seed=2)

    def squared_gradient(ends, implementation):
        def loss(ends):
            options = {"activation": "silu", "implementation": implementation}
            return jnp.sum(ops.edge_mlp_aggregate(graph, ends, layers, **options) ** 2)

        return sum(jnp.sum(g**2) for g in jax.grad(loss)(ends))

    made, expected = (
        _jit(jax.grad(functools.partial(squared_gradient, implementation=i)))(ends)
        for i in (None, "xla")
    )
    _assert_near(made, expected)


@pytest.mark.parametrize("mapped", [False, True], ids=["leading axis", "vmap"])
def test_shard_map_over_a_batch_sums_gradients_of_parameters(mapped, four_devices):
    graph = BIPARTITE["padding"]
    arguments = inputs(graph, batch=(4,), num_layers=2)
    mesh, spec = Mesh(four_devices, ("batch",)), PartitionSpec("batch")
    plain = functools.partial(apply, graph)
    specs = spec, *[PartitionSpec()] * 3
    each = jax.vmap(plain, (0, None, None, None)) if mapped else plain
    sharded = jax.shard_map(each, mesh=mesh, in_specs=specs, out_specs=spec)

    def gradients(run):
        def loss(*arguments):
            return jnp.mean(run(*arguments) ** 2)

        return _jit(jax.grad(loss, argnums=(0, 1, 2, 3)))(*arguments)

    _assert_near(gradients(sharded), gradients(plain))


def _graphs_tuple(nodes, edges, rng):
    return jraph.GraphsTuple(
        nodes=rng.normal(size=(nodes, 4)).astype(np.float32),
        edges=rng.normal(size=(edges, 2)).astype(np.float32),
        senders=rng.integers(0, nodes, edges).astype(np.int32),
        receivers=rng.integers(0, nodes, edges).astype(np.int32),
        n_node=np.array([nodes]),
        n_edge=np.array([edges]),
        globals=None,
    )


def test_a_padded_jraph_batch_gives_each_graph_what_it_gets_alone():
    rng, layers = np.random.default_rng(0), params(2, 10)
    graphs = [_graphs_tuple(*sizes, rng) for sizes in ((5, 12), (1, 0), (5, 12))]
    padded = jraph.pad_with_graphs(jraph.batch(graphs), n_node=20, n_edge=40, n_graph=5)

    @functools.partial(_jit, static_argnames="padded")
    def run(graphs, padded):
        graph = CSRGraph.from_graphs_tuple(graphs, padded=padded)
        # Features of edges go with them into the order of the graph.
        mask = jraph.get_edge_padding_mask(graphs) if padded else None
        order = sort_edges(jnp.asarray(graphs.receivers), graph.num_rows, mask)[1]
        nodes, edges = jnp.asarray(graphs.nodes), jnp.asarray(graphs.edges)[order]
        apply = functools.partial(ops.edge_mlp_aggregate, graph, nodes, layers, edges)
        return jnp.stack([apply(reduce=reduce) for reduce in ("mean", "max")], axis=1)

    together, start = run(padded, padded=True), 0
    for graph in graphs:
        alone = run(graph, padded=False)
        end = start + len(alone)
        np.testing.assert_allclose(together[start:end], alone, rtol=1e-4, atol=1e-5)
        start = end


@pytest.mark.parametrize("by_default", [False, True], ids=["argument", "session default"])
@pytest.mark.parametrize("name, needs", [("ffi", "one of"), ("pallas", "platform cuda")])
def test_a_name_that_has_nothing_to_run_here_is_refused(name, needs, by_default):
    """By what is left to edges: products of nodes take what is fastest in both cases."""
    if name == "pallas" and jax.default_backend() != "cpu":
        pytest.skip("reason: needs a CPU, where that name runs nothing")
    run = functools.partial(apply, RING, implementation=None if by_default else name)
    refused = pytest.raises(
        NotImplementedError, match=rf"edge_mlp_aggregate\[{name}\]: needs {needs}"
    )
    with jaxgnn.default_implementation(name if by_default else None), refused:
        jax.eval_shape(run, *inputs(RING))


GRAPH = CSRGraph.from_edges([0, 1, 2, 3], [1, 2, 2, 0], 4)
UNEQUAL = CSRGraph.from_edges([0, 1], [1, 1], 2, num_senders=3)
H, LAYERS = jnp.ones((4, 3)), params(3, 6)
FEATURES, WEIGHTS = jnp.ones((4, 2)), jnp.ones(4)


def _bad(**changes):
    arguments = {"graph": GRAPH, "h": H, "params": LAYERS}
    return lambda: ops.edge_mlp_aggregate(**arguments | changes)


def _layers(*kernels, biases=(None, None)):
    return ops.EdgeMLPParams(tuple(jnp.ones(k) for k in kernels), biases)


BAD = {
    "graph": (_bad(graph=H), ["graph", "CSRGraph", "Array"]),
    "rows": (_bad(h=H[:3]), ["h must", "[..., 4, features]", "(3, 3)"]),
    "h int": (_bad(h=H.astype(int)), ["h must", "floating", "int32"]),
    "one array": (_bad(graph=UNEQUAL, h=H[:2]), ["h must", "a pair", "(2, 3)"]),
    "three arrays": (_bad(h=(H, H, H)), ["h must", "a pair", "3 arrays"]),
    "senders": (_bad(graph=UNEQUAL, h=(H[:2], H)), ["h[1]", "3, features", "(4, 3)"]),
    "axes": (_bad(h=(H, H[None])), ["h[1]", "leading axes ()", "(1, 4, 3)"]),
    "dtypes": (_bad(h=(H, H.astype(jnp.bfloat16))), ["h[1]", "float32", "bfloat16"]),
    "params": (_bad(params=tuple(LAYERS)), ["params", "EdgeMLPParams", "tuple"]),
    "kernels": (_bad(params=LAYERS._replace(kernels=H)), ["params.kernels", "list or tuple"]),
    "no layer": (_bad(params=ops.EdgeMLPParams((), ())), ["params", "one layer", "0 kernels"]),
    "biases": (
        _bad(params=LAYERS._replace(biases=(None,))),
        ["params", "3 kernels, 1 biases"],
    ),
    "first kernel": (
        _bad(params=_layers((5, 4), (4, 3))),
        ["kernels[0]", "(6, features)", "[receiver 3 ; sender 3]", "(5, 4)"],
    ),
    "first kernel with features": (
        _bad(edge_features=FEATURES),
        ["kernels[0]", "(8, features)", "edge features 2]", "(6, 6)"],
    ),
    "second kernel": (
        _bad(params=_layers((6, 4), (3, 3))),
        ["kernels[1]", "(4, features)", "the layer before, 4 wide", "(3, 3)"],
    ),
    "bias": (
        _bad(params=_layers((6, 4), (4, 3), biases=(None, WEIGHTS))),
        ["biases[1]", "(3,)", "(4, 3)", "(4,)"],
    ),
    "kernel dtype": (
        _bad(params=jax.tree.map(lambda p: p.astype(jnp.float16), LAYERS)),
        ["kernels[0]", "float32", "float16"],
    ),
    "features length": (
        _bad(edge_features=FEATURES[:3]),
        ["edge_features", "[4, any]", "(3, 2)"],
    ),
    "features axes": (
        _bad(edge_features=FEATURES[None]),
        ["edge_features", "[4, any]", "(1, 4, 2)"],
    ),
    "features dtype": (
        _bad(edge_features=FEATURES.astype(jnp.float16)),
        ["edge_features", "float32", "float16"],
    ),
    "weights length": (_bad(weights=WEIGHTS[:3]), ["weights", "[4]", "(3,)"]),
    "weights axes": (_bad(weights=WEIGHTS[None]), ["weights", "[4]", "(1, 4)"]),
    "weights int": (_bad(weights=WEIGHTS.astype(int)), ["weights", "floating", "int32"]),
    "reduce": (_bad(reduce="min"), ["reduce", "'sum' or 'mean' or 'max'", "'min'"]),
    "activation": (_bad(activation="softplus"), ["activation", "'relu'", "'softplus'"]),
    "normalised": (
        _bad(graph=GRAPH.normalized("mean"), reduce="mean"),
        ["graph", "not normalised for reduce='mean'", "'mean'"],
    ),
    "implementation": (_bad(implementation="cuda"), ["implementation", "'cuda'"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    run, fragments = BAD[name]
    with pytest.raises(ValueError) as error:
        run()
    for fragment in ("edge_mlp_aggregate: ", *fragments):
        assert fragment in str(error.value), f"{fragment!r} not in: {error.value}"
