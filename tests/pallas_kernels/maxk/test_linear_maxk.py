"""The kernel of a linear layer that keeps the largest: SIMT code emulated, the rest interpreted.

The interpreter knows no SIMT code: plain JAX stands in for it there.
"""

import functools
import itertools
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.sharding import AxisType, PartitionSpec

from jaxgnn import CBSR, ops, verify
from jaxgnn.ops._dense.fused_linear import MAXK
from jaxgnn.ops._dense.fused_linear import _linear_maxk as _linear_maxk_op
from jaxgnn.ops._dense.reference import fused_linear as linear_reference
from jaxgnn.ops._maxk.reference import maxk as reference
from jaxgnn.ops.core import dispatch
from jaxgnn.testing import assert_bit_equal, assert_close, random_array
from pallas_kernels import simt
from pallas_kernels import tensor_cores as tc
from pallas_kernels.dense.stack import Stack
from pallas_kernels.maxk import linear_maxk
from pallas_kernels.maxk.linear_maxk import LinearMaxkTile
from pallas_kernels.maxk.linear_maxk_rows import (
    COLUMNS,
    ROWS,
    ROWS_PER_WARPGROUP,
    Format,
    KeepLargest,
    ReleaseTile,
    kept_columns,
)
from tests.ops.dense._linear import features, layer
from tests.pallas_kernels._chips import H100
from tests.pallas_kernels._emulator import emulated
from tests.pallas_kernels._tensor_cores import put_in_place

PIECE = 8  # entries that keep together when rows are swizzled
WARPGROUP = simt.Grid(blocks=1, warps=4)


def _swizzled(chunk, row, vector):
    """The first entry of a vector of a row of a chunk."""
    return (chunk * ROWS + row) * COLUMNS + (vector ^ (row % PIECE)) * PIECE


def _emulate_selection(z, k, by, ring, first):
    """What ``KeepLargest`` makes of a tile whose chunks lie in the ring from ``first`` on."""
    rows, width = z.shape
    keep = KeepLargest(width, k, by == "magnitude", Format.of(z.dtype))

    def kernel(warp, z, values, columns, chunks, **kept):
        row, half = warp.thread // 2, warp.thread % 2
        for vector in range(width // PIECE // 2):
            at = half * (width // PIECE // 2) + vector
            to = _swizzled(at // PIECE + first, row, at % PIECE)
            words = z.row(row.at_most(rows - 1)).load_words(at * PIECE, PIECE)
            chunks.store_words(to, words, PIECE)
        warp.barrier()
        for half, scratch in enumerate(kept.values()):
            places = (warp.i32(n) for n in (first, 0, half))
            keep(warp, *places, chunks, scratch, values, columns)

    results = [jax.ShapeDtypeStruct((rows, k), dtype) for dtype in (z.dtype, jnp.uint8)]
    shared = {
        "chunks": jax.ShapeDtypeStruct((ring, ROWS, COLUMNS), z.dtype),
        **{name: jax.ShapeDtypeStruct((kept_columns(width, k),), jnp.uint8) for name in "ab"},
    }
    with emulated():
        made = simt.launch(kernel, z, results, name="test", grid=WARPGROUP, block_shared=shared)
    return CBSR(*made, width)


def _difficult(rows, width, dtype):
    """Rows of all scales, and of ties, zeros of both signs, infinities and NaN."""
    z = np.array(random_array((rows, width), "float32", seed=5))
    z *= np.resize([1e-30, 1e-3, 1.0, 30.0], rows)[:, None]
    columns = np.arange(width)
    z[0], z[1] = 0.0, np.where(columns % 2, -0.0, 0.0)
    z[2], z[3] = np.round(z[2]), np.round(2 * z[3]) / 2
    z[4, ::2], z[5], z[6] = np.nan, np.inf, -np.inf
    z[7, ::3], z[8, 3], z[9] = -np.inf, np.nan, 1.0
    z[10, 1::5], z[10, ::5] = np.inf, np.nan
    z[11, columns % 3 > 0] = 3e4
    return jnp.asarray(z).astype(dtype)


def _kept_columns(z, k, by):
    """By sorting, columns ascending."""
    order = np.argsort(-np.asarray(reference.ranks(z, by)), axis=1, kind="stable")
    return np.sort(order[:, :k], axis=1)


def _assert_selects(z, k, by, ring, first):
    columns = _kept_columns(z, k, by)
    values = np.take_along_axis(np.asarray(z), columns, axis=1)
    made = _emulate_selection(z, k, by, ring, first)
    assert_bit_equal((made.values, made.indices), (values, columns.astype(np.uint8)))


@pytest.mark.costly
@pytest.mark.emulated
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    "width, ring, first, rows", [(64, 1, 0, 64), (128, 4, 2, 13), (192, 3, 0, 33), (256, 12, 8, 64)]
)
def test_selection_has_the_bits_of_sorted_rows(width, ring, first, rows, dtype):
    z = _difficult(rows, width, dtype)
    for k, by in itertools.product((1, 7, width // 2, width), ("value", "magnitude")):
        _assert_selects(z, k, by, ring, first)


@pytest.mark.emulated
@pytest.mark.parametrize("width", [64, 128, 192, 256])
def test_of_two_equals_the_first_is_kept_wherever_they_lie(width):
    """Also where lanes, or warps' operands, have one each; in whole tiles and in parts of them."""
    generator = np.random.default_rng(width)
    rows, k = 57, 9
    z = generator.permuted(np.tile(np.arange(width), (rows, 1)), axis=1)
    # The entries of ranks k and k + 1 are alike.
    z[z == width - k] = width - k - 1
    z = jnp.asarray(z).astype("bfloat16")
    assert (np.sort(np.asarray(z), axis=1)[:, -k - 1] == width - k - 1).all()
    _assert_selects(z, k, "value", width // COLUMNS, 0)


@pytest.mark.emulated
def test_searches_end_wherever_they_begin():
    """Of all the numbers that there are: any are neighbours, and nothing is like a bell curve."""
    bits = np.random.default_rng(0).permutation(2**16).astype(np.uint16)
    tiles = bits.reshape(4, 64, 256).view(jnp.bfloat16)
    for tile, k in zip(tiles, (1, 31, 32, 200), strict=True):
        _assert_selects(jnp.asarray(tile), k, "value", 4, 0)


def _inline_stand_in(keep, numbers, references):
    """Takes the place of ``simt.inline`` in the interpreter."""
    if isinstance(keep, ReleaseTile):
        plgpu.commit_smem()
        return
    (first, first_row, half), (ring, _, values, columns) = numbers, [r for r, _ in references]
    share = pl.ds(half * ROWS_PER_WARPGROUP, ROWS_PER_WARPGROUP)
    chunks = [ring[first + i, share] for i in range(keep.width // COLUMNS)]
    by = "magnitude" if keep.by_magnitude else "value"
    made = reference.maxk(jnp.concatenate(chunks, 1), k=keep.k, by=by, early_stop=None)
    first_row = first_row + half * ROWS_PER_WARPGROUP

    @pl.loop(0, jnp.clip(values.shape[0] - first_row, 0, ROWS_PER_WARPGROUP))
    def _(i):
        values[first_row + i], columns[first_row + i] = made.values[i], made.indices[i]


def _accumulated_later(sums, multiply):
    """Takes the place of ``accumulate_into`` in the interpreter: its products begin with zeros."""

    def from_zeros(*totals):
        multiply(totals)
        return [total[...] for total in totals]

    made = pl.run_scoped(from_zeros, *(plgpu.ACC(s.shape, s.dtype) for s in sums))
    return [a + b for a, b in zip(sums, made, strict=True)]


# Rings of one tile and of many, of fewer tiles than pairs too; the last tile has rows for one of
# its selectors, or for both; products in one part, and in two of the same or another width.
TILES = [
    (140, (64, 128), LinearMaxkTile(blocks=1, pairs=3, ring=2)),
    (141, (64, 192), LinearMaxkTile(blocks=1, pairs=2, ring=2)),
    (203, (128, 64), LinearMaxkTile(blocks=2, pairs=2, ring=2)),
    (330, (64, 128), LinearMaxkTile(blocks=1, pairs=2, ring=3)),
    (500, (64, 64), LinearMaxkTile(blocks=1, pairs=3, ring=7)),
    (150, (64, 64), LinearMaxkTile(blocks=1, pairs=2, ring=1)),
]


@pytest.mark.costly
@pytest.mark.parametrize("rows, widths, tile", TILES)
def test_tiles_pass_from_part_to_part(rows, widths, tile, monkeypatch, interpreted):
    monkeypatch.setattr(simt, "inline", _inline_stand_in)
    # The interpreter has no memory that is known by two names.
    views = lambda tiles: (tiles, tiles)  # noqa: E731
    put_in_place(
        monkeypatch, accumulate_into=_accumulated_later, copied_tiles=tc.tiles, tile_views=views
    )
    dtype = "float16" if rows == 500 else "bfloat16"
    x, (kernel, bias) = features((rows, widths[0]), dtype), layer(*widths, dtype)
    bias = None if rows == 500 else bias
    with interpreted():
        made = linear_maxk.linear_maxk(x, kernel, bias, 5, "value", tile)
    options = {"k": 5, "by": "value", "precision": None}
    exact = linear_reference.fused_linear_maxk(x, kernel, bias, **options)
    # Sums in another order are rounded differently here and there.
    same = np.asarray(made[1]) == np.asarray(exact.indices)
    assert same.mean() > 0.99
    values, expected = (np.asarray(v, np.float32)[same] for v in (made[0], exact.values))
    np.testing.assert_allclose(values, expected, rtol=0.01, atol=0.01)


def test_a_tile_is_overwritten_after_all_products_and_passed_on_after_all_of_it():
    """What the interpreter, whose products are made at once, does not tell."""
    made = jax.make_jaxpr(lambda *inputs: linear_maxk.linear_maxk(*inputs, 32, "value"))
    body = str(made(*_structs((1000,), (256, 256)))).partition("barrier_wait")[2]
    until_passed_on = body.partition("barrier_arrive")[0]
    steps = re.findall("run_state|commit_smem|<-", until_passed_on)
    assert steps == ["run_state", "commit_smem", *["<-"] * 4, "commit_smem"]


def test_the_end_of_use_is_told_to_the_copy_engine_before_lanes_meet():
    steps = []
    warp = SimpleNamespace(
        **{n: functools.partial(steps.append, n) for n in ("fence_async_proxy", "sync")}
    )
    ReleaseTile()(warp)
    assert steps == ["fence_async_proxy", "sync"]


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(dispatch, "current_platform", lambda: "cuda")


def _structs(rows, widths, dtype="bfloat16"):
    forms = (*rows, widths[0]), widths, (widths[1],)
    return [jax.ShapeDtypeStruct(form, dtype) for form in forms]


def _kept(k=16, by="value", **options):
    call = functools.partial(ops.fused_linear, activation=ops.MaxK(k, by), **options)
    return lambda *inputs: call(*inputs).values


def _kernels(function, *arguments) -> int:
    lowered = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",))
    return lowered.as_text().count("mosaic_gpu_v2")


@pytest.mark.again("tests/pallas_kernels/test_lowering.py")
@pytest.mark.lowers
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(
    "rows, widths, k, by",
    [
        ((232_965,), (256, 256), 32, "value"),
        ((1_000_000,), (128, 128), 16, "magnitude"),
        ((3, 100), (64, 192), 192, "value"),
    ],
)
def test_one_kernel_lowers_at_real_shapes(rows, widths, k, by):
    dtype = "float16" if by == "magnitude" else "bfloat16"
    values = _kept(k, by, implementation="pallas")
    assert _kernels(values, *_structs(rows, widths, dtype)) == 1


def _gradient(*inputs):
    y, pull_back = jax.vjp(_kept(implementation="pallas"), *inputs)
    return pull_back(y)


@pytest.mark.again("tests/pallas_kernels/test_lowering.py")
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("widths", [(64, 128), (256, 256)])
def test_gradients_are_three_kernels_also_of_the_widest_layers(widths):
    assert _kernels(_gradient, *_structs((232_965,), widths)) == 3


def test_gradients_are_those_of_two_ops():
    """As the op composes them, of references."""
    inputs = features((13, 64), "float32"), *layer(64, 64, "float32")
    dy = random_array((13, 16), "float32", seed=3)
    request = dispatch.resolve("fused_linear", "xla")
    plan = MAXK.plan(request, *inputs, k=16, by="value", precision="highest")
    one = functools.partial(_linear_maxk_op, plan)
    two = _kept(precision="highest", implementation="xla")
    made = jax.vjp(lambda *inputs: one(*inputs)[0], *inputs)[1](dy)
    for gradient, expected in zip(made, jax.vjp(two, *inputs)[1](dy), strict=True):
        assert_close(gradient, expected, reduction_length=64, operands="float32")


@pytest.mark.again("tests/pallas_kernels/test_lowering.py")
@pytest.mark.lowers
@pytest.mark.usefixtures("as_on_a_gpu")
def test_gradients_lower_under_vmap_and_shard_map_and_with_wide_numbers():
    x, *parameters = _structs((4, 3, 50), (64, 128))
    with jax.enable_x64(True):
        assert _kernels(jax.vmap(_gradient, (0, None, None)), x, *parameters)
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    specs = PartitionSpec("data"), PartitionSpec(), PartitionSpec()
    sharded = jax.shard_map(_gradient, mesh=mesh, in_specs=specs, out_specs=specs)
    assert _kernels(sharded, x, *parameters)
    of_vmap = jax.vmap(_gradient, (1, None, None), (1, 0, 0))
    both = jax.shard_map(of_vmap, mesh=mesh, in_specs=specs, out_specs=specs)
    assert _kernels(both, x, *parameters)
    with jax.set_mesh(mesh):
        assert _kernels(sharded, x, *parameters)
        assert _kernels(both, x, *parameters)
    assert not _kernels(_kept(implementation="pallas"), *_structs((3, 0), (64, 64)))


def _in_one_kernel(function, rows=4096, dtype="bfloat16"):
    return "linear_maxk" in str(jax.make_jaxpr(function)(*_structs((rows,), (64, 64), dtype)))


@pytest.mark.usefixtures("as_on_a_gpu")
def test_none_takes_one_kernel_for_many_16_bit_rows():
    assert _in_one_kernel(_kept())
    assert not _in_one_kernel(_kept(), rows=1000)
    assert not _in_one_kernel(_kept(), dtype="float32")


def test_none_takes_the_two_ops_on_a_cpu():
    assert not _in_one_kernel(_kept())


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("name", ["pallas", None])
def test_verification_takes_the_two_ops(name):
    assert _in_one_kernel(_kept(implementation=name))
    with verify("strict"):
        assert not _in_one_kernel(_kept(implementation=name))


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(
    "widths, dtype, message",
    [
        ((64, 96), "bfloat16", "multiples of 64 up to 256, got 96"),
        ((64, 64), "float32", "bfloat16 or float16 values, got float32"),
        ((64, 320), "bfloat16", "multiples of 64 up to 256, got 320"),
    ],
)
def test_what_the_kernel_does_not_take_is_named(widths, dtype, message):
    with pytest.raises(NotImplementedError, match=message):
        jax.eval_shape(_kept(implementation="pallas"), *_structs((100,), widths, dtype))


@pytest.mark.parametrize("widths", [(64, 64), (128, 128), (256, 64), (256, 256)])
def test_rings_have_room_for_a_tile_and_fit_shared_memory(widths):
    x, kernel, bias = _structs((1000,), widths)
    stack = Stack.of(x, (kernel,), (bias,), (None,))
    for k in (1, 32, widths[1]):
        tile = LinearMaxkTile.choose(H100, stack, k)
        held = tile.ring * ROWS * max(widths) * 2 + tile.pairs * 2 * kept_columns(widths[1], k)
        assert tile.ring >= (3 if k <= 32 else 2)
        assert held + kernel.size * 2 <= H100.shared_bytes
        assert tile.limited_to(65).blocks == 2
    assert MAXK.unavailable("pallas", "cpu")


@pytest.mark.parametrize("pairs, at_first", [(2, 96), (3, 72)])
def test_the_multiplier_waits_for_no_registers_that_selectors_do_not_give_back(pairs, at_first):
    """All of 65,536 are in use from the start; parts ask for multiples of eight."""
    multiplier, selector = linear_maxk._REGISTER_SPLITS[pairs].registers
    warpgroups = LinearMaxkTile(1, pairs, 1).warpgroups
    assert at_first == 65_536 // (128 * warpgroups) // 8 * 8
    assert multiplier + 2 * pairs * selector <= warpgroups * at_first
    assert selector < at_first < multiplier
    assert not any(count % 8 for count in (multiplier, selector))
