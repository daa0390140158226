"""The frame of generated kernels, which gives the body of a kernel its rows, channels and edges.

A block has 8 warps. It processes 8 rows and 32 channels. A block that computes the weights of edges
processes many rows and several parts of the channels, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from jaxgnn._codegen.radial_weights import DEFINITIONS, EDGES, RadialWeights
from jaxgnn.equivariant import TensorProduct

Kind = Literal[
    "rows",
    "columns",
    "weights",
    "harmonics",
    "rows_tangent",
    "columns_tangent",
    "weights_tangent",
]

WARP = 32
WARPS = 8  # Warps of a block.
_TABLE_BYTES = 56 * 1024  # Two blocks then fit a multiprocessor.
_MOST_BYTES = 99 * 1024  # Limit of a block on GPUs of compute capability 8.6, 8.9 and 12.0.
# Blocks of a multiprocessor, for kernels that use so many registers by the estimate. More blocks,
# with some registers in memory, were faster on an H200 for two kinds and slower for others.
_BLOCKS_OF_REGISTERS = (4, 60), (3, 76), (2, 124), (1, 999)
_BLOCKS_OF_KIND: dict[Kind, tuple[tuple[int, int], ...]] = {
    "rows": ((4, 72), (3, 92), (2, 140), (1, 999)),
    "weights": ((4, 72), (3, 92), (2, 140), (1, 999)),
}
_RADIAL_BYTES = 113 * 1024  # Limit of a block that computes weights; two fit an H100.

_PARAMETERS = (
    "const int* __restrict__ indptr, const int* __restrict__ indices, "
    "const int* __restrict__ slots, const float* __restrict__ first, "
    "const float* __restrict__ second, const float* __restrict__ third, "
    "const float* __restrict__ kernel, const float* __restrict__ first_tangent, "
    "const float* __restrict__ second_tangent, const float* __restrict__ third_tangent, "
    "float* __restrict__ out, float* tiles, int rows, int edges"
)


class Launch(NamedTuple):
    """A kernel of a source: ``kernel0`` is the first one.

    Attributes:
      columns: number of parts of 32 channels: blocks in the second direction of the grid.
      shared_bytes: dynamic shared memory of a block.
      blocks: number of blocks that share all parts and rows; 0 for a block for 8 rows and a part.
    """

    columns: int
    shared_bytes: int
    blocks: int = 0


class Source(NamedTuple):
    """CUDA source and the launches of its kernels, in order.

    Attributes:
      text: the source.
      launches: the launches.
      tile_floats: floats of global memory for the tiles of weights of all warps.
    """

    text: str
    launches: tuple[Launch, ...]
    tile_floats: int = 0

    @property
    def columns(self) -> int:
        """The parts of 32 channels of all kernels."""
        return sum(launch.columns for launch in self.launches)


class Call(NamedTuple):
    """The options of a source, and the number of weights of an edge."""

    kind: Kind
    product: TensorProduct
    radial: RadialWeights | None
    num_weights: int

    @property
    def is_tangent(self) -> bool:
        """Whether there are tangents: of harmonics, and of some of the other arrays."""
        return self.kind.endswith("_tangent")

    @property
    def has_tangent_of_features(self) -> bool:
        return self.kind in ("rows_tangent", "weights_tangent")


class Kernel(NamedTuple):
    """A kernel's text and launch, and the floats of the tile of weights of a warp."""

    text: str
    launch: Launch
    tile_floats: int


def joined(kernels: Sequence[Kernel], definitions: str = "") -> Source:
    """The source of the kernels, behind other definitions."""
    tile = max(kernel.tile_floats for kernel in kernels)
    text = "\n".join([definitions, DEFINITIONS if tile else "", *(k.text for k in kernels)])
    launches = tuple(kernel.launch for kernel in kernels)
    return Source(text, launches, max(launch.blocks for launch in launches) * WARPS * tile)


class Frame(NamedTuple):
    """The head of a kernel, which gives its body a row of the graph and a part of the channels.

    Attributes:
      call: the options of the source.
      number: number of the kernel.
      channels: channels of its paths.
      table_floats: floats of the matrices of a warp.
      starts: where the weights of its paths start, pass after pass; none if it reads no weights.
      most_paths: the largest number of paths of a pass.
    """

    call: Call
    number: int
    channels: int
    table_floats: int
    starts: tuple[int, ...] = ()
    most_paths: int = 0

    @property
    def radial(self) -> RadialWeights | None:
        return self.call.radial if self.starts else None

    @property
    def columns(self) -> int:
        return -(-self.channels // WARP)

    def kernel(self, registers: int, body: Sequence[str]) -> Kernel:
        """The kernel with this body, which uses about that many registers.

        Lanes behind the last channel read the first one and store nothing.
        """
        radial = self.radial
        fragments = radial.fragment_floats(len(self.starts)) if radial else 0
        shared = 4 * (fragments + WARPS * self.table_floats)
        limits = _BLOCKS_OF_KIND.get(self.call.kind, _BLOCKS_OF_REGISTERS)
        blocks = next(n for n, most in limits if registers <= most)
        if radial:
            blocks = 2 if shared <= _RADIAL_BYTES else 1
        table = f"float* const table = tables + {fragments} + warp * {self.table_floats};"
        head = [
            f'extern "C" __global__ void __launch_bounds__({WARPS * WARP}, {blocks})',
            f"kernel{self.number}({_PARAMETERS}) {{",
            "const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;",
            f"const int row_blocks = max((rows + {WARPS - 1}) / {WARPS}, 1);",
            *(["extern __shared__ __align__(16) float tables[];", table] if shared else []),
        ]
        inner = [
            f"const int row = row_block * {WARPS} + warp;",
            "const int channel = part * 32 + lane;",
            f"const bool inside = channel < {self.channels};",
            "const int at = inside ? channel : 0;",
            *body,
        ]
        tile = EDGES * 32 * self.most_paths if radial else 0
        around = self._items(radial, tile) if radial else ["{", "const int part = blockIdx.y;"]
        around += [] if radial else ["const int row_block = blockIdx.x;"]
        text = "\n".join([*head, *around, *inner, "}", "}"])
        return Kernel(text, Launch(self.columns, shared, radial.blocks if radial else 0), tile)

    def _items(self, radial: RadialWeights, tile: int) -> list[str]:
        """The loop of a block over parts of the channels and, within, blocks of rows."""
        weights = self.call.num_weights
        load = radial.load_fragments(self.starts, self.channels, weights, WARPS * WARP)
        return [
            "float* const fragments = tables;",
            f"float* const tile = tiles + (size_t)(blockIdx.x * {WARPS} + warp) * {tile};",
            f"const long long items = (long long)row_blocks * {self.columns};",
            "const int last = items * (blockIdx.x + 1) / gridDim.x;",
            "int loaded = -1;",
            "for (int item = items * blockIdx.x / gridDim.x; item < last; ++item) {",
            "const int part = item / row_blocks, row_block = item % row_blocks;",
            "if (part != loaded) {",
            "__syncthreads();",
            *load,
            "__syncthreads();",
            "loaded = part;",
            "}",
        ]


class Tile(NamedTuple):
    """Edges that a warp takes at once: their indices and weights, and of fewer the matrices."""

    edges: int
    with_matrices: int

    @classmethod
    def of(cls, stride: int, radial: RadialWeights | None, fragments: int) -> Tile:
        """The tile for matrices of an edge of this size."""
        of_edge = WARPS * stride * 4
        if radial is None:
            edges = 16 if 16 * of_edge <= _TABLE_BYTES else 8
            return cls(edges, edges if edges * of_edge <= _MOST_BYTES else 4)
        fits = fragments * 4 + EDGES * of_edge <= _RADIAL_BYTES
        return cls(EDGES, EDGES if fits else 8)

    def begin(self) -> list[str]:
        return [
            f"for (int base = begin; base < end; base += {self.edges}) {{",
            f"const int count = min({self.edges}, end - base);",
            "__syncwarp();",
            "int node = 0, slot = 0;",
            "if (lane < count) {",
            "node = indices[base + lane];",
            "slot = slots ? slots[base + lane] : base + lane;",
            "}",
        ]

    def begin_part(self) -> list[str]:
        """Begins the loop over parts of the tile, whose matrices are in memory at once."""
        if self.with_matrices == self.edges:
            return ["{", "const int from = 0, to = count;"]
        return [
            f"for (int from = 0; from < count; from += {self.with_matrices}) {{",
            f"const int to = min(from + {self.with_matrices}, count);",
            "__syncwarp();",
        ]
