"""Times a whole equivariant potential on silicon, with other libraries' convolutions beside ours.

``python -m experiments.benchmarks.potential`` takes ``models.NequIP`` with features and harmonics
up to degree 3. Rows have the milliseconds of energies and forces of one crystal, or of the loss of
energies and forces of a batch with its gradient to all parameters, without an optimizer; and the
program's own memory. float32, with products in the default precision of JAX.

Peers run where they are installed: e3nn-jax, and cuequivariance-jax with its kernels. Their models
have the same parameters, and must have our energies, forces and loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from experiments.benchmarks._command import command
from experiments.benchmarks._equivariant_peers import PEERS, check_candidates, check_equal
from experiments.benchmarks._potential_peers import CANDIDATES, potential
from experiments.benchmarks._report import Column, Output, Row, append_rows, header, line
from experiments.benchmarks._workloads import Platform, Scale
from jaxgnn import models
from jaxgnn.graph import GraphBatch, GraphSample
from jaxgnn.testing.timing import device_description, measure

_SIDE = 5.43  # of the cube of eight atoms, in Å
_NOISE = 0.05
_FACES = np.array([[0, 0, 0], [0, 2, 2], [2, 0, 2], [2, 2, 0]]) / 4
_DIAMOND = np.concatenate([_FACES, _FACES + 0.25])  # in sides of the cube

COLUMNS = (
    Column("workload", "workload", 13),
    Column("candidate", "candidate", 14),
    Column("atoms", "atoms", 6, "d"),
    Column("edges", "edges", 7, "d"),
    Column("forces ms", "forces_ms", 10, ".3f"),
    Column("training ms", "training_ms", 11, ".3f"),
    Column("MB", lambda row: row.get("forces_mb", row.get("training_mb")), 6, ".0f"),
)


@dataclass(frozen=True)
class Silicon:
    """Crystals of silicon with noise of the positions, and a network for them.

    Attributes:
      name: name of the workload in the tables.
      cubes: number of cubes of eight atoms along each side of a crystal.
      graphs: number of crystals in a batch, which differ by their noise.
      cutoff: in Å. Up to 6 an atom has 46 neighbours; the next 24 are at 6.65.
      irreps: irreps of the features.
      degree: largest degree of the harmonics.
      interactions: number of steps of the network.
      training: whether a loss and its gradient are timed, instead of energies and forces.
      candidates: those to be timed. Making weights again saves memory where edges are many.
    """

    name: str
    cubes: tuple[int, int, int]
    graphs: int = 1
    cutoff: float = 6.0
    irreps: str = "128x0e+64x1o+32x2e+32x3o"
    degree: int = 3
    interactions: int = 4
    training: bool = False
    candidates: tuple[str, ...] = CANDIDATES

    def batch(self) -> GraphBatch:
        """The crystals, with random forces as targets."""
        return GraphBatch.from_graphs([self._crystal(seed) for seed in range(self.graphs)])

    def model(self, candidate: str, neighbours: float) -> models.NequIP:
        """The network; ``neighbours`` is the mean number of them."""
        return potential(
            candidate,
            self.irreps,
            cutoff=self.cutoff,
            max_degree=self.degree,
            num_interactions=self.interactions,
            num_neighbours=neighbours,
            precision=None,
        )

    def _crystal(self, seed: int) -> GraphSample:
        rng = np.random.default_rng(seed)
        corners = np.indices(self.cubes).reshape(3, -1).T
        positions = _SIDE * (corners[:, None] + _DIAMOND).reshape(-1, 3)
        positions += _NOISE * rng.standard_normal(positions.shape)
        return models.atomic_sample(
            positions.astype(np.float32),
            np.zeros(len(positions), np.int32),
            self.cutoff,
            cell=_SIDE * np.diag(self.cubes),
            forces=0.1 * rng.standard_normal(positions.shape).astype(np.float32),
        )


_ON_CPU = {"cutoff": 2.8, "irreps": "4x0e+4x1o", "degree": 1, "interactions": 2}
_ON_GPU = {"cutoff": 2.8, "irreps": "64x0e+32x1o", "degree": 1, "interactions": 2}
_SMALL = (
    Silicon("silicon-64", (2, 2, 2)),
    Silicon("training-2", (1, 2, 2), graphs=2, interactions=2, training=True),
)
_WITH_WEIGHTS = tuple(name for name in CANDIDATES if name != "recomputed")
_FULL = (
    Silicon("silicon-64", (2, 2, 2), candidates=_WITH_WEIGHTS),
    Silicon("silicon-1000", (5, 5, 5), candidates=_WITH_WEIGHTS),
    Silicon("silicon-8000", (10, 10, 10)),
    # As many atoms and edges as a batch of 64 crystals of common training sets has.
    Silicon("training-64", (1, 2, 2), graphs=64, cutoff=6.67, training=True),
)


def _tiny(**options: Any) -> tuple[Silicon, ...]:
    return (
        Silicon("silicon-8", (1, 1, 1), **options),
        Silicon("training-2", (1, 1, 1), graphs=2, training=True, **options),
    )


WORKLOADS: dict[tuple[Platform, Scale], tuple[Silicon, ...]] = {
    ("cpu", "tiny"): _tiny(**_ON_CPU),
    ("cpu", "small"): _SMALL,
    ("cpu", "full"): _SMALL,
    ("gpu", "tiny"): _tiny(**_ON_GPU),
    ("gpu", "small"): _SMALL,
    ("gpu", "full"): _FULL,
}


@dataclass(frozen=True)
class Options(Output):
    """Settings of a run.

    Attributes:
      scale: "tiny", "small" or "full".
      candidates: which of "ours", "recomputed" (ours, whose kernels make the weights), "e3nn",
        "cuequivariance"; those that are not installed are left out. e3nn-jax runs on request, as
        it is slow and needs the most memory.
    """

    scale: Scale = "full"
    candidates: tuple[str, ...] = ("ours", "recomputed", "cuequivariance")

    def __post_init__(self):
        super().__post_init__()
        check_candidates("potential", self.candidates, CANDIDATES)


def forces_of(model: models.NequIP) -> tuple[Callable[..., Any], nnx.State]:
    """The function from parameters and a batch to energies and forces, and the parameters."""
    graphdef, parameters, rest = nnx.split(model, nnx.Param, ...)

    def forces(parameters, batch):
        found = models.energy_forces_stress(nnx.merge(graphdef, parameters, rest), batch)
        return found.energy, found.forces

    return forces, parameters


def loss_of(forces: Callable[..., Any]) -> Callable[..., Any]:
    """The function to a loss of energies of an atom and of forces, with its gradient."""

    def loss(parameters, batch):
        energies, found = forces(parameters, batch)
        of_atoms = energies * (batch.num_graphs / batch.graph.num_rows)
        return jnp.mean(of_atoms**2) + jnp.mean((found - batch.nodes["forces"]) ** 2)

    return jax.value_and_grad(loss)


def time_potential(workload: Silicon, batch: GraphBatch, name: str) -> Row:
    """Times one candidate; the fields of a row, with numbers by which candidates are compared."""
    atoms, edges = batch.graph.num_rows, batch.graph.num_edges
    function, parameters = forces_of(workload.model(name, edges / atoms))
    key = "training" if workload.training else "forces"
    function = loss_of(function) if workload.training else function
    compiled = jax.jit(function).lower(parameters, batch).compile()
    return {
        "atoms": atoms,
        "edges": edges,
        f"{key}_ms": measure(compiled, parameters, batch, jit=False).median_ms,
        f"{key}_mb": cast(Any, compiled.memory_analysis()).temp_size_in_bytes / 1e6,
        f"{key}_norms": [_norm(part) for part in compiled(parameters, batch)],
    }


def _norm(tree: Any) -> float:
    """The norm of all arrays of a tree together."""
    return float(np.linalg.norm([float(jnp.linalg.norm(leaf)) for leaf in jax.tree.leaves(tree)]))


def main(options: Options) -> list[Row]:
    """Prints the table, and appends its rows to ``potential.jsonl``."""
    device, rows = device_description(), []
    print(f"{device['device']}\n{header(COLUMNS)}")
    platform: Platform = "gpu" if device["platform"] == "gpu" else "cpu"
    installed = [name for name in options.candidates if PEERS[name].is_installed]
    for name in set(options.candidates).difference(installed):
        print(f"{name} is left out: {PEERS[name].package} is not installed")
    for workload in WORKLOADS[platform, options.scale]:
        batch, first = jax.device_put(workload.batch()), None
        for name in installed:
            if name not in workload.candidates:
                continue
            row: Row = {"op": "potential", "workload": workload.name, "candidate": name}
            row |= {"graphs": workload.graphs, "irreps": workload.irreps, **device}
            row |= time_potential(workload, batch, name)
            first = first or row
            check_equal(name, row, first)
            print(line(row, COLUMNS), flush=True)
            append_rows(options.rows / "potential.jsonl", [row])
            rows.append(row)
    return rows


if __name__ == "__main__":
    command(main, Options, __doc__)
