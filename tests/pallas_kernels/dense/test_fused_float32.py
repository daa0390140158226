"""The kernels of float32 layers: interpreted against float64, lowered, and when they are taken."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import ops
from jaxgnn.ops._dense.fused_linear import FUSED_LINEAR
from jaxgnn.ops._dense.reference import fused_linear as linear_reference
from jaxgnn.ops._dense.reference import fused_mlp as mlp_reference
from jaxgnn.ops.core import dispatch
from jaxgnn.testing import assert_close, random_array, to_float64
from pallas_kernels.dense import backward as dense_backward
from pallas_kernels.dense import forward as dense_forward
from pallas_kernels.dense import fused_linear, fused_mlp
from pallas_kernels.dense.forward import DenseTile
from pallas_kernels.dense.plan import BackwardPlan, BackwardTile, TightTile
from pallas_kernels.dense.stack import Stack
from tests.ops.dense._linear import VALUES, features, layers, linear
from tests.pallas_kernels._chips import H100
from tests.pallas_kernels.dense._dense import interpreted, kernels_of, structs, with_gradients

PRECISIONS = ("tf32", "bf16x3")
# Two blocks, whose warpgroups have several tiles and reuse their slots; and warpgroups that take
# turns at slots that are no multiple of them.
TILES = (
    DenseTile(blocks=2, warpgroups=1, slots=2),
    DenseTile(blocks=1, warpgroups=2, slots=3),
)
# A lone row, rows behind the last of a tile and of eight; layers that widen and that narrow, one to
# three of them, the second without a bias.
CASES = [
    (1, (64, 64), "silu"),
    (203, (128, 64), "relu"),
    (203, (64, 128, 128), "gelu"),
    (72, (128, 64, 64, 192), "squared_relu"),
]


def _activations(widths, activation):
    """Of one layer its own; of several those between."""
    hidden = len(widths) - 2
    return (*[activation] * hidden, None) if hidden else (activation,)


def _exactly(x, kernels, biases, activations):
    """In float64."""
    with jax.enable_x64(True):
        x, kernels, biases = to_float64((x, kernels, biases))
        for kernel, bias, activation in zip(kernels, biases, activations, strict=True):
            x = linear(x, kernel, bias, activation)
        return np.asarray(x)


def _interpreted(x, kernels, biases, activations, precision):
    tile = TILES[len(kernels) % 2]
    with interpreted():
        return dense_forward.forward(x, kernels, biases, activations, tile, precision)


def _on_grid(tree):
    """Numbers of few bits, which no product loses."""
    return jax.tree.map(lambda a: jnp.round(a * 32) / 32, tree)


@pytest.mark.costly
@pytest.mark.parametrize("rows, widths, activation", CASES)
def test_tf32_products_of_short_numbers_are_exact(rows, widths, activation):
    """The kernels are rounded to TF32 before; the interpreter rounds nothing else."""
    inputs = _on_grid((features((rows, widths[0])), *layers(widths)))
    activations = _activations(widths, activation)
    y = _interpreted(*inputs, activations, "tf32")
    assert_close(y, _exactly(*inputs, activations), reduction_length=max(widths))


@pytest.mark.costly
@pytest.mark.parametrize("rows, widths, activation", CASES)
def test_three_products_of_parts_have_their_precision(rows, widths, activation):
    inputs = features((rows, widths[0])), *layers(widths)
    activations = _activations(widths, activation)
    exact = _exactly(*inputs, activations)
    y = _interpreted(*inputs, activations, "bf16x3")
    assert y.dtype == jnp.float32
    assert np.abs(np.asarray(y) - exact).max() < 2e-5 * np.abs(exact).max()


ALONE = BackwardTile(blocks=2, parts=1, teams=1, members=1, slots=2, read_once_slots=2)
TEAMS = BackwardTile(blocks=2, parts=1, teams=2, members=1, slots=2, read_once_slots=1)
OVER = BackwardTile(blocks=1, parts=1, teams=2, members=1, slots=2, read_once_slots=1, overlay=True)
MEMBERS = BackwardTile(blocks=2, parts=1, teams=1, members=2, slots=2, read_once_slots=1)
PARTS = BackwardTile(blocks=1, parts=2, teams=1, members=2, slots=2, read_once_slots=1)
# None: by default. That of relu does not fit, which XLA then goes back through; a member that has
# no chunk of the result; blocks that share columns; teams; and two layers at once.
GRADIENTS = [
    (203, (128, 128, 128), "relu", TightTile(blocks=1)),
    (1, (64, 64), "silu", ALONE),
    (203, (128, 128), "relu", None),
    (203, (64, 128), "gelu", MEMBERS),
    (203, (128, 64), None, PARTS),
    (203, (64, 64), "squared_relu", TEAMS),
    (72, (128, 128, 64), "mish", MEMBERS),
    (203, (64, 64, 64), "relu", ALONE),
    (203, (64, 64, 64), "silu", OVER),
    (203, (128, 64, 128), "gelu", TightTile(blocks=2)),
    (72, (64, 128, 128), None, TightTile(blocks=2)),
]


def _assert_gradients_are_close(made, exact):
    for a, e in zip(jax.tree.leaves(made), jax.tree.leaves(exact), strict=True):
        assert a.dtype == jnp.float32 and a.shape == e.shape
        e = np.asarray(e)
        assert np.abs(np.asarray(a) - e).max() < 2e-5 * np.abs(e).max()


def _gradient_inputs(rows, widths, activation):
    """Input, kernels, biases (of a second layer none), a gradient; some that leave no doubt."""
    dy = random_array((rows, widths[-1]), "float32", seed=9)
    inputs = features((rows, widths[0])), *layers(widths), dy
    # Sums of short numbers have the same sign however they are made.
    return _on_grid(inputs) if activation in ("relu", "squared_relu") else inputs


@pytest.mark.costly
@pytest.mark.parametrize("rows, widths, activation, tile", GRADIENTS)
def test_gradients_have_the_precision_of_three_products_of_parts(rows, widths, activation, tile):
    x, kernels, biases, dy = _gradient_inputs(rows, widths, activation)
    options, y = {"activation": activation, "precision": None}, None
    with jax.enable_x64(True):
        wide = to_float64((x, kernels, biases, dy))
        if len(widths) == 2:
            layer = wide[0], *wide[1], *wide[2]
            if linear_reference.saves_output(activation):
                y = linear_reference.fused_linear(*layer, **options)
            exact = linear_reference.fused_linear_backward(*layer, y, wide[3], **options)
        else:
            exact = mlp_reference.fused_mlp_backward(*wide, **options)
    with interpreted():
        if len(widths) == 2:
            known = None if y is None else y.astype("float32")
            layer = x, *kernels, *biases, known, dy
            made = fused_linear.fused_linear_backward(*layer, activation, tile)
        else:
            given = x, kernels, biases, None, dy, (activation, None)
            made = dense_backward.backward(*given, tile)
    _assert_gradients_are_close(made, exact)


@pytest.mark.again("test_gradients_have_the_precision_of_three_products_of_parts")
@pytest.mark.costly(1)
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_gradients_of_many_layers_are_those_of_several_kernels(activation):
    widths = (64, 64, 64, 64)
    inputs = _gradient_inputs(9, widths, activation)
    with interpreted():
        made = fused_mlp.fused_mlp_backward(*inputs, activation, "bf16x3")
    with jax.enable_x64(True):
        options = {"activation": activation, "precision": None}
        exact = mlp_reference.fused_mlp_backward(*to_float64(inputs), **options)
    _assert_gradients_are_close(made, exact)


@pytest.mark.parametrize("activation", VALUES)
def test_tiles_of_gradients_stay_within_shared_memory_and_read_ahead(activation):
    sizes = (64, 128)
    for widths in [*itertools.product(sizes, repeat=2), *itertools.product(sizes, repeat=3)]:
        names = _activations(widths, activation)
        stack = Stack(widths, (True,) * len(names), names, jnp.dtype("float32"))
        tile = BackwardTile.choose(H100, stack)
        assert fused_mlp.float32_gradients_fit(widths, activation)
        if tile is None:
            gated = stack.last_activation is not None and stack.last_activation.of_output
            assert gated or TightTile.choose(H100, stack)
            continue
        plan = BackwardPlan(stack, tile.parts)
        needed = tile.teams * plan.shared_bytes(tile.slots, tile.read_once_slots, tile.overlay)
        needed += sum(4 * a * b for a, b in stack.shapes) // tile.parts
        needed += 1024 * (len(plan.loaded_biases) + plan.marks[1])
        assert needed <= H100.shared_bytes and tile.slots > 1


def _stack(widths, precision):
    count = len(widths) - 1
    return Stack(widths, (True,) * count, ("gelu",) * count, jnp.dtype("float32"), precision)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_tiles_stay_within_shared_memory_and_read_ahead(precision):
    sizes = (64, 128, 192, 256)
    shapes = [*itertools.product(sizes, repeat=2), *itertools.product(sizes, repeat=3)]
    chosen = {widths: DenseTile.choose(H100, _stack(widths, precision)) for widths in shapes}
    for widths, tile in chosen.items():
        if tile is not None:
            parameters = sum(4 * a * b + 1024 for a, b in itertools.pairwise(widths))
            assert tile.slots * 64 * max(widths) * 4 + parameters <= H100.shared_bytes
            assert tile.slots > tile.warpgroups
    # The tables of the benchmarks, one and two layers; and what no multiprocessor holds.
    assert all(chosen[(width,) * n] for width in (64, 128) for n in (2, 3))
    assert not chosen[256, 256] and not fused_mlp.float32_fits((64, 256, 256), precision)


def test_three_layers_of_128_are_two_kernels():
    assert fused_mlp.forward_groups(_stack((128,) * 4, "tf32")) == [(0, 2), (2, 3)]


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(dispatch, "current_platform", lambda: "cuda")


def _mlp_structs(rows, widths):
    return jax.ShapeDtypeStruct((rows, widths[0]), "float32"), *structs(layers(widths))


@pytest.mark.lowers
@pytest.mark.costly
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("activation", VALUES)
def test_layers_lower_with_every_activation(activation, precision):
    options = {"activation": activation, "precision": precision, "implementation": "pallas"}
    inputs = _mlp_structs(1_000_000, (128,) * 3)
    assert len(kernels_of(functools.partial(ops.fused_mlp, **options), *inputs)) == 1


# Kernels of the value and its gradients; gradients that do not fit are left to XLA.
WITH_GRADIENTS = {
    ((64, 64, 64), "gelu"): 2,
    ((64, 128, 64), "squared_relu"): 2,
    ((128, 128), "relu"): 2,
    ((128, 128), "mish"): 2,
    ((128, 128, 128), "relu"): 2,
    ((128, 128, 128), "gelu_exact"): 2,
    ((128, 64, 128, 128), "silu"): 4,
    ((192, 128), "gelu"): 1,
}


@pytest.mark.again("tests/pallas_kernels/dense/test_fused.py")
@pytest.mark.lowers
@pytest.mark.costly
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("widths, activation", WITH_GRADIENTS)
def test_gradients_lower_for_what_fits(widths, activation):
    precision = PRECISIONS[len(widths) % 2]
    options = {"activation": activation, "precision": precision, "implementation": "pallas"}
    x, kernels, biases = _mlp_structs(232_965, widths)
    if len(kernels) == 1:
        layer = functools.partial(ops.fused_linear, **options)
        made = kernels_of(*with_gradients(layer, x, *kernels, *biases))
    else:
        mlp = functools.partial(ops.fused_mlp, **options)
        made = kernels_of(*with_gradients(mlp, x, kernels, biases))
    assert len(made) == WITH_GRADIENTS[widths, activation]


@pytest.mark.costly
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(
    "activation, widths, count",
    [
        ("relu", (64, 64, 64), 2),
        ("relu", (128, 128, 128), 2),
        ("gelu", (64, 64, 64), 2),
        ("gelu", (64, 128, 64), 2),
        ("gelu", (128, 128, 128), 2),
        ("gelu", (64, 192, 64), 0),
        ("silu", (64, 64, 64), 1),
    ],
)
def test_none_takes_kernels_for_gradients_that_were_timed(activation, widths, count):
    mlp = functools.partial(ops.fused_mlp, activation=activation, precision="tf32")
    assert len(kernels_of(*with_gradients(mlp, *_mlp_structs(10_000, widths)))) == count


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("precision", [None, *PRECISIONS])
def test_none_takes_kernels_for_many_rows_unless_float32_products_are_asked_for(precision):
    for rows, setting, expected in ((10_000, "default", 1), (1000, "default", 0)):
        x, kernels, biases = _mlp_structs(rows, (64,) * 3)
        options = {"activation": "relu", "precision": precision}
        with jax.default_matmul_precision(setting):
            mlp = functools.partial(ops.fused_mlp, **options)
            assert len(kernels_of(mlp, x, kernels, biases)) == expected
            linear = functools.partial(ops.fused_linear, **options)  # which was not timed
            assert not kernels_of(linear, x, kernels[0], biases[0])
            wide = _mlp_structs(rows, (64, 256, 64))
            assert not kernels_of(mlp, *wide)
            exact = functools.partial(ops.fused_linear, precision="highest")
            assert not kernels_of(exact, x, kernels[0], biases[0])


def test_verification_allows_what_tf32_may_err_by():
    x = jax.ShapeDtypeStruct((8, 64), "float32")
    entry = FUSED_LINEAR.implementations["pallas"]
    with jax.default_matmul_precision("default"):
        allowed = [entry.tolerance(x, precision=p) for p in (None, "tf32", "bf16x3")]
    assert allowed == [2e-3, 2e-3, None]
    assert entry.tolerance(x, precision=None) is None  # the tests' setting is "highest"


SETTINGS = {"default": True, "tensorfloat32": True, "BF16_BF16_F32_X3": True, "float32": False}


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("setting", SETTINGS)
def test_without_a_precision_jax_setting_decides(setting):
    x, (kernel,), (bias,) = _mlp_structs(10_000, (64, 64))
    layer = functools.partial(ops.fused_linear, implementation="pallas")
    with jax.default_matmul_precision(setting):
        if SETTINGS[setting]:
            assert len(kernels_of(layer, x, kernel, bias)) == 1
        else:
            with pytest.raises(NotImplementedError, match="got JAX's setting float32"):
                jax.eval_shape(layer, x, kernel, bias)


# Precision and widths; the tests' setting of JAX is "highest".
REFUSED = {
    "precision tf32 or bf16x3 .* got JAX's setting highest": (None, (64, 64)),
    "precision tf32 or bf16x3 .* got highest": ("highest", (64, 64)),
    "multiples of 64 up to 256, got 96": ("tf32", (64, 96)),
    "float32 layers that fit shared memory, got widths .256, 256.": ("bf16x3", (256, 256)),
}


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("message", REFUSED)
def test_what_the_kernels_do_not_take_is_named(message):
    precision, widths = REFUSED[message]
    x, (kernel,), (bias,) = _mlp_structs(10_000, widths)
    layer = functools.partial(ops.fused_linear, precision=precision, implementation="pallas")
    with pytest.raises(NotImplementedError, match=message):
        jax.eval_shape(layer, x, kernel, bias)
