"""The kernels of fused linear layers: interpreted against float64, and lowered at real shapes."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from jaxgnn import ops
from jaxgnn.ops._dense.reference import fused_linear as linear_reference
from jaxgnn.ops._dense.reference import fused_mlp as mlp_reference
from jaxgnn.ops.core import dispatch
from jaxgnn.testing import assert_close, random_array, to_float64
from pallas_kernels.dense import activations as dense_activations
from pallas_kernels.dense import backward as dense_backward
from pallas_kernels.dense import forward as dense_forward
from pallas_kernels.dense import fused_linear, fused_mlp
from pallas_kernels.dense.forward import DenseTile
from pallas_kernels.dense.plan import BackwardTile
from pallas_kernels.dense.stack import Stack
from tests.ops.dense._linear import VALUES, features, layers
from tests.pallas_kernels._chips import H100
from tests.pallas_kernels.dense._dense import interpreted, kernels_of, structs, with_gradients

DTYPES = ("bfloat16", "float16")
PALLAS = {"implementation": "pallas"}
# Two blocks, whose warpgroups have several tiles and reuse their slots; and warpgroups that take
# turns at slots that are no multiple of them.
FORWARD = (
    DenseTile(blocks=2, warpgroups=1, slots=2),
    DenseTile(blocks=1, warpgroups=2, slots=3),
)
ALONE = BackwardTile(blocks=2, parts=1, teams=1, members=1, slots=2, read_once_slots=2)
TEAMS = BackwardTile(blocks=2, parts=1, teams=2, members=1, slots=1, read_once_slots=1)
MEMBERS = BackwardTile(blocks=2, parts=1, teams=1, members=2, slots=2, read_once_slots=1)
PARTS = BackwardTile(blocks=1, parts=2, teams=1, members=2, slots=2, read_once_slots=1)
# (rows, widths, activation, dtype, tile): a lone row, rows behind the last of a tile and of eight;
# a part that has no chunk for one of its walkers, and biases that parts can not share.
LINEAR = [
    (1, (64, 64), "silu", "bfloat16", ALONE),
    (203, (128, 128), "relu", "bfloat16", PARTS),
    (203, (128, 64), None, "float16", PARTS),
    (203, (64, 128), "squared_relu", "bfloat16", TEAMS),
]
# The last has two summers.
MLP = [
    (1, (64, 64, 64), "relu", "bfloat16", ALONE),
    (203, (64, 128, 64), "gelu", "bfloat16", TEAMS),
    (72, (128, 128, 64), "squared_relu", "float16", MEMBERS),
]


def _inputs(rows, widths, dtype):
    """Input, kernels, biases (the second layer without one), and a gradient to the output."""
    kernels, biases = layers(widths, dtype)
    return (
        features((rows, widths[0]), dtype),
        kernels,
        biases,
        random_array((rows, widths[-1]), dtype, seed=9),
    )


@functools.cache  # one function for each, so that JAX compiles it once
def _compiled(function, options):
    return jax.jit(functools.partial(function, **dict(options)))


def _exactly(function, *arguments, **options):
    """In float64; None stays None."""
    with jax.enable_x64(True):
        return _compiled(function, tuple(options.items()))(*to_float64(arguments))


def _assert_all_close(actual, expected, dtype, length):
    actual, expected = jax.tree.leaves(actual), jax.tree.leaves(expected)
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert a.dtype == dtype
        assert_close(a, e, reduction_length=length, operands=dtype, err_msg=f"result {i}")


@pytest.mark.costly
@pytest.mark.parametrize("rows, widths, activation, dtype, tile", LINEAR)
def test_linear_and_its_gradients(rows, widths, activation, dtype, tile):
    x, (kernel,), (bias,), dy = _inputs(rows, widths, dtype)
    options = {"activation": activation, "precision": None}
    exact = _exactly(linear_reference.fused_linear, x, kernel, bias, **options)
    known = exact.astype(dtype) if linear_reference.saves_output(activation) else None
    with interpreted():
        y = fused_linear.fused_linear(x, kernel, bias, activation, FORWARD[rows % 2])
        made = fused_linear.fused_linear_backward(x, kernel, bias, known, dy, activation, tile)
    _assert_all_close(y, exact, dtype, widths[0])
    given = (x, kernel, bias, known, dy)
    exact = _exactly(linear_reference.fused_linear_backward, *given, **options)
    _assert_all_close(made, exact, dtype, max(rows, *widths))


@pytest.mark.again("test_linear_and_its_gradients")
@pytest.mark.costly
@pytest.mark.parametrize("rows, widths, activation, dtype, tile", MLP)
def test_mlp_and_its_gradients(rows, widths, activation, dtype, tile):
    x, kernels, biases, dy = _inputs(rows, widths, dtype)
    activations, layers = (activation, None), (kernels, biases)
    with interpreted():
        y = dense_forward.forward(x, *layers, activations, FORWARD[0])
        made = dense_backward.backward(x, *layers, None, dy, activations, tile)
    options = {"activation": activation, "precision": None}
    exact = _exactly(mlp_reference.fused_mlp, x, *layers, **options)
    _assert_all_close(y, exact, dtype, max(widths))
    exact = _exactly(mlp_reference.fused_mlp_backward, x, *layers, dy, **options)
    _assert_all_close(made, exact, dtype, max(rows, *widths))


# The interpreter multiplies in NumPy, which warns of what this test is about.
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_what_is_not_finite_stays_with_its_row():
    x, kernels, biases, dy = _inputs(72, (64, 64, 64), "bfloat16")
    bad, finite = x.at[5, 3].set(jnp.nan).at[71].set(jnp.inf), np.delete(np.arange(72), [5, 71])

    def run(x):
        with interpreted():
            y = dense_forward.forward(x, kernels, biases, ("gelu", None), FORWARD[0])
            dx, *_ = dense_backward.backward(x, kernels, biases, None, dy, ("gelu", None), MEMBERS)
        return np.asarray(y, np.float32), np.asarray(dx, np.float32)

    for right, made in zip(run(x), run(bad), strict=True):
        np.testing.assert_array_equal(made[finite], right[finite])
        assert np.isnan(made[5]).all()


@pytest.mark.again("test_linear_and_its_gradients")
@pytest.mark.costly(1)
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_layers_that_do_not_fit_together_are_several_kernels(activation):
    widths = (256, 256, 64)
    x, kernels, biases, dy = _inputs(9, widths, "bfloat16")
    with interpreted():
        y = fused_mlp.fused_mlp(x, kernels, biases, activation)
        made = fused_mlp.fused_mlp_backward(x, kernels, biases, dy, activation)
    options = {"activation": activation, "precision": None}
    exact = _exactly(mlp_reference.fused_mlp, x, kernels, biases, **options)
    _assert_all_close(y, exact, "bfloat16", 256)
    exact = _exactly(mlp_reference.fused_mlp_backward, x, kernels, biases, dy, **options)
    _assert_all_close(made, exact, "bfloat16", 256)


def _stack(widths, activation="gelu"):
    layers = len(widths) - 1
    return Stack(widths, (True,) * layers, (activation,) * layers, jnp.dtype("bfloat16"))


@pytest.mark.parametrize("widths", [*itertools.product((64, 128, 192, 256), repeat=2)])
def test_all_widths_have_tiles(widths):
    for activation in VALUES:
        stack = _stack(widths, activation)
        assert DenseTile.choose(H100, stack) and BackwardTile.choose(
            H100, stack.without_last_activation()
        )
        if BackwardTile.choose(H100, stack) is None:
            assert not stack.last_activation.of_output and DenseTile.choose_pull_back(H100, stack)


def test_walkers_always_read_ahead():
    """The place of the only tile would be filled by who waits for it."""
    sizes = (64, 128, 192, 256)
    shapes = [*itertools.product(sizes, repeat=2), *itertools.product(sizes, repeat=3)]
    stacks = (
        _stack(widths, name).without_last_activation() for widths in shapes for name in VALUES
    )
    tiles = [tile for stack in stacks if (tile := BackwardTile.choose(H100, stack))]
    assert tiles and min(tile.slots for tile in tiles) > 1


def test_groups_of_layers():
    """Two layers in a backward kernel, if what is behind them can be told from the result."""
    deep = (128,) * 5
    assert fused_mlp.forward_groups(_stack(deep)) == [(0, 4)]
    assert fused_mlp.backward_groups(_stack(deep)) == [(0, 1), (1, 2), (2, 4)]
    assert fused_mlp.backward_groups(_stack(deep, "relu")) == [(0, 2), (2, 4)]
    wide = _stack((256, 256, 256, 64), "relu")
    assert fused_mlp.backward_groups(wide) == [(0, 1), (1, 2), (2, 3)]


def test_three_layers_forward():
    x, kernels, biases, _ = _inputs(9, (64, 128, 64, 64), "bfloat16")
    with interpreted():
        y = dense_forward.forward(x, kernels, biases, ("silu", "silu", None), FORWARD[1])
    options = {"activation": "silu", "precision": None}
    exact = _exactly(mlp_reference.fused_mlp, x, kernels, biases, **options)
    _assert_all_close(y, exact, "bfloat16", 128)


@pytest.mark.parametrize("name", [name for name in VALUES if name])
def test_activations_are_those_of_the_reference(name):
    """Values and derivatives in float32, also far out."""
    reference = linear_reference.ACTIVATIONS[name]
    mine = dense_activations.ACTIVATIONS[name]
    assert mine.of_output == reference.of_output
    z = np.concatenate([np.linspace(-30, 30, 6001), [-1e5, -100, -0.0, 100, 1e5]])
    with jax.enable_x64(True):
        value = reference.value(jnp.asarray(z))
        slope = reference.derivative(value if mine.of_output else jnp.asarray(z))
    z, y = (jnp.asarray(a, jnp.float32) for a in (z, value))
    known = y if mine.of_output else mine.value_and_slope(z)[1]
    np.testing.assert_allclose(mine.value(z), value, rtol=2e-6, atol=1e-6)
    made = mine.pull_back(known, jnp.ones_like(z))
    np.testing.assert_allclose(made, slope, rtol=2e-6, atol=3e-6)


def test_a_unit_that_is_off_passes_nothing_on():
    known, dy = jnp.array([0.0, 1.0, 0.25]), jnp.array([jnp.inf, 3.0, -2.0])
    named = dense_activations.ACTIVATIONS.items()
    made = [a.pull_back(known, dy).tolist() for name, a in named if name != "tanh"]
    off = [0.0, 0.0, -0.375]  # a sigmoid is off at both ends
    assert sorted(made) == [off, [0.0, 3.0, -2.0], *[[0.0, 3.0, -0.5]] * 4, [0.0, 6.0, -2.0]]
    tanh = dense_activations.ACTIVATIONS["tanh"].pull_back(jnp.array([1.0, -1.0]), dy[:1])
    assert tanh.tolist() == [0.0, 0.0]


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(dispatch, "current_platform", lambda: "cuda")


def _mlp_structs(batch, widths, dtype="bfloat16"):
    return jax.ShapeDtypeStruct((*batch, widths[0]), dtype), *structs(layers(widths, dtype))


@pytest.mark.lowers
@pytest.mark.costly
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("activation", VALUES)
def test_layers_lower_with_their_gradients(activation):
    mlp = functools.partial(ops.fused_mlp, activation=activation, **PALLAS)
    inputs = _mlp_structs((1_000_000,), (128, 128, 128))
    assert len(kernels_of(*with_gradients(mlp, *inputs))) == 2
    linear = functools.partial(ops.fused_linear, activation=activation, **PALLAS)
    x, (kernel,), (bias,) = _mlp_structs((1_000_000,), (64, 64), "float16")
    assert len(kernels_of(*with_gradients(linear, x, kernel, bias))) == 2


@pytest.mark.usefixtures("as_on_a_gpu")
def test_any_number_of_rows_goes_to_the_kernels_as_it_is():
    rows, width = 232_965, 128
    mlp = functools.partial(ops.fused_mlp, activation="gelu", **PALLAS)
    function, *inputs = with_gradients(mlp, *_mlp_structs((rows,), (width,) * 3))
    lowered = jax.jit(function).trace(*inputs).lower(lowering_platforms=("cuda",))
    touching = [line for line in lowered.as_text().splitlines() if f"tensor<{rows}x" in line]
    known = ("func.func", "mosaic_gpu_v2", "return ")
    assert not [line for line in touching if not any(word in line for word in known)]


# Kernels of the forward pass, and with gradients. Where two layers do not fit, what the second
# reads is recomputed by one more; and in front of blocks that share columns, gelu has a kernel of
# its own.
WIDE_AND_DEEP = {
    ((256, 256), "relu"): (1, 2),
    ((64, 256), "gelu"): (1, 2),
    ((256, 64, 128), "relu"): (1, 2),
    ((64, 128, 128, 64), "gelu"): (1, 4),
    ((256, 256, 256), "relu"): (1, 4),
    ((256, 256, 256), "gelu"): (1, 5),
}


@pytest.mark.again("test_layers_lower_with_their_gradients")
@pytest.mark.lowers
@pytest.mark.costly
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("widths, activation", WIDE_AND_DEEP)
def test_wide_and_deep_layers_lower(widths, activation):
    mlp = functools.partial(ops.fused_mlp, activation=activation, **PALLAS)
    inputs = _mlp_structs((232_965,), widths)
    both = with_gradients(mlp, *inputs)
    assert (len(kernels_of(mlp, *inputs)), len(kernels_of(*both))) == WIDE_AND_DEEP[
        widths, activation
    ]


@pytest.mark.again("test_layers_lower_with_their_gradients")
@pytest.mark.lowers
@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_wide_layer_whose_slope_is_recomputed_lowers():
    linear = functools.partial(ops.fused_linear, activation="mish", **PALLAS)
    x, (kernel,), (bias,) = _mlp_structs((232_965,), (256, 256))
    assert len(kernels_of(*with_gradients(linear, x, kernel, bias))) == 3


@pytest.mark.again("test_layers_lower_with_their_gradients")
@pytest.mark.lowers
@pytest.mark.usefixtures("as_on_a_gpu")
def test_batches_lower_under_vmap_and_shard_map_and_no_row_launches_nothing():
    def loss(*inputs):
        y = ops.fused_mlp(*inputs, activation="relu", **PALLAS)
        return jnp.sum(y.astype(jnp.float32) ** 2)

    gradient = jax.grad(jax.checkpoint(loss), argnums=(0, 1, 2))
    x, *parameters = _mlp_structs((4, 3, 50), (64, 64, 64))
    assert kernels_of(jax.vmap(gradient, (0, None, None)), x, *parameters)
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    specs = PartitionSpec("data"), PartitionSpec(), PartitionSpec()
    sharded = jax.shard_map(gradient, mesh=mesh, in_specs=specs, out_specs=specs)
    assert kernels_of(sharded, x, *parameters)
    assert not kernels_of(gradient, *_mlp_structs((3, 0), (64, 64, 64)))


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(
    "batch, dtype, taken", [((2, 1024), "bfloat16", 2), ((2047,), "bfloat16", 0)]
)
def test_none_takes_kernels_where_there_are_many_rows(batch, dtype, taken):
    x, kernels, biases = _mlp_structs(batch, (64, 64, 64), dtype)
    mlp = functools.partial(ops.fused_mlp, activation="relu")
    assert len(kernels_of(*with_gradients(mlp, x, kernels, biases))) == taken
    linear = ops.fused_linear
    assert len(kernels_of(*with_gradients(linear, x, kernels[0], biases[0]))) == taken


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("widths, dtype", [((64, 96), "bfloat16"), ((64, 64), "float32")])
def test_none_leaves_to_xla_what_the_kernels_do_not_take(widths, dtype):
    x, (kernel,), (bias,) = _mlp_structs((10_000,), widths, dtype)
    assert not kernels_of(ops.fused_linear, x, kernel, bias)


REFUSED = {
    "multiples of 64 up to 256, got 96": ((64, 96, 64), "bfloat16"),
    "multiples of 64 up to 256, got 320": ((64, 320), "float16"),
}


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("message", REFUSED)
def test_what_the_kernels_do_not_take_is_named(message):
    widths, dtype = REFUSED[message]
    mlp = functools.partial(ops.fused_mlp, activation="relu", **PALLAS)
    with pytest.raises(NotImplementedError, match=message):
        jax.eval_shape(mlp, *_mlp_structs((100,), widths, dtype))


@pytest.mark.parametrize(
    "widths", [(64, 64), (128, 128), (256, 256), (64, 64, 64), (128, 128, 128)]
)
def test_tiles_read_ahead_within_shared_memory(widths):
    stack = _stack(widths)
    tile = DenseTile.choose(H100, stack)
    assert tile.slots > tile.warpgroups
    held = tile.slots * 64 * max(widths) * 2
    assert held + stack.parameter_bytes() <= H100.shared_bytes
    assert tile.limited_to(65).blocks == 2


# Widths, precision of float32, and blocks that share a multiprocessor.
IN_WAVES = [((64, 64), None, 3), ((128, 128), None, 3), ((64, 64, 64), None, 3)]
IN_WAVES += [((128, 128, 128), None, 1), ((64, 64, 64), "tf32", 3)]


@pytest.mark.parametrize("widths, precision, resident", IN_WAVES)
def test_blocks_of_narrow_layers_come_in_waves_that_fit_a_multiprocessor(
    widths, precision, resident
):
    stack = dataclasses.replace(_stack(widths, "relu"), precision=precision)
    stack = stack if stack.layers == 1 else stack.without_last_activation()
    if precision:
        stack = dataclasses.replace(stack, dtype=jnp.dtype("float32"))
    rows, itemsize = 1_000_000, stack.dtype.itemsize
    tile = DenseTile.choose(H100, stack, rows)
    assert tile.blocks % (resident * H100.multiprocessors) == 0 and tile.slots > tile.warpgroups
    assert tile.blocks >= 4 * resident * H100.multiprocessors
    held = tile.slots * 64 * max(widths) * itemsize + 8 * (tile.barriers + 1)
    # Each block has a KiB of the system's.
    assert resident * (held + stack.parameter_bytes() + 1024) <= 228 * 1024
    # None has less than two tiles, and what a cache may hold has a block for each multiprocessor.
    few = 2**26 // (widths[0] * itemsize)
    assert DenseTile.choose(H100, stack, few).blocks * 2 * 64 <= few
    assert DenseTile.choose(H100, stack, few - 1).blocks == H100.multiprocessors
    # As with another activation.
    for name in ("gelu", None):
        other = dataclasses.replace(stack, activations=(name, *stack.activations[1:]))
        assert DenseTile.choose(H100, other, rows).blocks == H100.multiprocessors
