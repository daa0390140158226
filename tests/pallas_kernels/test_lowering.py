"""Every Mosaic GPU kernel lowers for CUDA at real shapes, without a GPU."""

import math
import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from jaxgnn import CBSR, CSRGraph, deterministic, ops
from jaxgnn.graph import BlockShape, BlockTasks, EdgeBlocks, GraphPlan, RowSchedule
from jaxgnn.graph.plan.schedule import units
from jaxgnn.ops.core import dispatch
from jaxgnn.testing import DTYPES
from pallas_kernels.simt import module_names
from tests.pallas_kernels._chips import H100

DIM, NODES, EDGES = 256, 232_965, 111_400_000  # Reddit
struct = jax.ShapeDtypeStruct


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(dispatch, "current_platform", lambda: "cuda")


def _graph(
    nodes=NODES, edges=EDGES, *, factors=True, offsets=jnp.int32, batch=(), blocks=False
) -> CSRGraph:
    """The shapes of a prepared graph, square; with ``blocks``, as where there is a GPU."""

    def array(size, dtype=jnp.int32):
        return struct((*batch, size), dtype)

    pieces = units(nodes, edges)
    schedule = RowSchedule(array(pieces), array(pieces + 1, offsets), array(pieces), array(2))
    indptr, indices = array(nodes + 1, offsets), array(edges)
    by_block = []
    for shape in BlockShape.choices(H100, nodes, nodes, edges) if blocks else ():
        tasks = [
            BlockTasks(array(n), array(n, offsets), array(n, offsets), shape.senders_of(tiles))
            for tiles in shape.tiles
            for n in [units(shape.num_blocks * tiles, edges, shape.edges_per_task)]
        ]
        by_block += [
            EdgeBlocks(
                None if shape.order == "given" else array(nodes),
                array(-(-edges // 8) * 8, jnp.uint32),
                array(edges, offsets),
                tuple(tasks),
                shape,
            )
        ]
    plan = GraphPlan(schedule, indptr, indices, indices, schedule, tuple(by_block))
    weights, scale = (array(n, jnp.float32) if factors else None for n in (edges, nodes))
    scales = {"row_scale": scale, "col_scale": scale}
    return CSRGraph(indptr, indices, weights, nodes, **scales, plan=plan, in_range=True)


def _lower(function, *args) -> str:
    lowered = jax.jit(function).trace(*args).lower(lowering_platforms=("cuda",))
    return lowered.as_text()


def _kernels(text: str) -> int:
    return text.count("mosaic_gpu_v2")


def _kept(k, dtype, dim=DIM, nodes=NODES, batch=()):
    ids = jnp.uint8 if dim <= 256 else jnp.uint16
    return CBSR(struct((*batch, nodes, k), dtype), struct((*batch, nodes, k), ids), dim)


GRAPHS = {
    "plain": lambda: _graph(factors=False),
    "weighted": _graph,
    "wide offsets": lambda: _graph(offsets=jnp.int64),
    "short rows": lambda: _graph(nodes=700, edges=200),
}


@pytest.mark.lowers
@pytest.mark.costly
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GRAPHS)
def test_products_lower_with_their_gradients(name, dtype):
    def spmm(graph, weights, x):
        return ops.spmm(graph.with_weights(weights), x, implementation="pallas")

    def maxk_spmm(graph, weights, kept):
        return ops.maxk_spmm(graph.with_weights(weights), kept, implementation="pallas")

    with jax.enable_x64(name == "wide offsets"):
        graph = GRAPHS[name]()
        features = struct((graph.num_rows, DIM), dtype)
        kept = _kept(32, dtype, nodes=graph.num_rows)
        for op, x in ((spmm, features), (maxk_spmm, kept)):

            def both(graph, weights, x, dy, op=op):
                y, pull_back = jax.vjp(lambda w, x: op(graph, w, x), weights, x)
                return y, pull_back(dy)

            text = _lower(both, graph, graph.weights, x, features)
            assert _kernels(text) >= (2 if graph.weights is None else 3)


@pytest.mark.lowers
@pytest.mark.costly
@pytest.mark.parametrize("implementation", ["pallas", "ffi"])
@pytest.mark.parametrize("heads, dim, dtype", [(4, 64, "float32"), (3, 37, "bfloat16")])
def test_products_of_heads_lower_with_their_gradients(heads, dim, dtype, implementation):
    graph = _graph()
    weights, x = (
        struct((EDGES, heads), jnp.float32),
        struct((NODES, heads, dim), dtype),
    )

    def both(graph, weights, x, dy):
        y, pull_back = jax.vjp(
            lambda w, x: ops.spmm(graph.with_weights(w), x, implementation=implementation),
            weights,
            x,
        )
        return y, pull_back(dy)

    text = _lower(both, graph, weights, x, x)
    if implementation == "pallas":
        assert _kernels(text) == 5  # forward, dx, each with long rows, dw
    else:
        programs = [text.count(f'program = "cuda:{name}|') for name in ("spmm", "sddmm")]
        assert programs == [2, 1]


@pytest.mark.lowers
@pytest.mark.costly
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "dim, k", [(256, 16), (256, 64), (256, 5), (300, 31), (1024, 96), (4096, 40)]
)
def test_every_record_lowers(dim, k, dtype):
    def loss(graph, values, indices):
        y = ops.maxk_spmm(graph, CBSR(values, indices, dim), implementation="pallas")
        return jnp.sum(y.astype(jnp.float32) ** 2)

    kept = _kept(k, dtype, dim)
    text = _lower(jax.grad(loss, 1), _graph(factors=False), kept.values, kept.indices)
    assert _kernels(text) == 4  # records, forward, long rows, gradient


BLOCKS = {
    "reddit": lambda: _graph(factors=False, blocks=True),  # blocks of 144 or 288 rows
    "weighted": lambda: _graph(blocks=True),
    "wide offsets": lambda: _graph(offsets=jnp.int64, blocks=True),
    "products": lambda: _graph(nodes=2_449_029, edges=123_718_280, blocks=True),  # of 64 rows
}


@pytest.mark.lowers
@pytest.mark.costly
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim, k", [(256, 16), (256, 32), (256, 5), (300, 96), (796, 129)])
@pytest.mark.parametrize("name", BLOCKS)
def test_the_gradient_by_blocks_lowers(name, dim, k, dtype):
    def gradient(graph, values, indices, dy):
        def product(values):
            return ops.maxk_spmm(graph, CBSR(values, indices, dim), implementation="pallas")

        return jax.vjp(product, values)[1](dy)

    with jax.enable_x64(name == "wide offsets"):
        graph = BLOCKS[name]()
        kept, dy = _kept(k, dtype, dim, graph.num_rows), struct((graph.num_rows, dim), dtype)
        text = _lower(gradient, graph, kept.values, kept.indices, dy)
    rows = 64 if name == "products" else 144
    fits = rows * dim * jnp.dtype(dtype).itemsize <= 448 * 1024
    assert "maxk_spmm_grad_values" in text
    assert ("maxk_spmm_grad_values_blocks" in text) == fits


@pytest.mark.lowers
@pytest.mark.costly
@pytest.mark.parametrize("dtype", [*DTYPES, "float16"])
@pytest.mark.parametrize("dim", [1, 16, 255, 256, 600, 1024])
def test_maxk_lowers_with_its_gradient(dim, dtype):
    def loss(x):
        kept = ops.maxk(x, min(dim, 32), implementation="pallas")
        return jnp.sum(kept.values.astype(jnp.float32) ** 2)

    assert _kernels(_lower(jax.value_and_grad(loss), struct((NODES, dim), dtype))) == 2


@pytest.mark.parametrize("axes", [(4,), (2, 70_000)])
def test_rows_of_a_batch_are_rows_of_one_kernel(axes):
    """Members of their own would begin at any address, and be too many for an axis of the grid."""

    def there_and_back(x):
        kept = ops.maxk(x, 2, implementation="pallas")
        dense = ops.todense(kept, implementation="pallas")
        return jnp.sum(dense**2), kept

    mapped = jax.grad(there_and_back, has_aux=True)
    for _ in axes:
        mapped = jax.vmap(mapped)
    text = _lower(mapped, struct((*axes, 3, 10), jnp.float32))
    calls = [line for line in text.splitlines() if "mosaic_gpu_v2" in line]
    assert len(calls) >= 3
    for call in calls:
        rows = re.findall(r"tensor<(\d+)x(?:10|2)x(?:f32|ui8)>", call)
        assert len(rows) == 3
        assert {*rows} == {str(math.prod(axes) * 3)}


def test_a_batch_without_members_has_no_rows_for_a_kernel():
    def loss(x):
        kept = ops.maxk(x, 2, implementation="pallas")
        return jnp.sum(ops.todense(kept, implementation="pallas") ** 2)

    text = _lower(jax.vmap(jax.value_and_grad(loss)), struct((0, 3, 10), jnp.float32))
    assert _kernels(text) == 0


@pytest.mark.lowers
def test_sddmm_and_its_gradients_lower():
    def loss(graph, a, b):
        return jnp.sum(ops.sddmm(graph, a, b, implementation="pallas") ** 2)

    x = struct((NODES, DIM), jnp.float32)
    graph = _graph(factors=False)
    assert _kernels(_lower(jax.value_and_grad(loss, (1, 2)), graph, x, x)) >= 3


@pytest.mark.lowers
@pytest.mark.costly
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offsets", [jnp.int32, jnp.int64])
@pytest.mark.parametrize("heads", [(), (1,), (3,), (8,), (4, 16)])
def test_segment_softmax_and_its_gradient_lower(heads, offsets, dtype):
    def loss(graph, logits):
        p = ops.segment_softmax(graph, logits, implementation="pallas")
        return jnp.sum(p.astype(jnp.float32) ** 2)

    def gradient(graph, logits):
        return jax.value_and_grad(loss, 1)(graph, logits)

    with jax.enable_x64(offsets == jnp.int64):
        graph, logits = _graph(factors=False, offsets=offsets), struct((EDGES, *heads), dtype)
        # Pieces, and what is left of long rows, there and back.
        assert _kernels(_lower(gradient, graph, logits)) == 4


def _network(graph, x):
    for _ in range(2):
        x = ops.maxk_spmm(graph, ops.maxk(x, 8, implementation="pallas"), implementation="pallas")
    return ops.spmm(graph, x, implementation="pallas")


def _gradient(graph, x):
    return jax.value_and_grad(lambda x: jnp.sum(_network(graph, x) ** 2))(x)


@pytest.mark.lowers
def test_batched_features_share_the_graph_and_batched_graphs_lower():
    small = {"nodes": 1000, "edges": 9000, "blocks": True}
    x = struct((3, 1000, 64), jnp.float32)
    shared = _lower(jax.vmap(_gradient, (None, 0)), _graph(**small), x)
    assert "tensor<3x9000xi32>" not in shared
    batched = _lower(jax.vmap(_gradient), _graph(**small, batch=(3,)), x)
    assert "tensor<3x9000xi32>" in batched
    _lower(_gradient, _graph(**small), x)
    _lower(lambda g, x: lax.map(lambda x: _gradient(g, x), x), _graph(**small), x)


@pytest.mark.lowers
def test_it_lowers_inside_shard_map_and_checkpoint():
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    rows, shared = PartitionSpec("data"), PartitionSpec()

    def gradient(graph, x):
        network = jax.checkpoint(_network)
        return jax.grad(lambda x: jnp.sum(network(graph, x) ** 2))(x)

    sharded = jax.shard_map(
        lambda graph, x: jax.vmap(gradient, (None, 0))(graph, x),
        mesh=mesh,
        in_specs=(shared, rows),
        out_specs=rows,
    )
    graph = _graph(nodes=1000, edges=9000, blocks=True)
    arguments = graph, struct((8, 1000, 64), jnp.float32)
    assert _kernels(_lower(sharded, *arguments)) > 0
    with jax.set_mesh(mesh):
        assert _kernels(_lower(sharded, *arguments)) > 0


def test_the_deterministic_mode_does_not_add_atomically():
    def gradient(graph, values, indices):
        def loss(values):
            y = ops.maxk_spmm(graph, CBSR(values, indices, DIM), implementation="pallas")
            return jnp.sum(y**2)

        return jax.grad(loss)(values)

    kept = _kept(32, jnp.float32)
    arguments = _graph(), kept.values, kept.indices
    assert "maxk_spmm_grad_values" in _lower(gradient, *arguments)
    with deterministic():
        assert "maxk_spmm_grad_values" not in _lower(gradient, *arguments)


def test_nothing_is_launched_for_no_edges_or_no_rows():
    def products(graph, x, kept):
        edges = graph.without_weights()
        return (
            ops.spmm(graph, x, implementation="pallas"),
            ops.sddmm(edges, x, x, implementation="pallas"),
            ops.maxk_spmm(graph, kept, implementation="pallas"),
            ops.segment_softmax(edges, jnp.ones((0, 2)), implementation="pallas"),
        )

    x, kept = struct((5, DIM), jnp.float32), _kept(3, jnp.float32, nodes=5)
    assert _kernels(_lower(products, _graph(nodes=5, edges=0), x, kept)) == 0
    empty = struct((0, DIM), jnp.float32)
    assert _kernels(_lower(lambda x: ops.maxk(x, 3, implementation="pallas"), empty)) == 0


@pytest.mark.lowers
def test_a_kernel_is_the_same_whatever_was_lowered_before_unless_its_dump_is_wanted(monkeypatch):
    """Compiled kernels are found again by their text, in which dumps would be numbered."""

    def lower():
        x, kernel, bias = (struct(s, jnp.bfloat16) for s in ((4096, 64), (64, 64), (64,)))
        options = {"activation": "relu", "implementation": "pallas"}
        # New functions, since JAX knows what it has lowered by its function.
        mlp = _lower(lambda *arrays: ops.fused_mlp(*arrays, **options), x, [kernel] * 2, [bias] * 2)
        graph, features = _graph(1000, 9000, factors=False), struct((1000, 64), jnp.float32)
        return mlp, _lower(lambda graph, x: _network(graph, x), graph, features)

    first = lower()
    assert lower() == first
    named = []
    monkeypatch.setattr(module_names, "_rename", lambda _, name: named.append(name))
    lower()
    assert len(named) >= 2
    named.clear()
    monkeypatch.setenv("MOSAIC_GPU_DUMP_RESOURCES", "1")
    lower()
    assert not named
