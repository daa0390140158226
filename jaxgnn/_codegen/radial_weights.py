"""CUDA source for kernels of tensor products that compute the weights of edges themselves.

The last layer of a radial network maps features of an edge, the basis, to a weight for each path
and channel. A warp computes the weights of 16 edges, for the paths of its kernel and 32 channels,
by products of matrices on tensor cores. It writes them to a tile of its own in global memory, which
stays in the second-level cache, and reads them from there. So no array of all weights exists.

The block keeps its part of the layer's kernel in shared memory, in the order in which the lanes of
``mma`` hold it. Lane ``4 g + t`` holds rows and columns g, and four features from 16 s + 4 t on in
step s, the same of both matrices: the sum over features has no order of its own.

A float32 number is the sum of two TF32 numbers, but for the last bits. With three products of such
parts the weights are as exact as those of float32; one product is TF32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

EDGES = 16  # Edges of a tile: the rows of a product of ``mma``.
_STEP = 16  # Features of a step.
_PATH_COLUMNS = 32  # Channels of a path: four products of ``mma`` side by side.

# ``Multiply`` adds the product of 16 edges and 8 channels over a step. ``Mma`` is one instruction.
DEFINITIONS = r"""
#ifndef Mma
__device__ __forceinline__ void Mma(float* sum, const unsigned* a, const unsigned* b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

__device__ __forceinline__ unsigned Nearest(float value) {
  return (__float_as_uint(value) + 0x1000u) & 0xffffe000u;
}

template <int products>
__device__ __forceinline__ void Add(float* sum, const float* a, const float* b) {
  unsigned a_high[4], b_high[2], low[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) a_high[i] = Nearest(a[i]);
#pragma unroll
  for (int i = 0; i < 2; ++i) b_high[i] = Nearest(b[i]);
  if (products == 3) {
#pragma unroll
    for (int i = 0; i < 4; ++i) low[i] = Nearest(a[i] - __uint_as_float(a_high[i]));
    Mma(sum, low, b_high);
#pragma unroll
    for (int i = 0; i < 2; ++i) low[i] = Nearest(b[i] - __uint_as_float(b_high[i]));
    Mma(sum, a_high, low);
  }
  Mma(sum, a_high, b_high);
}

template <int products>
__device__ __forceinline__ void Multiply(float* sum, float4 a, float4 lower_a, float4 b) {
  const float first[4] = {a.x, lower_a.x, a.y, lower_a.y}, of_first[2] = {b.x, b.y};
  const float second[4] = {a.z, lower_a.z, a.w, lower_a.w}, of_second[2] = {b.z, b.w};
  Add<products>(sum, first, of_first);
  Add<products>(sum, second, of_second);
}

template <int features>
__device__ __forceinline__ float4 Features(const float* row, int from, bool is_real) {
  if (!is_real || from >= features) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (features % 4 == 0) return __ldg(reinterpret_cast<const float4*>(row + from));
  const float x = __ldg(row + from), y = from + 1 < features ? __ldg(row + from + 1) : 0.0f;
  const float z = from + 2 < features ? __ldg(row + from + 2) : 0.0f;
  return make_float4(x, y, z, from + 3 < features ? __ldg(row + from + 3) : 0.0f);
}
"""


class RadialWeights(NamedTuple):
    """The layer of which a kernel computes the weights.

    Attributes:
      features: number of features of an edge.
      products: 3, or 1 for TF32.
      blocks: number of blocks of a kernel, which share all rows and channels.
    """

    features: int
    products: int
    blocks: int

    @property
    def steps(self) -> int:
        """The products over features, of 16 each; the last ones may be zeros."""
        return -(-self.features // _STEP)

    def fragment_floats(self, paths: int) -> int:
        """Floats of a block's part of the kernel."""
        return paths * self.steps * _STEP * _PATH_COLUMNS

    def load_fragments(
        self, starts: Sequence[int], channels: int, num_weights: int, threads: int
    ) -> list[str]:
        """All lanes of a block read the columns of the paths, whose weights start here."""
        of_path = self.fragment_floats(1)
        lines = []
        for number, start in enumerate(starts):
            lines += [
                f"for (int i = threadIdx.x; i < {of_path}; i += {threads}) {{",
                "const int holder = i >> 2 & 31;",
                f"const int from = (i >> 9) * {_STEP} + (holder & 3) * 4 + (i & 3);",
                "const int to = part * 32 + (i >> 7 & 3) * 8 + (holder >> 2);",
                f"const bool is_real = from < {self.features} && to < {channels};",
                f"fragments[{number * of_path} + i] = is_real"
                f" ? __ldg(kernel + (size_t)from * {num_weights} + {start} + to) : 0.0f;",
                "}",
            ]
        return lines

    def make_tile(self, first_path: int, paths: int) -> list[str]:
        """The warp computes the weights of the ``count`` edges, whose arrays are in ``slot``."""
        width = paths * _PATH_COLUMNS
        of_step = 4 * 32  # Counted in float4.
        rows = "third + (size_t)"
        return [
            "{",
            "const int g = lane >> 2, t = lane & 3;",
            f"const float* const upper = {rows}__shfl_sync(~0u, slot, g) * {self.features};",
            f"const float* const lower = {rows}__shfl_sync(~0u, slot, g + 8) * {self.features};",
            f"float4 a[{self.steps}], lower_a[{self.steps}];",
            "#pragma unroll",
            f"for (int s = 0; s < {self.steps}; ++s) {{",
            f"a[s] = Features<{self.features}>(upper, s * {_STEP} + t * 4, g < count);",
            f"lower_a[s] = Features<{self.features}>(lower, s * {_STEP} + t * 4, g + 8 < count);",
            "}",
            "#pragma unroll 1",
            f"for (int path = 0; path < {paths}; ++path) {{",
            "const float4* const b = (const float4*)fragments + "
            f"(path + {first_path}) * {self.steps * of_step} + lane;",
            "float sums[4][4] = {};",
            "#pragma unroll",
            f"for (int s = 0; s < {self.steps}; ++s) {{",
            "#pragma unroll",
            "for (int q = 0; q < 4; ++q)",
            f"Multiply<{self.products}>(sums[q], a[s], lower_a[s], b[s * {of_step} + q * 32]);",
            "}",
            f"float2* const to = (float2*)(tile + g * {width} + path * 32) + t;",
            "#pragma unroll",
            "for (int q = 0; q < 4; ++q) {",
            "to[q * 4] = make_float2(sums[q][0], sums[q][1]);",
            f"to[q * 4 + {4 * width}] = make_float2(sums[q][2], sums[q][3]);",
            "}",
            "}",
            "}",
            "__syncwarp();",
        ]
