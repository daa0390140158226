"""How the blocks of a cluster share columns and tokens of ``mhc_pre``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import jax
import jax.numpy as jnp

from pallas_kernels.chip import Chip
from pallas_kernels.simt import Grid
from pallas_kernels.simt.warp import LANES

TOKENS = 16  # of a tile: two fragments of Warp.mma
PAIRS = TOKENS // 2
ROWS = 8  # of phi, of half a fragment
COLUMNS = 8  # of a lane
SPAN = 4 * COLUMNS  # of a warp, of every stream
FLOATS = 4  # in 16 bytes
# A lane keeps 96 words of phi of four streams: more warps would have too few registers.
_MOST_STREAMS, _MOST_WARPS = 4, 11
# Are enough, and better than more, which leave room for fewer tiles: for 16384 tokens, four streams
# 1280 wide, an H200 took 0.149 ms for ``mhc_post_pre`` with four blocks of ten warps, 0.123 ms with
# five of eight. The forward pass of a layer that begins with ``mhc_pre`` took 0.170 ms with either.
_MANY_WARPS = 8
_WARPGROUP = 4  # warps that are there or not together
_MOST_HELPERS = 3
# Clusters of so many blocks that run at once on an H200: all that were tried and took no second
# wave (2, 4, 5 and 8), and for other sizes what fits into seven parts of sixteen multiprocessors.
# The chip has 132, but its parts have 16 or 18, or fewer, and a cluster is in one of them.
# A launch without clusters is not among them: an H200 refuses what its blocks send.
_AT_ONCE = {2: 64, 3: 35, 4: 28, 5: 22, 6: 14, 7: 14, 8: 14}
# Entries of a token. Two bfloat16 parts of phi are as exact as float32 sums of so many products.
LEAST_ENTRIES = 512


@dataclass(frozen=True)
class MhcPreClusterTile:
    """How blocks and warps share the columns, and clusters the tokens.

    Attributes:
      warps: of a team, which have columns, 32 of every stream.
      cluster: blocks of a cluster.
      clusters: how many; each takes every so many-th sixteen of tokens.
      ahead: sixteens of tokens of a team that are on their way while it sums one.
      behind: sixteens of tokens that a team sums before it mixes the first of them.
      helpers: more warps of a block, which make sums to weights; they take turns. No more than
        there are buffers in a block.
      teams: of a block; they take turns.
      buffers: sixteens of tokens of a team whose sums may wait to be added up.
    """

    warps: int
    cluster: int
    clusters: int
    ahead: int = 2
    behind: int = 2
    helpers: int = 1
    teams: int = 1
    buffers: int = 2

    # Tiles that are behind and ahead, and buffers, the best first.
    depths: ClassVar[tuple[tuple[int, int, int], ...]] = ((2, 2, 2), (2, 1, 2), (1, 1, 2))

    def __post_init__(self):
        if self.cluster < 2:
            raise ValueError(
                f"blocks send to each other in clusters of two or more, got {self.cluster}"
            )
        # A helper would wait for a signal's turn after the next, which looks like the one before.
        if self.helpers > self.summed:
            raise ValueError(f"{self.helpers} helpers would share {self.summed} buffers of sums")

    @classmethod
    def choose(cls, chip: Chip, tokens: int, n: int, dim: int, dtype: jnp.dtype) -> Self | None:
        """The one heuristic, or None where no cluster holds phi and the tiles.

        The smallest cluster that does, but rather one of blocks of eight warps with columns.
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
        """The deepest tile of clusters of so many blocks, or None if none fits."""
        warps = dim // SPAN // size
        teams = max(1, _MANY_WARPS // warps)
        # Registers are dealt out to whole warpgroups: helpers to fill one up cost nothing.
        spare = min(_MOST_HELPERS, -(warps * teams) % _WARPGROUP or _WARPGROUP)
        clusters = min(_AT_ONCE[size], -(-tokens // TOKENS))
        for behind, ahead, buffers in cls.depths if warps <= _MOST_WARPS else ():
            helpers = min(spare, buffers * teams)
            tile = cls(warps, size, clusters, ahead, behind, helpers, teams, buffers)
            if tile.shared_bytes(n) <= chip.shared_bytes:
                return tile
        return None

    @property
    def stages(self) -> int:
        """Tiles of a team in shared memory: not yet mixed, the present one, and on their way."""
        return self.behind + 1 + self.ahead

    @property
    def workers(self) -> int:
        """Warps of a block that have columns."""
        return self.warps * self.teams

    @property
    def grid(self) -> Grid:
        """Blocks and warps."""
        blocks, warps = self.clusters * self.cluster, self.workers + self.helpers
        return Grid(blocks, warps, cluster=self.cluster)

    @property
    def slots(self) -> int:
        """Pairs of tokens of a tile that a block has the sums of, at most."""
        return -(-PAIRS // self.cluster)

    @property
    def summed(self) -> int:
        """Tiles whose sums of all warps are in shared memory."""
        return self.buffers * self.teams

    @property
    def weighted(self) -> int:
        """Tiles whose weights are in shared memory: see ``mhc.cluster.sums``."""
        return (self.behind + 1) * self.teams

    @property
    def gathered(self) -> int:
        """Tiles whose sums of all blocks are in shared memory: likewise."""
        return 2 * (self.helpers + self.late)

    @property
    def late(self) -> int:
        """Tiles that a helper has sums of before it makes weights: alone it would wait for both."""
        return 1 if self.helpers == 1 else 0

    def shared_bytes(self, n: int) -> int:
        """Bytes of ``shared``."""
        return sum(form.size * form.dtype.itemsize for form in self.shared(n).values())

    def shared(self, n: int) -> dict[str, jax.ShapeDtypeStruct]:
        """What a block has in shared memory.

        Tiles, as each lane has them; sums of a tile and warp: for each group of rows four tokens of
        each lane, then a square of each; sums of a tile and block, of this block's pairs of
        tokens: of each row, then the squares; the weights of the streams; and signals that each of
        these has come, and that the first sums were read.
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
