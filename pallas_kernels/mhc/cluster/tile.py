"""Division of the columns and tokens of ``mhc_pre`` among the blocks of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import jax
import jax.numpy as jnp

from pallas_kernels.chip import Chip
from pallas_kernels.simt import Grid
from pallas_kernels.simt.warp import LANES

TOKENS = 16  # tokens of a tile: two fragments of Warp.mma
PAIRS = TOKENS // 2
ROWS = 8  # rows of phi of half a fragment
COLUMNS = 8  # columns of a lane
SPAN = 4 * COLUMNS  # columns of a warp in every stream
FLOATS = 4  # float32 numbers of 16 bytes
# A lane keeps 96 words of phi of four streams: more warps would have too few registers.
_MOST_STREAMS, _MOST_WARPS = 4, 11
# Eight warps are enough. More leave room for fewer tiles: for 16384 tokens, four streams 1280 wide,
# an H200 took 0.149 ms for ``mhc_post_pre`` with four blocks of ten warps, 0.123 ms with five of
# eight. The forward pass of a layer that begins with ``mhc_pre`` took 0.170 ms with either.
_MANY_WARPS = 8
_WARPGROUP = 4  # warps of a warpgroup, to which registers are allocated
_MOST_HELPERS = 3
# Clusters that run at once on an H200, by the number of their blocks. For 2, 4, 5 and 8 blocks this
# is the measured largest number without a second wave; for other sizes, the number of clusters that
# fit into seven GPCs of sixteen multiprocessors. The chip has 132 multiprocessors in GPCs of 16, 18
# or fewer, and a cluster runs within one of them. Clusters of one block are not listed: an H200
# rejects their sends without a cluster.
_AT_ONCE = {2: 64, 3: 35, 4: 28, 5: 22, 6: 14, 7: 14, 8: 14}
# Least entries of a token. Two bfloat16 parts of phi are as exact as a float32 sum of that many
# terms.
LEAST_ENTRIES = 512


@dataclass(frozen=True)
class MhcPreClusterTile:
    """Division of columns among blocks and warps, and of tiles among clusters and teams.

    Attributes:
      warps: warps of a team; each has 32 columns of every stream.
      cluster: blocks of a cluster, which together have all columns.
      clusters: number of clusters, which take the tiles in turn.
      ahead: tiles that a team copies ahead of the one that it projects.
      behind: tiles that a team projects before it mixes the first of them.
      helpers: further warps of a block, which compute weights from sums and take the tiles in turn;
        their number divides that of the buffers of sums.
      teams: teams of a block, which take its tiles in turn.
      buffers: buffers of a team for the sums of its warps.
    """

    warps: int
    cluster: int
    clusters: int
    ahead: int = 2
    behind: int = 2
    helpers: int = 1
    teams: int = 1
    buffers: int = 2

    # Choices of ``behind``, ``ahead`` and ``buffers``, the best first.
    depths: ClassVar[tuple[tuple[int, int, int], ...]] = ((2, 2, 2), (2, 1, 2), (1, 1, 2))

    def __post_init__(self):
        if self.cluster < 2:
            raise ValueError(
                f"blocks send to each other in clusters of two or more, got {self.cluster}"
            )
        # Only the lowest bit of a barrier's phase is known. So a helper may wait for a tile only if
        # the tile before it in the same buffer is finished. The helper knows this only if it has
        # processed that tile itself. Teams may be any number of tiles apart.
        if self.summed % self.helpers:
            raise ValueError(
                f"{self.helpers} helpers would not always find the same of {self.summed} buffers "
                "of sums"
            )

    @classmethod
    def choose(cls, chip: Chip, tokens: int, n: int, dim: int, dtype: jnp.dtype) -> Self | None:
        """The only heuristic; None if no cluster has room for phi and the tiles.

        Takes the smallest cluster of blocks of eight warps with columns, or else the smallest.
        """
        if jnp.dtype(dtype) != jnp.bfloat16 or n > _MOST_STREAMS or dim % SPAN:
            return None
        if n * dim < LEAST_ENTRIES:
            return None
        sizes = (size for size in _AT_ONCE if dim // SPAN % size == 0)
        fitting = [tile for size in sizes if (tile := cls._of_cluster(chip, size, tokens, n, dim))]
        return min(fitting, key=lambda tile: tile.warps != _MANY_WARPS, default=None)

    @classmethod
    def _of_cluster(cls, chip: Chip, size: int, tokens: int, n: int, dim: int) -> Self | None:
        """The deepest tile of clusters of ``size`` blocks, or None if none fits."""
        warps = dim // SPAN // size
        teams = max(1, _MANY_WARPS // warps)
        # Registers are allocated to whole warpgroups: helpers that fill one up cost nothing.
        spare = min(_MOST_HELPERS, -(warps * teams) % _WARPGROUP or _WARPGROUP)
        clusters = min(_AT_ONCE[size], -(-tokens // TOKENS))
        for behind, ahead, buffers in cls.depths if warps <= _MOST_WARPS else ():
            helpers = max(h for h in range(1, spare + 1) if buffers * teams % h == 0)
            tile = cls(warps, size, clusters, ahead, behind, helpers, teams, buffers)
            if tile.shared_bytes(n) <= chip.shared_bytes:
                return tile
        return None

    @property
    def stages(self) -> int:
        """Stages of a team's ring: tiles not yet mixed, the present one, and those ahead."""
        return self.behind + 1 + self.ahead

    @property
    def workers(self) -> int:
        """Warps of a block that have columns."""
        return self.warps * self.teams

    @property
    def grid(self) -> Grid:
        """The grid of blocks, clusters and warps."""
        blocks, warps = self.clusters * self.cluster, self.workers + self.helpers
        return Grid(blocks, warps, cluster=self.cluster)

    @property
    def slots(self) -> int:
        """The most pairs of tokens of a tile whose sums a block gathers."""
        return -(-PAIRS // self.cluster)

    @property
    def summed(self) -> int:
        """Buffers of a block for the sums of its warps, one for each tile."""
        return self.buffers * self.teams

    @property
    def weighted(self) -> int:
        """Buffers of a block for weights, one for each tile: see ``mhc.cluster.sums``."""
        return (self.behind + 1) * self.teams

    @property
    def gathered(self) -> int:
        """Buffers of a block for sums of all blocks, by tiles: see ``mhc.cluster.sums``."""
        return 2 * (self.helpers + self.delay)

    @property
    def delay(self) -> int:
        """Tiles by which a helper delays the weights after the sums.

        A single helper would otherwise wait for the other blocks' sums of the same tile.
        """
        return 1 if self.helpers == 1 else 0

    def shared_bytes(self, n: int) -> int:
        """Shared memory of a block, in bytes."""
        return sum(form.size * form.dtype.itemsize for form in self.shared(n).values())

    def shared(self, n: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Arrays in shared memory of a block.

        ``ring`` has the tiles in the layout of ``Streams``. ``sums`` has the sums of each tile and
        warp: for each group of rows those of four tokens in each lane, then one square in each
          lane.
        ``totals`` has the sums of each tile and block for this block's pairs of tokens: those of
        each row, then the squares. ``weights`` has the weights of the streams. The others are
        signals: that sums, totals and weights have arrived, and that sums were read.
        """
        groups = (n * n + 2 * n) // ROWS
        ring = (self.workers, self.stages, n, 2, LANES, COLUMNS)
        shapes = {
            "sums": (self.summed * self.warps, LANES * (4 * groups + 1)),
            "totals": (self.gathered, self.cluster, self.slots, groups * ROWS + 1, 2),
            "weights": (self.weighted, TOKENS, n),
        }
        made = {name: jax.ShapeDtypeStruct(s, jnp.float32) for name, s in shapes.items()}
        counts = {"gathered": self.gathered, "weighted": self.weighted}
        counts |= {"summed": self.summed, "taken": self.summed}
        signals = {
            name: jax.ShapeDtypeStruct((count, 2), jnp.uint32) for name, count in counts.items()
        }
        return {"ring": jax.ShapeDtypeStruct(ring, jnp.bfloat16), **made, **signals}
