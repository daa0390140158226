"""tensor_product_sum against e3nn-jax and float64, and its equivariance."""

import functools
import re

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from jaxgnn import CSRGraph, ops
from jaxgnn.equivariant import TensorProduct, separate_paths, spherical_harmonics
from jaxgnn.equivariant.radial_layer import RadialLayer
from jaxgnn.graph import masked
from jaxgnn.ops._equivariant import kernels
from jaxgnn.ops._equivariant.reference import tensor_product_sum as reference
from jaxgnn.ops._equivariant.tensor_product_sum import SUM
from jaxgnn.ops.core import dispatch
from jaxgnn.testing import (
    assert_close,
    check_against_float64,
    check_numerical_gradients,
    random_array,
)
from tests.ops._table import BARE, longest_row, usable

IMPLEMENTATIONS = usable(SUM)
SUMS = TensorProduct.of("3x0e+2x1o+3x2e", "0e+1o+2e", "3x0e+2x1o+3x2e+2x1e")
APART = separate_paths("3x0e+2x1o", "0e+1o+2e+3o", keep="0e+1o+1e+2e")
SMALL = TensorProduct.of("2x0e+2x1o", "0e+1o", "2x0e+2x1o")
# One and three vectors of channels, whole and not; no path reads the last entry.
WIDE = TensorProduct.of(
    "40x0e+17x1o+3x0o",
    "0e+1o",
    "40x0e+40x1o+17x0e+17x1o",
    [(0, 0, 0), (0, 1, 1), (1, 1, 2), (1, 0, 3)],
)
# Rows of no edge, of part of a tile of edges, of several tiles.
ROWS = CSRGraph.from_edges(
    [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0], [1] * 9 + [2] + [4] * 5 + [3], 5
)


def _arrays(graph, product, dtype="float32"):
    return (
        random_array((graph.num_cols, product.irreps_in.dim), dtype, seed=0),
        random_array((graph.num_edges, product.irreps_sh.dim), dtype, seed=1),
        random_array((graph.num_edges, product.num_weights), dtype, seed=2),
    )


def _of_e3nn(graph, product, x, harmonics, weights):
    """The same by e3nn's own tensor product, from its irreps and instructions."""
    irreps = [
        e3nn.Irreps(str(i)) for i in (product.irreps_in, product.irreps_sh, product.irreps_out)
    ]
    instructions = [(*path, "uvu", True) for path in product.paths]
    coupled = e3nn.legacy.FunctionalTensorProduct(
        *irreps, instructions, irrep_normalization="component", path_normalization="element"
    )

    @jax.jit
    @jax.vmap
    def messages(x, harmonics, weights):
        parts = [weights[own][:, None] for own in product.weight_slices]
        both = (e3nn.IrrepsArray(i, a) for i, a in zip(irreps, (x, harmonics), strict=False))
        return coupled.left_right(parts, *both).array

    edges = messages(x[graph.indices], harmonics, weights)
    return jax.ops.segment_sum(edges, graph.receivers(), graph.num_rows)


def _plain(graph, product):
    """The formula, coefficient by coefficient, for the float64 oracle."""

    def run(x, harmonics, weights):
        receivers = graph.receivers()
        real = (receivers < graph.num_rows)[:, None]
        harmonics, weights = jnp.where(real, harmonics, 0), jnp.where(real, weights, 0)
        out = [0.0] * len(product.irreps_out)
        for path, own in zip(product.paths, product.weight_slices, strict=True):
            part = x[graph.indices, product.irreps_in.slices[path.i_in]]
            harmonic = harmonics[:, product.irreps_sh.slices[path.i_sh]]
            table = jnp.asarray(product.table(path), x.dtype)
            edges, channels = graph.num_edges, product.channels(path)
            part = part.reshape(edges, channels, table.shape[0])
            made = jnp.einsum("eu,eua,eb,abc->euc", weights[:, own], part, harmonic, table)
            out[path.i_out] += made.reshape(edges, channels * table.shape[2])
        return jax.ops.segment_sum(jnp.concatenate(out, axis=1), receivers, graph.num_rows)

    return run


def _wide(x, harmonics, weights):  # one function, so that it is compiled once
    return _plain(ROWS, WIDE)(x, harmonics, weights)


def _call(graph, product, implementation=None):
    def call(x, harmonics, weights):
        arguments = product.arguments | {"implementation": implementation}
        return ops.tensor_product_sum(graph, x, harmonics, weights, **arguments)

    return call


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("product", [SUMS, APART], ids=["sums", "apart"])
def test_values_are_those_of_e3nn(product, implementation):
    graph = BARE["repeated_edges"]
    arrays = _arrays(graph, product)
    expected = _of_e3nn(graph, product, *arrays)
    actual = _call(graph, product, implementation)(*arrays)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("sign", [1, -1], ids=["rotation", "reflection"])
def test_features_turn_with_the_points(sign, implementation):
    graph = BARE["unweighted"]
    turn = sign * Rotation.random(random_state=3).as_matrix().astype(np.float32)
    x, vectors, weights = (
        random_array((graph.num_cols, SUMS.irreps_in.dim), "float32", seed=0),
        random_array((graph.num_edges, 3), "float32", seed=1),
        random_array((graph.num_edges, SUMS.num_weights), "float32", seed=2),
    )

    @jax.jit
    def convolve(x, vectors):
        harmonics = spherical_harmonics(SUMS.irreps_sh, vectors)
        return _call(graph, SUMS, implementation)(x, harmonics, weights)

    of_in, of_out = (
        jnp.asarray(e3nn.Irreps(str(irreps)).D_from_matrix(turn))
        for irreps in (SUMS.irreps_in, SUMS.irreps_out)
    )
    turned = convolve(x @ of_in.T, vectors @ turn.T)
    np.testing.assert_allclose(turned, convolve(x, vectors) @ of_out.T, rtol=1e-4, atol=1e-4)


@pytest.mark.costly
@pytest.mark.usefixtures("compiled_quickly")
@pytest.mark.parametrize("implementation", [*IMPLEMENTATIONS, None])
@pytest.mark.parametrize(
    "name, dtype",
    [
        ("padding_edges", "float32"),
        ("hub_row_spans_tasks", "float32"),
        ("no_edges", "float32"),
        ("isolated_nodes", "float32"),
        ("bipartite", "bfloat16"),
    ],
)
def test_values_and_gradients_equal_float64(name, dtype, implementation):
    graph = BARE[name]
    terms = 2 * 9 * max(longest_row(graph), SMALL.irreps_out.dim)  # paths, coefficients, edges
    check_against_float64(
        _call(graph, SMALL, implementation),
        _plain(graph, SMALL),
        *_arrays(graph, SMALL, dtype),
        reduction_length=terms,
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_compiled_values_and_gradients_equal_float64_at_any_number_of_channels(dtype):
    check_against_float64(
        _call(ROWS, WIDE, "ffi"),
        _wide,
        *_arrays(ROWS, WIDE, dtype),
        reduction_length=2 * 9 * WIDE.irreps_out.dim,
    )


def test_compiled_sums_of_float64_have_its_precision():
    with jax.enable_x64(True):
        arrays = [array.astype(jnp.float64) for array in _arrays(ROWS, SMALL)]
        dy = jnp.ones((5, SMALL.irreps_out.dim))

        @jax.jit
        def both(*arrays):
            value, pull = jax.vjp(_call(ROWS, SMALL, "ffi"), *arrays)
            expected, expected_pull = jax.vjp(_plain(ROWS, SMALL), *arrays)
            return (value, *pull(dy)), (expected, *expected_pull(dy))

        for actual, expected in zip(*both(*arrays), strict=True):
            assert actual.dtype == jnp.float64
            assert_close(actual, expected, reduction_length=72)


def test_arrays_of_edges_may_be_wider_than_features():
    x, harmonics, weights = _arrays(ROWS, SMALL)
    value, pull = jax.vjp(_call(ROWS, SMALL, "ffi"), x.astype("bfloat16"), harmonics, weights)
    gradients = pull(jnp.ones_like(value))
    assert [a.dtype.name for a in (value, *gradients)] == ["bfloat16"] * 2 + ["float32"] * 2


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_gradients_agree_with_finite_differences(implementation):
    graph = CSRGraph.from_edges([0, 1, 1, 2], [1, 0, 0, 2], 3)
    check_numerical_gradients(_call(graph, SMALL, implementation), *_arrays(graph, SMALL))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_forces_and_their_gradients_equal_those_of_e3nn(implementation):
    graph = CSRGraph.from_edges([0, 1, 1, 2], [1, 0, 0, 2], 3)
    x, _, weights = _arrays(graph, SMALL)
    vectors = random_array((graph.num_edges, 3), "float32", seed=4)

    def curvature(convolve):
        def energy(vectors, weights):
            lengths = jnp.linalg.norm(vectors, axis=1, keepdims=True)
            harmonics = spherical_harmonics(SMALL.irreps_sh, vectors)
            return jnp.sum(jnp.sin(convolve(x, harmonics, weights * jnp.exp(-lengths))))

        def loss(*arrays):
            return jnp.sum(jax.grad(energy)(*arrays) ** 2)

        return jax.jit(jax.grad(loss, argnums=(0, 1)))(vectors, weights)

    ours = curvature(_call(graph, SMALL, implementation))
    theirs = curvature(functools.partial(_of_e3nn, graph, SMALL))
    for actual, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def _of_layer(graph, implementation):
    """The sums by functions of a layer that makes weights, as on a GPU."""

    def call(x, harmonics, basis, kernel):
        request, layer = dispatch.resolve("sum", implementation), RadialLayer(basis, kernel)
        if implementation == "xla":
            return reference.tensor_product_sum(graph, x, harmonics, layer, product=SMALL)
        return kernels.sum_at_rows(request, SMALL, graph, x, harmonics, layer)

    return call


@pytest.mark.parametrize("weights", ["given", "of a layer"])
def test_third_derivatives_are_those_of_the_reference(weights):
    graph = CSRGraph.from_edges([0, 1, 1, 2], [1, 0, 0, 2], 3)
    arrays = _arrays(graph, SMALL)
    if weights == "of a layer":
        layer = random_array((4, 3), "float32", 3), random_array((3, 8), "float32", 4)
        arrays = *arrays[:2], *layer
    along, every = [jnp.cos(a) for a in arrays], tuple(range(len(arrays)))

    @functools.partial(jax.jit, static_argnums=0)
    def third(implementation, *arrays):
        is_given = weights == "given"
        call = _call(graph, SMALL, implementation) if is_given else _of_layer(graph, implementation)

        def slope(*arrays):
            gradients = jax.grad(lambda *a: jnp.sum(call(*a) ** 3), every)(*arrays)
            return sum(jnp.vdot(g, a) for g, a in zip(gradients, along, strict=True))

        return jax.jvp(jax.grad(slope, every), arrays, tuple(along))[1]

    for actual, expected in zip(third("ffi", *arrays), third("xla", *arrays), strict=True):
        largest = float(jnp.max(jnp.abs(expected)))
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5 * largest)


def test_vmap_of_gradients_sums_nothing_over_the_batch():
    x, harmonics, weights = _arrays(ROWS, SMALL)
    batch = jnp.stack([x, jnp.sin(x), 2 * x])

    def gradients(x, harmonics, weights):
        return jax.grad(lambda *a: jnp.sum(_call(ROWS, SMALL, "ffi")(*a) ** 2), (0, 1, 2))(
            x, harmonics, weights
        )

    mapped = jax.jit(jax.vmap(gradients, (0, None, None)))(batch, harmonics, weights)
    for i, own in enumerate(batch):
        for actual, expected in zip(mapped, gradients(own, harmonics, weights), strict=True):
            np.testing.assert_allclose(actual[i], expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_weights_of_a_basis_are_their_product_with_the_kernel(implementation):
    graph = BARE["padding_edges"]
    x, harmonics, _ = _arrays(graph, SMALL)
    basis = random_array((graph.num_edges, 4), "float32", seed=5)
    kernel = random_array((4, SMALL.num_weights), "float32", seed=6)

    def of_basis(x, harmonics, basis, kernel):
        arguments = SMALL.arguments | {"basis": basis, "kernel": kernel}
        return ops.tensor_product_sum(
            graph, x, harmonics, implementation=implementation, **arguments
        )

    check_against_float64(
        of_basis,
        lambda x, harmonics, basis, kernel: _plain(graph, SMALL)(x, harmonics, basis @ kernel),
        *(x, harmonics, basis, kernel),
        reduction_length=72 * longest_row(graph),
        gradient_length=72 * graph.num_edges,
    )


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_padding_slots_may_contain_anything(implementation):
    graph = CSRGraph.from_edges([0, 1, 0], [1, 0, 0], 2, edge_mask=[True, True, False])
    x, harmonics, weights = _arrays(graph, SMALL)
    kernel = jnp.ones((SMALL.num_weights, SMALL.num_weights))
    nan = [a.at[2].set(jnp.nan) for a in (harmonics, weights)]

    def given(x, harmonics, weights):
        return _call(graph, SMALL, implementation)(x, harmonics, weights)

    def of_basis(x, harmonics, basis):
        arguments = SMALL.arguments | {"basis": basis, "kernel": kernel}
        return ops.tensor_product_sum(
            graph, x, harmonics, implementation=implementation, **arguments
        )

    for call in (given, of_basis):
        value, pull = jax.vjp(call, x, *nan)
        gradients = pull(jnp.ones_like(value))
        assert all(np.isfinite(g).all() for g in (value, *gradients))
        assert not gradients[1][2].any() and not gradients[2][2].any()
        np.testing.assert_array_equal(value, call(x, harmonics, weights))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_leading_axes_and_vmap_share_the_graph_and_may_share_arrays_of_edges(implementation):
    graph = BARE["unweighted"]
    call = _call(graph, SMALL, implementation)
    x, harmonics, weights = _arrays(graph, SMALL)
    x = jnp.stack([x, 2 * x, jnp.cos(x)])
    harmonics = jnp.stack([harmonics, jnp.sin(harmonics), harmonics])
    expected = [call(x[i], harmonics[i], weights) for i in range(3)]
    for y in (call(x, harmonics, weights), jax.vmap(call, (0, 0, None))(x, harmonics, weights)):
        np.testing.assert_allclose(y, jnp.stack(expected), rtol=1e-5, atol=1e-5)


def test_an_edge_that_is_not_present_is_not_there():
    graph = CSRGraph.from_edges([0, 1, 2], [2, 2, 0], 3)
    x, harmonics, weights = _arrays(graph, SMALL)
    without = CSRGraph.from_edges([0, 2], [2, 0], 3)
    # Edges are in the order of their receivers: 2-0, 0-2, 1-2.
    y = _call(masked(graph, jnp.array([1.0, 1.0, 0.0])), SMALL)(x, harmonics, weights)
    expected = _call(without, SMALL)(x, harmonics[:2], weights[:2])
    np.testing.assert_allclose(y, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"x": jnp.ones((3, 7))}, "x must be of shape [..., 8], for irreps_in 2x0e+2x1o, got"),
        ({"x": jnp.ones((2, 8))}, "x must be of shape [..., 3, features]"),
        ({"harmonics": jnp.ones((3, 3))}, "harmonics must be of shape [..., 4], for irreps_sh"),
        ({"harmonics": jnp.ones((2, 4))}, "harmonics must be of shape [3, any]"),
        ({"harmonics": jnp.ones((3, 4), int)}, "harmonics must be of a floating dtype"),
        (
            {"weights": jnp.ones((3, 7))},
            "weights must be of shape [..., 8], for the channels of the 4",
        ),
        ({"weights": jnp.ones((2, 8))}, "weights must be of shape [3, any]"),
        ({"weights": None}, "basis must be given, as weights are not"),
        ({"weights": None, "basis": jnp.ones((3, 2))}, "kernel must be given, as weights are not"),
        ({"kernel": jnp.ones((2, 8))}, "kernel must be None where weights are given"),
        ({"recompute_weights": True}, "recompute_weights must be None where weights are given"),
        (
            {"recompute_weights": "yes"},
            "recompute_weights must be True or False or None, got 'yes'",
        ),
        ({"precision": "half"}, "precision must be None or 'highest' or 'tf32' or 'bf16x3'"),
        (
            {"weights": None, "basis": jnp.ones((3, 2)), "kernel": jnp.ones((2, 9))},
            "kernel must be of shape [2, 8], for the features of basis and the channels",
        ),
        ({"irreps_in": "2x0z"}, "irreps_in must be irreps such as"),
        ({"irreps_out": "2x0e+2x1o+2x2o"}, "irreps_out must be of entries that a path reaches"),
        ({"instructions": [(0, 0, 1)]}, "instructions must be paths whose irreps can be coupled"),
        ({"implementation": "best"}, "implementation must be None or one of"),
    ],
)
def test_bad_input_is_named(changes, message):
    graph = CSRGraph.from_edges([0, 1, 2], [1, 2, 2], 3)
    arrays = {"x": jnp.ones((3, 8)), "harmonics": jnp.ones((3, 4)), "weights": jnp.ones((3, 8))}
    irreps = {"irreps_in": "2x0e+2x1o", "irreps_sh": "0e+1o", "irreps_out": "2x0e+2x1o"}
    with pytest.raises(ValueError, match=re.escape(f"tensor_product_sum: {message}")):
        ops.tensor_product_sum(graph, **(arrays | irreps | changes))


def test_weights_of_the_graph_are_refused():
    graph = CSRGraph.from_edges([0], [1], 2).with_weights(jnp.ones(1))
    with pytest.raises(ValueError, match="multiply the harmonics by them"):
        _call(graph, SMALL)(jnp.ones((2, 8)), jnp.ones((1, 4)), jnp.ones((1, 8)))
