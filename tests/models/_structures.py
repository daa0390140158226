"""Small structures of atoms, and a pair potential, for the tests of potentials."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn import models, nn, ops
from jaxgnn.graph import GraphBatch

CUTOFF = 2.5
# A skewed cell, narrower than the cutoff along its last vector.
CELL = np.array([[3.0, 0.2, 0.0], [0.4, 2.8, 0.1], [0.1, 0.5, 2.2]])


def structure(atoms: int, seed: int, *, cell: Any = CELL, dtype: Any = np.float32, **options: Any):
    """A sample of atoms of two species at random places that are not too near."""
    rng = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(*[np.arange(2)] * 3), -1).reshape(-1, 3)[:atoms] * 1.2
    positions = (grid + rng.uniform(-0.2, 0.2, grid.shape)).astype(dtype)
    return models.atomic_sample(positions, np.arange(atoms) % 2, CUTOFF, cell=cell, **options)


def pair_energies(batch: GraphBatch) -> Any:
    """Energies of a smooth pair potential that vanishes at the cutoff."""
    distances = models.atomic_edges(batch).distances
    inside = jnp.maximum(1 - distances / CUTOFF, 0) ** 3
    energies = ops.aggregate(batch.graph, (inside * jnp.cos(2 * distances))[:, None], "sum")
    return nn.pool(energies, batch, "sum")[:, 0]


def moved(batch: GraphBatch, positions: Any, cells: Any | None = None) -> GraphBatch:
    """The batch with other positions and cells."""
    of_graphs = batch.globals if cells is None else {**batch.globals, "cell": cells}
    nodes = {**batch.nodes, "positions": positions}
    return dataclasses.replace(batch, nodes=nodes, globals=of_graphs)


def spoil_padding(batch: GraphBatch) -> GraphBatch:
    """Fills the padding of a batch with NaN, and with species and images out of range."""
    is_node, is_graph, is_edge = batch.node_mask, batch.graph_mask, batch.edge_mask()

    def spoiled(mask: Any, values: Any) -> Any:
        bad = np.nan if values.dtype.kind == "f" else np.iinfo(values.dtype).max
        return np.where(np.expand_dims(mask, tuple(range(1, values.ndim))), values, bad)

    return dataclasses.replace(
        batch,
        nodes={name: spoiled(is_node, values) for name, values in batch.nodes.items()},
        edges={name: spoiled(is_edge, values) for name, values in batch.edges.items()},
        globals={name: spoiled(is_graph, values) for name, values in batch.globals.items()},
    )


def assert_slopes(model: Any, batch: GraphBatch, step: float = 1e-5) -> None:
    """Forces and stresses are central differences of energies, in float64, along random steps."""
    rng = np.random.default_rng(5)
    is_node = batch.node_mask[:, None]
    shift = np.where(is_node, rng.normal(size=(len(is_node), 3)), 0)
    strain = rng.normal(size=(batch.num_graphs, 3, 3))
    strain = strain + strain.swapaxes(1, 2)
    energies = jax.jit(lambda batch: model(batch))
    positions, cells = batch.nodes["positions"], batch.globals["cell"]

    def slope(deform: Any) -> Any:
        ends = [np.asarray(energies(moved(batch, *deform(by)))) for by in (step, -step)]
        return (ends[0] - ends[1]) / (2 * step)

    def stretched(by: float) -> Any:
        of_nodes = np.einsum("ni,nij->nj", positions, strain[batch.graph_ids])
        return positions + by * of_nodes, cells + by * np.einsum("gai,gij->gaj", cells, strain)

    potential = models.energy_forces_stress(model, batch, stress=True)
    works = np.zeros(batch.num_graphs)
    np.add.at(works, batch.graph_ids, -np.sum(np.asarray(potential.forces) * shift, axis=1))
    expected = slope(lambda by: (positions + by * shift,))
    np.testing.assert_allclose(works, expected, rtol=1e-6, atol=1e-7)
    volumes = np.abs(np.linalg.det(cells))
    works = np.einsum("gij,gij->g", np.asarray(potential.stress), strain) * volumes
    np.testing.assert_allclose(works, slope(stretched), rtol=1e-6, atol=1e-7)
