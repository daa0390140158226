"""The kernels of fused linear layers: interpreted against float64, and lowered at real shapes."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.sharding import AxisType, PartitionSpec

from jaxgnn import ops
from jaxgnn.ops import _dispatch as dispatch
from jaxgnn.ops.reference import fused_linear as linear_reference
from jaxgnn.ops.reference import fused_mlp as mlp_reference
from jaxgnn.testing import assert_close, random_array, to_float64
from pallas_kernels import _dense_activations, _dense_stack, fused_linear, fused_mlp
from pallas_kernels._dense_backward import BackwardTile
from pallas_kernels._dense_stack import SHARED_BYTES, DenseTile, Stack
from tests.ops._linear import VALUES, features, layers

DTYPES = ("bfloat16", "float16")
PALLAS = {"implementation": "pallas"}
# Two blocks, whose warpgroups have several tiles and reuse their slots.
FORWARD = DenseTile(blocks=2, warpgroups=1, slots=2)
# (rows, widths, activation, dtype): a lone row, rows behind the last of a tile and of eight.
LINEAR = [
    (1, (64, 64), "silu", "bfloat16"),
    (203, (64, 128), "relu", "bfloat16"),
    (203, (64, 64), None, "float16"),
    (64, (64, 64), "squared_relu", "bfloat16"),
]
MLP = [
    (1, (64, 64, 64), "relu", "bfloat16"),
    (203, (64, 128, 64), "gelu", "bfloat16"),
    (72, (128, 64, 64), "squared_relu", "float16"),
]


@contextlib.contextmanager
def _interpreted():
    """Memory there has no layout, and what lies in one place would be two arrays."""
    with pytest.MonkeyPatch.context() as patch, plgpu.force_gpu_interpret_mode():
        patch.setattr(_dense_stack, "copied_tiles", _dense_stack.tiles)
        patch.setattr(_dense_stack, "faces", lambda tiles: (tiles, tiles))
        yield


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


@pytest.mark.parametrize("rows, widths, activation, dtype", LINEAR)
def test_linear_and_its_gradients(rows, widths, activation, dtype):
    x, (kernel,), (bias,), dy = _inputs(rows, widths, dtype)
    options = {"activation": activation, "precision": None}
    exact = _exactly(linear_reference.fused_linear, x, kernel, bias, **options)
    known = exact.astype(dtype) if linear_reference.saves_output(activation) else None
    backward = BackwardTile(blocks=2, walkers=1, slots=2, summers=((0,),))
    with _interpreted():
        y = fused_linear.fused_linear(x, kernel, bias, activation, FORWARD)
        made = fused_linear.fused_linear_backward(x, kernel, bias, known, dy, activation, backward)
    _assert_all_close(y, exact, dtype, widths[0])
    given = (x, kernel, bias, known, dy)
    exact = _exactly(linear_reference.fused_linear_backward, *given, **options)
    _assert_all_close(made, exact, dtype, max(rows, *widths))


@pytest.mark.parametrize("rows, widths, activation, dtype", MLP)
def test_mlp_and_its_gradients(rows, widths, activation, dtype):
    x, kernels, biases, dy = _inputs(rows, widths, dtype)
    options = {"activation": activation, "precision": None}
    # Walkers that take turns beside one summer, and one beside two.
    summers = ((0, 1),) if rows > 100 else ((0,), (1,))
    backward = BackwardTile(blocks=2, walkers=3 - len(summers), slots=1, summers=summers)
    with _interpreted():
        y = fused_mlp.fused_mlp(x, kernels, biases, activation, FORWARD)
        made = fused_mlp.fused_mlp_backward(x, kernels, biases, dy, activation, backward)
    exact = _exactly(mlp_reference.fused_mlp, x, kernels, biases, **options)
    _assert_all_close(y, exact, dtype, max(widths))
    exact = _exactly(mlp_reference.fused_mlp_backward, x, kernels, biases, dy, **options)
    _assert_all_close(made, exact, dtype, max(rows, *widths))


def test_three_layers_forward():
    x, kernels, biases, _ = _inputs(9, (64, 128, 64, 64), "bfloat16")
    with _interpreted():
        y = fused_mlp.fused_mlp(x, kernels, biases, "silu", FORWARD)
    options = {"activation": "silu", "precision": None}
    exact = _exactly(mlp_reference.fused_mlp, x, kernels, biases, **options)
    _assert_all_close(y, exact, "bfloat16", 128)


@pytest.mark.parametrize("name", [name for name in VALUES if name])
def test_activations_are_those_of_the_reference(name):
    """Values and derivatives in float32, also far out."""
    reference = linear_reference.ACTIVATIONS[name]
    mine = _dense_activations.ACTIVATIONS[name]
    assert mine.of_output == reference.of_output
    z = np.concatenate([np.linspace(-30, 30, 6001), [-1e5, -100, -0.0, 100, 1e5]])
    with jax.enable_x64(True):
        value = reference.value(jnp.asarray(z))
        known = value if mine.of_output else jnp.asarray(z)
        slope = reference.derivative(known)
    z, known = (jnp.asarray(a, jnp.float32) for a in (z, known))
    np.testing.assert_allclose(mine.value(z), value, rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(mine.derivative(known), slope, rtol=2e-6, atol=3e-6)


def test_a_unit_that_is_off_passes_nothing_on():
    slope, dy = jnp.array([0.0, 1.0, 0.5]), jnp.array([jnp.inf, 3.0, -2.0])
    assert _dense_activations.pull_back(slope, dy).tolist() == [0.0, 3.0, -1.0]


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(dispatch, "current_platform", lambda: "cuda")


def _kernels(function, *arguments) -> list[str]:
    """The kernels that it lowers to, in order; lowering refuses too much shared memory."""
    lowered = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",))
    return [line for line in lowered.as_text().splitlines() if "mosaic_gpu_v2" in line]


def _structs(tree):
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), tree)


def _mlp_structs(batch, widths, dtype="bfloat16"):
    return jax.ShapeDtypeStruct((*batch, widths[0]), dtype), *_structs(layers(widths, dtype))


def _with_gradients(function, *inputs):
    """The value, and the gradients to all of the inputs."""

    def both(*inputs):
        y, pull_back = jax.vjp(function, *inputs)
        return y, pull_back(y)

    return both, *inputs


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("activation", VALUES)
@pytest.mark.parametrize("width", [64, 128])
def test_layers_lower_with_their_gradients(width, activation):
    mlp = functools.partial(ops.fused_mlp, activation=activation, **PALLAS)
    inputs = _mlp_structs((1_000_000,), (width, width, width))
    assert len(_kernels(*_with_gradients(mlp, *inputs))) == 2
    linear = functools.partial(ops.fused_linear, activation=activation, **PALLAS)
    inputs = _mlp_structs((1_000_000,), (width, width), "float16")
    inputs = [inputs[0], inputs[1][0], inputs[2][0]]
    assert len(_kernels(*_with_gradients(linear, *inputs))) == 2


@pytest.mark.usefixtures("as_on_a_gpu")
def test_any_number_of_rows_goes_to_the_kernels_as_it_is():
    rows, width = 232_965, 128
    mlp = functools.partial(ops.fused_mlp, activation="gelu", **PALLAS)
    function, *inputs = _with_gradients(mlp, *_mlp_structs((rows,), (width,) * 3))
    lowered = jax.jit(function).trace(*inputs).lower(lowering_platforms=("cuda",))
    touching = [line for line in lowered.as_text().splitlines() if f"tensor<{rows}x" in line]
    known = ("func.func", "mosaic_gpu_v2", "return ")
    assert not [line for line in touching if not any(word in line for word in known)]


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("widths", [(256, 256), (64, 256), (256, 64, 128), (64, 128, 128, 64)])
def test_wide_and_deep_layers_lower(widths):
    mlp = functools.partial(ops.fused_mlp, activation="relu", **PALLAS)
    assert len(_kernels(mlp, *_mlp_structs((232_965,), widths))) == 1


@pytest.mark.usefixtures("as_on_a_gpu")
def test_batches_lower_under_vmap_and_shard_map_and_no_row_launches_nothing():
    def loss(*inputs):
        y = ops.fused_mlp(*inputs, activation="relu", **PALLAS)
        return jnp.sum(y.astype(jnp.float32) ** 2)

    gradient = jax.grad(jax.checkpoint(loss), argnums=(0, 1, 2))
    x, *parameters = _mlp_structs((4, 3, 50), (64, 64, 64))
    assert _kernels(jax.vmap(gradient, (0, None, None)), x, *parameters)
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    specs = PartitionSpec("data"), PartitionSpec(), PartitionSpec()
    sharded = jax.shard_map(gradient, mesh=mesh, in_specs=specs, out_specs=specs)
    assert _kernels(sharded, x, *parameters)
    assert not _kernels(gradient, *_mlp_structs((3, 0), (64, 64, 64)))


@pytest.mark.usefixtures("as_on_a_gpu")
def test_none_does_not_take_what_was_not_measured():
    x, kernels, biases = _mlp_structs((100,), (64, 64, 64))
    assert not _kernels(functools.partial(ops.fused_mlp, activation="relu"), x, kernels, biases)
    assert not _kernels(ops.fused_linear, x, kernels[0], biases[0])


REFUSED = {
    "multiples of 64, got 96": ((64, 96, 64), "bfloat16"),
    "bfloat16 or float16 values, got float32": ((64, 64), "float32"),
    "shared memory, up to 256 wide, got widths 256 → 256 → 256": ((256, 256, 256), "bfloat16"),
    "up to 256 wide, got widths 64 → 320": ((64, 320), "float16"),
}
REFUSED_BACKWARD = {
    "16,384 weights each, got widths 256 → 256": ((256, 256), "bfloat16"),
    "one or two layers .* got widths 64 → 64 → 64 → 64": ((64, 64, 64, 64), "bfloat16"),
}


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("message", [*REFUSED, *REFUSED_BACKWARD])
def test_what_the_kernels_do_not_take_is_named(message):
    widths, dtype = (REFUSED | REFUSED_BACKWARD)[message]
    mlp = functools.partial(ops.fused_mlp, activation="relu", **PALLAS)
    inputs = _mlp_structs((100,), widths, dtype)
    if message in REFUSED_BACKWARD:
        jax.eval_shape(mlp, *inputs)
        mlp, *_ = _with_gradients(mlp)
    with pytest.raises(NotImplementedError, match=message):
        jax.eval_shape(mlp, *inputs)


@pytest.mark.parametrize(
    "widths", [(64, 64), (128, 128), (256, 256), (64, 64, 64), (128, 128, 128)]
)
def test_tiles_read_ahead_within_shared_memory(widths):
    x, kernels, biases = _mlp_structs((1000,), widths)
    stack = Stack.of(x, kernels, biases, (None,) * len(kernels))
    tile = DenseTile.choose(stack)
    assert tile.slots > 1
    held = tile.warpgroups * tile.slots * 64 * max(widths) * 2
    assert held + stack.parameter_bytes() <= SHARED_BYTES
    assert tile.limited_to(65).blocks == 2
