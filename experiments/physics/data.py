"""Simulated runs on the device, split into parts, and the graph between their particles."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from experiments._seeds import streams
from experiments.physics.config import TrainConfig
from jaxgnn import CSRGraph, datasets
from jaxgnn.datasets import ParticleMotion
from jaxgnn.graph import radius_graph, radius_graph_on_device

# Slots for neighbours beyond the most that any particle of the data has.
_SPARE = 3
# Frames whose neighbours are counted.
_LOOKED_AT = 500


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Bodies:
    """Properties of the particles and springs of some runs, which stay constant.

    Attributes:
      particles: mass and charge, [runs, particles, 2].
      springs: length and stiffness of each spring, [runs, springs, 2]; no springs for charges.
    """

    particles: Float[Array, "runs particles 2"]
    springs: Float[Array, "runs springs 2"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Runs:
    """Recorded runs.

    Attributes:
      positions: [runs, frames, particles, 2].
      bodies: the constants of each run.
    """

    positions: Float[Array, "runs frames particles 2"]
    bodies: Bodies


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Neighbours:
    """The edges between the particles of some runs, which have one graph of fixed shape.

    Attributes:
      graph: of one run, whose features have an axis of runs; or of all runs as one.
      features: of each edge; with an axis of runs if the graph is that of one run.
      overflow: whether a particle has more neighbours than there is space for.
    """

    graph: CSRGraph
    features: Float[Array, "*runs edges features"]
    overflow: Bool[Array, ""]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class World:
    """Rule that says which particles interact.

    Attributes:
      springs: the graph of the springs of a run; None if neighbours depend on positions.
      reach: distance beyond which particles do not interact; None for springs.
      box: side of the periodic box, or None.
      capacity: the most neighbours of a particle that are considered.
    """

    springs: CSRGraph | None
    reach: float | None = field(default=None, metadata={"static": True})
    box: float | None = field(default=None, metadata={"static": True})
    capacity: int = field(default=0, metadata={"static": True})

    @classmethod
    def of(cls, motion: ParticleMotion) -> World:
        """The springs of a data set, or space for the neighbours that its particles have."""
        if motion.senders is not None:
            return cls(_spring_graph(motion)[0])
        assert motion.reach is not None and motion.box is not None
        frames = motion.positions.reshape(-1, *motion.positions.shape[2:])
        frames = frames[:: max(1, len(frames) // _LOOKED_AT)]
        clouds = np.repeat(np.arange(len(frames)), motion.num_particles)
        points, box = frames.reshape(-1, 2), [motion.box] * 2
        most = int(radius_graph(points, motion.reach, clouds, box=box).most_neighbours)
        capacity = min(motion.num_particles - 1, most + _SPARE)
        return cls(None, motion.reach, motion.box, capacity)

    def edge_width(self) -> int:
        """Width of the features of edges."""
        return 3 if self.springs is None else 5

    def neighbours(self, x: Float[Array, "runs particles 2"], bodies: Bodies) -> Neighbours:
        """The edges between particles at positions: displacement, distance, kind of spring."""
        if self.springs is not None:
            graph = self.springs
            apart = x[:, graph.indices] - x[:, graph.receivers()]
            distances = jnp.linalg.norm(apart, axis=-1, keepdims=True)
            features = jnp.concatenate([apart, distances, bodies.springs], axis=-1)
            return Neighbours(graph, features, jnp.array(False))
        assert self.reach is not None and self.box is not None
        runs, count, _ = x.shape
        points = x.reshape(runs * count, 2)
        clouds = jnp.repeat(jnp.arange(runs, dtype=jnp.int32), count)
        edges = radius_graph_on_device(
            points, self.reach, clouds, max_neighbours=self.capacity, box=jnp.full(2, self.box)
        )
        apart = edges.displacements(points)
        features = jnp.concatenate([apart, edges.distances(points)[:, None]], axis=-1) / self.reach
        return Neighbours(edges.graph(), features, edges.overflow)


def _spring_graph(motion: ParticleMotion) -> tuple[CSRGraph, np.ndarray]:
    """The graph of the springs, and the spring of each of its edge slots."""
    assert motion.senders is not None and motion.receivers is not None
    return CSRGraph.from_edges(
        motion.senders,
        motion.receivers,
        motion.num_particles,
        edge_data=np.arange(len(motion.senders)),
    )


def on_device(motion: ParticleMotion) -> Runs:
    """Runs as arrays of the device, springs in the order of the edge slots of their graph."""
    particles = np.stack([motion.masses, motion.charges], axis=-1)
    springs = np.zeros((motion.num_runs, 0, 2), np.float32)
    if motion.lengths is not None and motion.stiffness is not None:
        order = np.asarray(_spring_graph(motion)[1])
        springs = np.stack([motion.lengths, motion.stiffness], axis=-1)[:, order]
    return Runs(jnp.asarray(motion.positions), Bodies(jnp.asarray(particles), jnp.asarray(springs)))


@dataclass(frozen=True)
class Parts:
    """The runs of a training.

    Attributes:
      train: the runs to train on.
      validation: the runs to choose the best step by.
      test: the runs to score with.
    """

    train: ParticleMotion
    validation: ParticleMotion
    test: ParticleMotion


def simulate(config: TrainConfig) -> Parts:
    """Simulates the runs of the options, and splits them; all of them have the same springs."""
    fewer = max(1, config.runs // 4)
    motion = datasets.particles(
        config.system,
        runs=config.runs + 2 * fewer,
        frames=config.frames,
        num_particles=config.particles,
        seed=streams(config.seed).split,
    )
    ends = config.runs, config.runs + fewer
    pieces = slice(0, ends[0]), slice(*ends), slice(ends[1], None)
    return Parts(*(_runs_of(motion, piece) for piece in pieces))


def _runs_of(motion: ParticleMotion, piece: slice) -> ParticleMotion:
    """Some of the runs of a data set."""
    names = ("positions", "masses", "charges", "lengths", "stiffness")
    rows = {name: getattr(motion, name) for name in names}
    return replace(motion, **{n: rows[n][piece] for n in names if rows[n] is not None})
