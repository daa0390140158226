"""Higher derivatives of the ops of attention: what they are, and that they hold no large array."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import jaxgnn
from jaxgnn import ops
from jaxgnn.graph import CSRGraph
from jaxgnn.ops._attention import composed, gat_attention, numbered_dropout
from jaxgnn.ops._attention.differentiable import Call, differentiable_kernels, run_kernels
from jaxgnn.ops._graph import pieces
from jaxgnn.ops.core import dispatch
from jaxgnn.testing import check_against_float64
from pallas_kernels.arguments.attention import Form, Operands
from tests.ops._table import BARE, longest_row
from tests.ops.attention._attention import COMPILED, TABLE
from tests.ops.attention.test_attention_memory import (
    CASES,
    CHUNK,
    DIM,
    EDGES,
    FEATURES,
    GRAPH,
    HEADS,
    _sizes,
    _sizes_in_text,
)

pytestmark = pytest.mark.usefixtures("compiled_quickly")

KEY = jax.random.key(7)
FULL = EDGES * HEADS * DIM
K_SPARSE = ["gat", "dot with values of edges that all heads share"]

# Only GATv2 has steps of its own, so it comes first.
every_op = pytest.mark.parametrize("op", ["gatv2_attention", "dot_attention", "gat_attention"])
every_compiled = pytest.mark.parametrize("implementation", COMPILED)


@pytest.fixture
def few_edges_a_piece(monkeypatch):
    """GATv2's scores in several pieces of small graphs, the last of which is not full."""
    monkeypatch.setattr(pieces, "ENTRIES", 1)


@pytest.mark.costly
@every_op
@every_compiled
@pytest.mark.usefixtures("few_edges_a_piece")
def test_first_and_second_derivatives_equal_float64(op, implementation):
    graph = BARE["padding_edges"]
    arrays = TABLE[op].arrays(graph, scale=0.5)
    names = tuple(arrays)
    masked = jnp.arange(graph.num_edges)[:, None] % 5 == 1

    def gradients(implementation, *given):
        def loss(given):
            arrays = dict(zip(names, given, strict=True))
            logits = jnp.where(masked, -jnp.inf, arrays["edge_logits"])
            options = {"dropout": 0.3, "key": KEY, "implementation": implementation}
            y, weights = TABLE[op](
                graph, arrays | {"edge_logits": logits}, return_weights=True, **options
            )
            return jnp.sum(y**3) + jnp.sum(weights**2)

        return jax.grad(loss)(given)

    check_against_float64(
        functools.partial(gradients, implementation),
        functools.partial(gradients, "xla"),
        *arrays.values(),
        reduction_length=16 * longest_row(graph),
        gradient_length=max(16 * longest_row(graph), graph.num_edges) ** 2,
    )


@pytest.mark.costly(1)
@every_op
def test_what_comes_back_for_padding_slots_of_the_weights_has_no_part(op):
    ends = [0, 1, 2, 0], [1, 1, 0, 0], 3
    graph = CSRGraph.from_edges(*ends, edge_mask=np.array([True, True, True, False]))
    arrays = TABLE[op].arrays(graph, full=False)
    real = (graph.receivers() < graph.num_rows)[:, None]

    def second(real):
        def loss(arrays):
            _, weights = TABLE[op](graph, arrays, return_weights=True)
            return jnp.sum(jnp.sqrt(jnp.where(real, weights, 1.0)))  # of slope inf at zero

        def slope(arrays):
            return sum(jnp.sum(g**2) for g in jax.tree.leaves(jax.grad(loss)(arrays)))

        return jax.jit(jax.grad(slope))(arrays)

    made, expected = second(jnp.ones_like(real)), second(real)
    for name, wanted in expected.items():
        assert np.isfinite(wanted).all()
        np.testing.assert_allclose(made[name], wanted, rtol=1e-5, atol=1e-6, err_msg=name)


def _second(case, implementation, *, k_sparse=False, product=False):
    """The gradient of the norm of the gradients, or of their product with vectors, traced."""
    op, shapes, named = CASES[case]
    given = [jax.ShapeDtypeStruct(s, jnp.float32) for s in (*shapes, *named.values())]
    some = tuple(range(len(given)))

    def loss(graph, *arrays):
        required, optional = list(arrays[: len(shapes)]), arrays[len(shapes) :]
        if k_sparse:
            required[2] = ops.maxk(required[2], 4)
        options = dict(zip(named, optional, strict=True), implementation=implementation)
        call = functools.partial(getattr(ops, op), dropout=0.1, key=KEY, return_weights=True)
        y, weights = call(graph, *required, **options)
        return jnp.sum(y**3) + jnp.sum(weights**2)

    def of_gradients(graph, vectors, *arrays):
        slopes = jax.grad(functools.partial(loss, graph), argnums=some)(*arrays)
        by = vectors if product else slopes
        return sum(jnp.sum(a * b) for a, b in zip(by, slopes, strict=True))

    run = jax.grad(of_gradients, argnums=tuple(i + 2 for i in some))
    return jax.jit(run).trace(GRAPH, tuple(given), *given)


def _most(case):
    """The largest array that a program may have."""
    shapes = CASES[case][1] + list(CASES[case][2].values())
    return max(*map(math.prod, shapes), EDGES * HEADS, EDGES * FEATURES, CHUNK)


@pytest.mark.costly(3)
@pytest.mark.parametrize("product", [False, True], ids=["norm", "product with a vector"])
@pytest.mark.parametrize("case", CASES)
@every_compiled
def test_second_derivatives_have_no_array_of_edges_heads_and_columns(case, implementation, product):
    program = _second(case, implementation, product=product).jaxpr.jaxpr
    assert EDGES * HEADS <= max(_sizes(program)) <= _most(case) < FULL


@pytest.mark.parametrize("case", K_SPARSE)
@every_compiled
def test_those_of_k_sparse_values_have_none(case, implementation):
    program = _second(case, implementation, k_sparse=True).jaxpr.jaxpr
    assert EDGES * HEADS <= max(_sizes(program)) <= _most(case) < FULL


def test_those_of_the_plain_formula_have_such_arrays():
    assert max(_sizes(_second("dot", "xla").jaxpr.jaxpr)) == FULL


@pytest.mark.costly(1)
@pytest.mark.parametrize("case", sorted(CASES, key=lambda case: "gatv2" not in case))
def test_programs_for_a_gpu_have_none(case):
    text = _second(case, None).lower(lowering_platforms=("cuda",)).as_text()
    assert "mosaic_gpu" in text
    assert EDGES * HEADS <= max(_sizes_in_text(text)) <= _most(case) < FULL


@every_compiled
def test_dropout_by_numbers_of_edges_has_the_second_derivatives_of_the_plain_formula(
    implementation,
):
    graph = CSRGraph.from_edges([0, 1, 2, 0, 1, 3], [1, 1, 1, 0, 0, 3], 4)
    arrays = TABLE["gat_attention"].arrays(graph, full=False)
    numbers = jnp.arange(10, 10 + graph.num_edges, dtype=jnp.uint32)
    request = dispatch.resolve("gat_attention", implementation)

    def second(compute, request):
        kernels = gat_attention.FORWARD, gat_attention.WEIGHTS, gat_attention.BACKWARD
        kernels = type(gat_attention._KERNELS)(*kernels)
        call = Call(kernels, composed.gat_scores, request, Form(slope=0.2, dropout=0.4), False)

        def loss(arrays):
            seed = jnp.array([3, 4], jnp.uint32)
            operands = Operands(arrays["a_dst"], arrays["a_src"], arrays["v"], seed=seed)
            y, _ = numbered_dropout.with_numbered_dropout(compute, call, graph, operands, numbers)
            return jnp.sum(y**3)

        def slope(arrays):
            return sum(jnp.sum(g**2) for g in jax.tree.leaves(jax.grad(loss)(arrays)))

        return jax.jit(jax.grad(slope))(arrays)

    made, expected = (
        second(differentiable_kernels, request),
        second(run_kernels, request._replace(name="xla")),
    )
    for name, wanted in expected.items():
        atol = 1e-4 * np.abs(wanted).max()
        np.testing.assert_allclose(made[name], wanted, rtol=1e-4, atol=atol, err_msg=name)


@pytest.mark.again("tests/ops/test_shard_map.py")
@pytest.mark.costly(1)
@every_op
@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.usefixtures("few_edges_a_piece")
def test_derivatives_of_members_on_devices_of_their_own_are_those_of_the_plain_formula(
    op, order, four_devices
):
    graph = CSRGraph.from_edges([1, 2, 0, 3, 3], [0, 0, 2, 1, 3], 4)
    arrays = TABLE[op].arrays(graph, full=False)
    factors = jnp.linspace(0.5, 1.0, 8)

    def derivative(implementation):
        def loss(factor):
            scaled = {name: factor * array for name, array in arrays.items()}
            return jnp.sum(TABLE[op](graph, scaled, implementation=implementation) ** 3)

        for _ in range(order):
            loss = jax.grad(loss)
        return jax.vmap(loss)

    spec, mesh = PartitionSpec("batch"), Mesh(four_devices, ("batch",))
    shared = jax.shard_map(derivative(None), mesh=mesh, in_specs=spec, out_specs=spec)
    made, expected = jax.jit(shared)(factors), jax.jit(derivative("xla"))(factors)
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.again("tests/ops/test_export.py")
def test_an_exported_second_derivative_takes_graphs_of_any_size():
    def second(graph, x):
        def loss(x):
            return jnp.sum(ops.gatv2_attention(graph, x, x, jnp.ones((1, 2))) ** 2)

        return jax.grad(lambda x: jnp.sum(jax.grad(loss)(x) ** 2))(x)

    graph, other = (CSRGraph.from_edges([0, 1, 2], [1, 2, 0], n) for n in (3, 4))
    x = jnp.linspace(-1.0, 1.0, 8).reshape(4, 1, 2)
    file = jaxgnn.export(second, graph, x[:3], shapes=("nodes, edges", "nodes, _, _"))
    made = jaxgnn.load_exported(file)(other, x)
    np.testing.assert_allclose(made, jax.jit(second)(other, x), rtol=1e-5, atol=1e-6)


def test_those_of_gatv2_are_refused_on_a_gpu_where_bits_have_to_repeat(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr(dispatch, "current_platform", lambda: "cuda")
    graph = CSRGraph.from_edges([0, 1, 2], [1, 2, 0], 3)
    x = jnp.ones((3, 2, 4))
    operands = Operands(x, x, attention=jnp.ones((2, 4)))
    with jaxgnn.deterministic():
        request = dispatch.resolve("gatv2_attention", None)
    message = r"gatv2_attention\[xla\]: needs a fixed order of summation"
    with pytest.raises(NotImplementedError, match=message):
        composed.gatv2_scores(request, graph, operands, Form(slope=0.2))
