"""Equivariant layers against e3nn-jax and float64 formulas, and under rotations and reflections."""

import re

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import CSRGraph, nn
from jaxgnn.equivariant import Irreps, spherical_harmonics, symmetric_couplings
from jaxgnn.nn.equivariant.normalized import SECOND_MOMENTS, normalized
from jaxgnn.testing import assert_close, check_numerical_gradients, random_array
from tests.equivariant._representation import TURNS, representation

IN, OUT = "3x0e+2x1o+2x0e+1x0o+2x2e", "2x0e+3x1o+1x2e+2x0e+2x0o"
GRAPH = CSRGraph.from_edges([0, 1, 1, 2, 3, 0], [1, 0, 0, 2, 2, 2], 5)  # repeated; isolated nodes
SPECIES = jnp.array([0, 1, 1, 2, 0])


def _features(irreps, rows, seed=0):
    return random_array((rows, Irreps.parse(irreps).dim), "float32", seed=seed)


def _conv(rngs, **options):
    sizes = {"num_basis": 4, "radial_features": [6]} | options
    return nn.EquivariantConv("3x0e+2x1o", "0e+1o+2e", "4x0e+2x1o+1x1e+2x2e", rngs=rngs, **sizes)


def _edge_inputs(vectors):
    """Harmonics and a basis of the vectors of the edges."""
    distances = jnp.linalg.norm(vectors, axis=1)
    return spherical_harmonics("0e+1o+2e", vectors), nn.BesselBasis(4, 5.0)(distances)


# -- EquivariantLinear ---------------------------------------------------------------------------


def test_the_linear_map_is_that_of_e3nn():
    layer = nn.EquivariantLinear(IN, OUT, rngs=nnx.Rngs(0))
    x = _features(IN, 4)
    theirs = e3nn.FunctionalLinear(e3nn.Irreps(IN), e3nn.Irreps(OUT))
    start_in, start_out = _starts(layer.irreps_in), _starts(layer.irreps_out)
    weights = []
    for path in theirs.instructions:
        kernel = layer.kernels[layer.irreps.index(layer.irreps_in[path.i_in].irrep)][...]
        first, column = start_in[path.i_in], start_out[path.i_out]
        rows, columns = path.path_shape
        weights.append(kernel[first : first + rows, column : column + columns])
    expected = jax.vmap(lambda row: theirs(weights, e3nn.IrrepsArray(IN, row)).array)(x)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-5, atol=1e-5)


def _starts(irreps):
    """The first channel of each entry among all channels of its irrep."""
    seen, starts = {}, []
    for entry in irreps:
        starts.append(seen.get(entry.irrep, 0))
        seen[entry.irrep] = starts[-1] + entry.multiplicity
    return starts


def test_each_species_has_a_map_of_its_own_and_an_unknown_one_gives_nan():
    layer = nn.EquivariantLinear(IN, OUT, num_species=3, rngs=nnx.Rngs(0))
    x = _features(IN, 5)
    mapped = layer(x, SPECIES)
    for row, species in enumerate(np.asarray(SPECIES)):
        alone = nn.EquivariantLinear(IN, OUT, rngs=nnx.Rngs(1))
        for single, shared in zip(alone.kernels, layer.kernels, strict=True):
            single[...] = shared[...][species]
        np.testing.assert_allclose(mapped[row], alone(x)[row], rtol=1e-5, atol=1e-6)
    unknown = layer(x, SPECIES.at[1].set(3).at[2].set(-1))
    assert np.isnan(unknown[1:3]).all()
    np.testing.assert_array_equal(unknown[3:], mapped[3:])


def test_irreps_that_the_input_lacks_are_zero_where_that_is_asked_for():
    layer = nn.EquivariantLinear("2x0e", "1x1o+3x0e", missing="zeros", rngs=nnx.Rngs(0))
    y = layer(_features("2x0e", 4))
    assert not y[:, :3].any() and y[:, 3:].all()


# -- Gate ----------------------------------------------------------------------------------------


def test_second_moments_are_those_of_a_standard_normal():
    z = np.linspace(-12, 12, 200_001)
    density = np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    with jax.enable_x64(True):
        for name in SECOND_MOMENTS:
            values = np.asarray(normalized(jnp.asarray(z), name))
            moment = np.trapezoid(values**2 * density, z)
            np.testing.assert_allclose(moment, 1, rtol=1e-7, err_msg=str(name))


def test_the_gate_is_that_of_e3nn():
    gate = nn.Gate("3x0e+2x0o+2x1o+1x2e")
    x = _features(str(gate.irreps_in), 4)
    even, odd, gates = (
        lambda z, name=name: normalized(z, name) for name in ("silu", "tanh", "sigmoid")
    )

    def expected(row):
        row = e3nn.IrrepsArray(str(gate.irreps_in), row)
        return e3nn.gate(row, even, odd, gates, odd, normalize_act=False)

    np.testing.assert_allclose(gate(x), jax.vmap(expected)(x).array, rtol=1e-5, atol=1e-6)


def test_the_gate_keeps_the_order_of_the_entries_and_may_have_no_scalars_or_no_gates():
    sorted_gate, gate = nn.Gate("2x0e+2x1o"), nn.Gate("2x1o+2x0e")
    x = _features("4x0e+2x1o", 3)
    y = sorted_gate(x)
    np.testing.assert_array_equal(gate(x), jnp.concatenate([y[:, 2:], y[:, :2]], axis=1))
    assert str(nn.Gate("2x0o+1x0e").irreps_in) == "2x0o+1x0e"
    assert str(nn.Gate("2x1o").irreps_in) == "2x0e+2x1o"
    assert nn.Gate("1x1o")(jnp.ones((0, 4))).shape == (0, 3)


# -- EquivariantRMSNorm --------------------------------------------------------------------------


@pytest.mark.parametrize("shares", [None, (2.0, 0.5, 3.0, 1e-3)])
def test_the_norm_divides_by_the_root_of_the_means_of_each_irrep(shares):
    layer = nn.EquivariantRMSNorm(IN, shares=shares, epsilon=0.1)
    layer.scale[...] = random_array(layer.scale.shape, "float32", seed=1)
    x = np.asarray(_features(IN, 4), np.float64)
    e, o, v, t = x[:, [0, 1, 2, 9, 10]], x[:, 11:12], x[:, 3:9], x[:, 12:]
    means = np.stack([np.mean(part**2, axis=1) for part in (e, v, o, t)])
    mean = np.array(shares or [0.25] * 4) @ means
    of_components = np.repeat(layer.scale[...], [1] * 3 + [3] * 2 + [1] * 3 + [5] * 2)
    expected = x * of_components / np.sqrt(mean + 0.1)[:, None]
    np.testing.assert_allclose(layer(x.astype(np.float32)), expected, rtol=1e-5, atol=1e-6)


def test_the_norm_of_zeros_is_zero_and_has_finite_gradients():
    layer = nn.EquivariantRMSNorm("2x0e+1x1o")
    value, gradient = jax.value_and_grad(lambda x: jnp.sum(layer(x)))(jnp.zeros((2, 5)))
    assert value == 0 and np.isfinite(gradient).all()
    assert layer(jnp.zeros((0, 5))).shape == (0, 5)
    assert layer(jnp.ones((3, 2, 5), jnp.bfloat16)).dtype == jnp.bfloat16


# -- EquivariantConv -----------------------------------------------------------------------------


def test_the_convolution_is_that_of_plain_code_with_e3nn():
    layer = _conv(nnx.Rngs(0), num_neighbours=3.0)
    x, vectors = _features("3x0e+2x1o", 5), random_array((6, 3), "float32", seed=1)
    harmonics, basis = _edge_inputs(vectors)
    (hidden,) = layer.radial
    weights = jax.nn.silu(basis @ hidden.kernel[...]) @ layer.radial_kernel[...]

    def message(x, harmonics, weights):
        x = e3nn.IrrepsArray("3x0e+2x1o", x)
        harmonics = e3nn.IrrepsArray("0e+1o+2e", harmonics)
        product = e3nn.tensor_product(x, harmonics, filter_ir_out=["0e", "1o", "1e", "2e"])
        return (product * e3nn.IrrepsArray(f"{product.irreps.num_irreps}x0e", weights)).array

    messages = jax.vmap(message)(x[GRAPH.indices], harmonics, weights)
    sums = jax.ops.segment_sum(messages, GRAPH.receivers(), 5) / np.sqrt(3)
    actual = layer(GRAPH, x, harmonics, basis)
    np.testing.assert_allclose(actual, layer.linear(sums), rtol=1e-5, atol=1e-5)
    assert actual[:3].any(axis=1).all() and not actual[3:].any()  # no edges


def test_an_edge_whose_basis_is_zero_is_ignored_and_leading_axes_share_the_graph():
    layer = _conv(nnx.Rngs(0))
    x, vectors = _features("3x0e+2x1o", 5), random_array((6, 3), "float32", seed=1)
    harmonics, basis = _edge_inputs(vectors)
    without = CSRGraph(GRAPH.indptr.at[1:].add(-1), GRAPH.indices[1:], None, 5)
    actual = layer(GRAPH, x, harmonics, basis.at[0].set(0))
    expected = layer(without, x, harmonics[1:], basis[1:])
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    both = layer(GRAPH, jnp.stack([x, 2 * x]), harmonics, basis)
    np.testing.assert_allclose(both[1], layer(GRAPH, 2 * x, harmonics, basis), rtol=1e-5, atol=1e-6)


def test_padding_edges_may_contain_nan_and_no_gradient_meets_it():
    mask = [True, True, False]
    graph = CSRGraph.from_edges([0, 1, 0], [1, 0, 0], 2, edge_mask=mask)
    layer = _conv(nnx.Rngs(0))
    x = _features("3x0e+2x1o", 2)
    arrays = _edge_inputs(random_array((3, 3), "float32", seed=1))

    @jax.jit
    @jax.value_and_grad
    def loss(layer, harmonics, basis):
        return jnp.sum(layer(graph, x, harmonics, basis) ** 2)

    expected, _ = loss(layer, *arrays)
    value, gradient = loss(layer, *(array.at[2].set(jnp.nan) for array in arrays))
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_dtypes_of_options_and_of_the_input_are_kept():
    x, (harmonics, basis) = _features("3x0e+2x1o", 5), _edge_inputs(jnp.ones((6, 3)))
    half = _conv(nnx.Rngs(0), dtype=jnp.bfloat16)
    exact = _conv(nnx.Rngs(0))(GRAPH, x, harmonics, basis)
    rounded = half(GRAPH, x, harmonics, basis)
    assert rounded.dtype == jnp.bfloat16 and half.radial_kernel.dtype == jnp.float32
    np.testing.assert_allclose(rounded.astype(jnp.float32), exact, atol=0.1)
    features = jnp.ones((2, 9), jnp.bfloat16)
    assert nn.Gate("1x0e+2x1o")(features).dtype == jnp.bfloat16
    linear = nn.EquivariantLinear("3x0e+2x1o", "2x1o", dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    assert linear(features).dtype == jnp.bfloat16 and linear.kernels[0].dtype == jnp.float32


# -- SymmetricContraction ------------------------------------------------------------------------


def _contracted(layer, x, species):
    """The sum over all products, factor by factor, in float64."""
    components = sum(entry.irrep.dim for entry in layer.irreps_in)
    one = "+".join(str(entry.irrep) for entry in layer.irreps_in)
    x = np.asarray(x, np.float64)
    parts = [
        x[:, columns].reshape(len(x), layer.channels, -1) for columns in layer.irreps_in.slices
    ]
    factor = np.concatenate(parts, axis=-1)
    assert factor.shape[-1] == components
    kernels, parts_out = iter(layer.kernels), []
    for entry in layer.irreps_out:
        tables = [symmetric_couplings(one, n + 1, entry.irrep) for n in range(layer.correlation)]
        total = np.zeros((len(x), layer.channels, entry.irrep.dim))
        for order, table in enumerate(tables, start=1):
            if not len(table):
                continue
            weights = np.asarray(next(kernels)[...], np.float64)[species]
            letters = "ijk"[:order]
            factors = ",".join(f"nc{letter}" for letter in letters)
            formula = f"npc,p{letters}m,{factors}->ncm"
            total += np.einsum(formula, weights, table, *[factor] * order, optimize=True)
        parts_out.append((total / np.sqrt(sum(map(len, tables)))).reshape(len(x), -1))
    return np.concatenate(parts_out, axis=1)


@pytest.mark.parametrize("correlation", [1, 2, 3])
def test_the_contraction_is_the_sum_over_all_symmetric_products(correlation):
    irreps = "4x0e+4x1o+4x2e"
    layer = nn.SymmetricContraction(
        irreps, "4x0e+4x1o", correlation=correlation, num_species=3, rngs=nnx.Rngs(0)
    )
    x = _features(irreps, 5)
    expected = _contracted(layer, x, np.asarray(SPECIES))
    assert_close(layer(x, SPECIES), expected, reduction_length=9**correlation)
    assert np.isnan(layer(x, SPECIES.at[2].set(3))[2]).all()


def test_gradients_of_the_contraction_agree_with_finite_differences():
    layer = nn.SymmetricContraction("2x0e+2x1o", "2x1o", num_species=2, rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(layer)

    def call(x, state):
        return nnx.merge(graphdef, state)(x, jnp.array([0, 1]))

    check_numerical_gradients(call, _features("2x0e+2x1o", 2), state)


def test_the_contraction_without_species_has_one_set_of_weights_and_keeps_leading_axes():
    layer = nn.SymmetricContraction("1x1o", "1x0e", correlation=2, rngs=nnx.Rngs(0))
    x = random_array((2, 3, 3), "float32", seed=0)
    factor = layer(jnp.array([1.0, 0.0, 0.0]))[0]
    np.testing.assert_allclose(layer(x)[..., 0], factor * jnp.sum(x**2, axis=-1), rtol=1e-5)
    assert layer(jnp.zeros((0, 3))).shape == (0, 1)


# -- All -----------------------------------------------------------------------------------------

LAYERS = {
    "linear": lambda **options: nn.EquivariantLinear(IN, OUT, num_species=3, **options),
    "gate": lambda **_: nn.Gate("2x0e+2x0o+2x1o+1x1e+1x2e"),
    "norm": lambda rngs, **options: nn.EquivariantRMSNorm(IN, **options),
    "contraction": lambda **options: nn.SymmetricContraction(
        "2x0e+2x1o+2x2e", "2x0e+2x1o+2x1e+2x2e", num_species=3, **options
    ),
}


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_nodes_are_equivariant(name, turn):
    with jax.enable_x64(True):
        layer = LAYERS[name](param_dtype="float64", rngs=nnx.Rngs(0))
        x = np.asarray(_features(str(layer.irreps_in), 5), np.float64)
        of_in, of_out = (
            representation(irreps, TURNS[turn])
            for irreps in (layer.irreps_in, getattr(layer, "irreps_out", layer.irreps_in))
        )
        arguments = () if name in ("gate", "norm") else (np.asarray(SPECIES),)
        call = jax.jit(lambda x: layer(x, *arguments))
        actual, expected = call(x @ of_in.T), call(x) @ of_out.T
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("turn", TURNS)
def test_the_convolution_is_equivariant(turn):
    turn = TURNS[turn]
    vectors = np.random.default_rng(1).normal(size=(6, 3))
    with jax.enable_x64(True):
        layer = _conv(nnx.Rngs(0), param_dtype="float64")
        x = np.asarray(_features("3x0e+2x1o", 5), np.float64)
        of_in, of_out = (representation(i, turn) for i in (layer.irreps_in, layer.irreps_out))
        call = jax.jit(lambda x, vectors: layer(GRAPH, x, *_edge_inputs(vectors)))
        actual, expected = call(x @ of_in.T, vectors @ turn.T), call(x, vectors) @ of_out.T
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: nn.EquivariantLinear("2x0e", "2x0e+1x1o", rngs=nnx.Rngs(0)),
            "EquivariantLinear: irreps_out must be of irreps of the input, 2x0e, got",
        ),
        (
            lambda: nn.EquivariantLinear("2x0e", "1x1o", missing="zeros", rngs=nnx.Rngs(0)),
            "EquivariantLinear: irreps_out must be of irreps of the input, 2x0e, got",
        ),
        (
            lambda: nn.EquivariantConv("2x0e", "0e", "1x1o", num_basis=2, rngs=nnx.Rngs(0)),
            "EquivariantConv: irreps_out must be of irreps of the product of 2x0e and 1x0e, got",
        ),
        (
            lambda: nn.SymmetricContraction("2x0e+3x1o", "2x0e", rngs=nnx.Rngs(0)),
            "SymmetricContraction: irreps_in must be of 2 channels in each entry",
        ),
        (
            lambda: nn.SymmetricContraction("2x1o", "2x1e", rngs=nnx.Rngs(0)),
            "SymmetricContraction: irreps_out must be of irreps of symmetric products of 2x1o, got",
        ),
        (
            lambda: nn.Gate("2x0e")(jnp.ones((2, 3))),
            "Gate: x must be of shape [..., 2], for irreps_in 2x0e, got shape (2, 3)",
        ),
        (
            lambda: nn.Gate("2x0e")(jnp.ones((2, 2), int)),
            "Gate: x must be of a floating dtype, got int",
        ),
        (
            lambda: LAYERS["linear"](rngs=nnx.Rngs(0))(_features(IN, 5)),
            "EquivariantLinear: species must be integers of shape [5], a species for each row",
        ),
        (
            lambda: LAYERS["linear"](rngs=nnx.Rngs(0))(_features(IN, 5), jnp.ones(5)),
            "EquivariantLinear: species must be integers of shape [5], a species for each row",
        ),
        (
            lambda: nn.EquivariantLinear("1x0e", "1x0e", rngs=nnx.Rngs(0))(
                jnp.ones((2, 1)), SPECIES
            ),
            "EquivariantLinear: species must be None for a layer without num_species",
        ),
        (
            lambda: _conv(nnx.Rngs(0))(
                GRAPH, _features("3x0e+2x1o", 5), jnp.ones((6, 9)), jnp.ones((6, 3))
            ),
            "EquivariantConv: basis must be floating [6, 4], a row for each edge slot, got float32",
        ),
        (
            lambda: _conv(nnx.Rngs(0))(
                GRAPH, _features("3x0e+2x1o", 5), jnp.ones((5, 9)), jnp.ones((6, 4))
            ),
            "EquivariantConv: harmonics must be floating [6, 9], a row for each edge slot",
        ),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
