"""What is known of GPUs, and that choices of tiles keep to the GPU that they are given."""

import dataclasses
import types

import jax.numpy as jnp
import pytest

from jaxgnn.graph import BlockShape
from pallas_kernels.chip import CHIPS, Chip
from pallas_kernels.dense.forward import DenseTile
from pallas_kernels.dense.pair import PairTile
from pallas_kernels.dense.plan import BackwardTile, TightTile
from pallas_kernels.dense.stack import Stack
from pallas_kernels.edge_mlp.forward import EdgeTile
from pallas_kernels.edge_mlp.wide import WideTile as WideEdgeTile
from pallas_kernels.graph.spmm import SpmmTile
from pallas_kernels.hypergraph.hypergraph_conv import MixTile
from pallas_kernels.maxk.linear_maxk import LinearMaxkTile
from pallas_kernels.maxk_spmm.backward import GradTile
from pallas_kernels.maxk_spmm.edge_blocks import BlocksTile
from pallas_kernels.maxk_spmm.maxk_spmm import ForwardTile
from pallas_kernels.mhc.cluster.pre import MhcPreClusterTile
from pallas_kernels.mhc.wide_sums import WideTile
from tests.pallas_kernels._chips import H100

BFLOAT16 = jnp.dtype(jnp.bfloat16)
EACH = pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)


def device(kind, capability, **more):
    return types.SimpleNamespace(device_kind=kind, compute_capability=capability, **more)


@pytest.mark.parametrize(
    ("kind", "capability", "name"),
    [
        ("Tesla T4", "7.5", "T4"),
        ("NVIDIA H100 80GB HBM3", "9.0", "H100"),
        ("NVIDIA H200", "9.0", "H200"),
        ("NVIDIA A100-SXM4-40GB", "8.0", "A100"),
        ("NVIDIA B200", "10.0", "B200"),
        ("NVIDIA GeForce RTX 4090", "8.9", "RTX4090"),
        ("NVIDIA GeForce RTX 5090", "12.0", "RTX5090"),
    ],
)
def test_a_device_is_known_by_its_kind(kind, capability, name):
    assert Chip.of_device(device(kind, capability)) == Chip.named(name.lower())


def test_a_device_says_itself_how_many_multiprocessors_it_has():
    found = Chip.of_device(device("NVIDIA H100 PCIe", "9.0", core_count=114))
    assert (found.name, found.multiprocessors) == ("H100", 114)


def test_a_device_that_is_not_known_is_like_the_least_of_its_generation():
    found = Chip.of_device(device("NVIDIA L40S", "8.9", core_count=142))
    assert (found.name, found.capability, found.multiprocessors) == ("NVIDIA L40S", "8.9", 142)
    assert found.block_bytes == min(c.block_bytes for c in CHIPS.values() if c.capability[0] == "8")
    oldest = Chip.of_device(device("NVIDIA V100", "7.0", core_count=80))
    assert oldest.block_bytes == min(c.block_bytes for c in CHIPS.values())


def test_a_name_that_is_not_known_is_refused_with_those_that_are():
    with pytest.raises(ValueError, match=r"expected a name among T4, A100.*got 'MI300'"):
        Chip.named("MI300")


def stack(*widths, dtype="bfloat16", precision=None):
    layers = len(widths) - 1
    activations = ("relu",) * (layers - 1) + (None,)
    return Stack(widths, (True,) * layers, activations, jnp.dtype(dtype), precision)


def in_memory(of, tiles):
    """Bytes of the parameters of a stack, and of so many tiles of its widest rows."""
    return of.parameter_bytes() + tiles * of.row_bytes(max(of.widths))


@EACH
@pytest.mark.parametrize("widths", [(128, 128), (256, 256), (64, 64, 64)])
def test_dense_layers_keep_to_multiprocessors_and_shared_memory(chip, widths):
    of = stack(*widths)
    if tile := DenseTile.choose(chip, of):
        assert tile.blocks == chip.multiprocessors
        assert in_memory(of, tile.slots) <= chip.shared_bytes
    if tile := DenseTile.choose_pull_back(chip, of.part(0, 1)):
        assert tile.blocks <= chip.multiprocessors
    for kind in (BackwardTile, TightTile):
        if tile := kind.choose(chip, of.without_last_activation()):
            assert tile.blocks <= chip.multiprocessors
    if tile := PairTile.choose(chip, of):
        assert 2 * tile.pairs <= chip.multiprocessors


@EACH
def test_layers_of_edges_keep_to_multiprocessors_and_shared_memory(chip):
    of = stack(128, 128)
    for kind in (EdgeTile, WideEdgeTile):
        if tile := kind.choose(chip, of):
            assert tile.blocks == chip.multiprocessors
    if tile := LinearMaxkTile.choose(chip, of, 16):
        assert tile.blocks == chip.multiprocessors
        assert in_memory(of, tile.ring) <= chip.shared_bytes


def test_a_linear_layer_with_maxk_needs_the_registers_of_its_warpgroups():
    few = dataclasses.replace(H100, registers=60_000)
    for widths in ((128, 128), (256, 256)):
        assert LinearMaxkTile.choose(H100, stack(*widths), 16)
        assert LinearMaxkTile.choose(few, stack(*widths), 16) is None


def test_what_fits_the_memory_of_a_large_chip_does_not_fit_a_small_one():
    small = Chip.named("RTX4090")
    assert DenseTile.choose(H100, stack(256, 256)) and not DenseTile.choose(small, stack(256, 256))
    assert WideTile.choose(small, 4096, 4, 7168, "bfloat16", posts=True) is None
    assert WideTile.choose(H100, 4096, 4, 7168, "bfloat16", posts=True)


@EACH
def test_hyper_connections_keep_to_shared_memory(chip):
    if tile := MhcPreClusterTile.choose(chip, 16_384, 4, 1280, BFLOAT16):
        assert tile.shared_bytes(4) <= chip.shared_bytes


@EACH
def test_sparse_products_keep_to_the_cache_and_shared_memory(chip):
    cols = 100_000
    tile = SpmmTile.choose(chip, 1000, cols, 10**6, 256, 4)
    assert tile.lanes == 8 or cols * tile.lanes * 16 <= chip.cache_bytes or tile.lanes == 32
    grad = GradTile.choose(chip, 10**6, 32, 256)
    assert grad.passes == 3 or grad.passes * chip.cache_bytes >= 10**6 * 32 * 4
    blocks = BlocksTile.choose(chip, 288, 10**5, 32, 256, 4)
    assert blocks.held * 256 * 4 <= chip.shared_bytes
    forward = ForwardTile.choose(chip, 32, 256, BFLOAT16, 100)
    assert 4 * forward.words * forward.warps <= chip.shared_bytes
    mix = MixTile.choose(chip, jnp.zeros((4096, 8, 256), BFLOAT16), 1)
    assert mix.ranges * (256 // mix.columns_per_block) <= chip.multiprocessors


@EACH
def test_edges_grouped_by_block_keep_to_the_cache_and_shared_memory(chip):
    for shape in BlockShape.choices(chip, 1_000_000, 1_000_000, 500_000_000):
        widest = chip.shared_bytes // shape.rows
        assert shape.can_hold(chip, widest // 2, 1) and not shape.can_hold(chip, widest + 1, 1)
        for k, itemsize in ((16, 2), (32, 4)):
            tiles = shape.tiles_for(chip, k, itemsize)
            sums = shape.senders_of(tiles) * k * 4
            assert sums <= chip.cache_bytes or tiles == shape.tiles[-1]
    orders = [BlockShape.choices(chip, n, n, n)[0].order for n in (10_000, 2_000_000)]
    assert orders == ["given", "community"]


def test_a_larger_cache_takes_wider_slices_and_fewer_passes():
    large, small = Chip.named("B200"), Chip.named("A100")
    widths = [SpmmTile.choose(c, 1000, 200_000, 10**6, 256, 4).lanes for c in (large, small)]
    assert widths == [32, 8]
    passes = [GradTile.choose(c, 10**6, 16, 256).passes for c in (large, small)]
    assert passes[0] < passes[1]
