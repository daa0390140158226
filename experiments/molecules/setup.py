"""Parts of a run: its potential, loss, optimiser, length and scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from experiments._seeds import streams
from experiments.molecules.baseline import species_energies
from experiments.molecules.config import TrainConfig
from experiments.molecules.data import Batches
from experiments.molecules.errors import Errors, Prediction
from jaxgnn import models
from jaxgnn.graph import GraphBatch
from jaxgnn.training import LoopConfig, jit_apply

# Larger gradients, as of the first steps, are cut to this length.
_LONGEST_GRADIENT = 10.0
# Decay of the average of the parameters that is evaluated.
_AVERAGE = 0.99


class Traces:
    """Counts how often a function of a potential was traced, and so compiled.

    Attributes:
      count: number of traces so far.
    """

    def __init__(self):
        self.count = 0


class Loss(Traces):
    """Mean squared error of forces, plus a multiple of that of energies per atom.

    Args:
      scale: unit of both, the root mean square of the forces of training.
      energy_weight: weight of the energies.
    """

    def __init__(self, scale: float, energy_weight: float):
        super().__init__()
        self._scale, self._energy_weight = scale, energy_weight

    def __call__(self, model: nnx.Module, batch: GraphBatch, rngs: nnx.Rngs):
        self.count += 1
        found = models.energy_forces_stress(model, batch)
        sizes = jnp.maximum(batch.num_nodes_of_each, 1).astype(found.energy.dtype)
        per_atom = (found.energy - batch.globals["energy"]) / sizes
        energies = _mean_square(per_atom, batch.graph_mask) / self._scale**2
        apart = found.forces - batch.nodes["forces"]
        forces = _mean_square(apart, batch.node_mask[:, None]) / self._scale**2
        return self._energy_weight * energies + forces, {}


def _mean_square(errors: jax.Array, mask: jax.Array) -> jax.Array:
    counted = jnp.broadcast_to(mask, errors.shape)
    count = jnp.maximum(jnp.sum(counted), 1).astype(errors.dtype)
    return jnp.sum(jnp.where(counted, errors, 0) ** 2) / count


class Scores(Traces):
    """Validation and test errors of a potential; the batches stay on the device.

    Args:
      batches: batches of the data set.
    """

    def __init__(self, batches: Batches):
        super().__init__()
        self._samples = batches.samples
        self._parts = {
            name: (structures, jax.device_put(batches.part(structures)))
            for name, structures in batches.split._asdict().items()
            if name != "train"
        }
        self._predict = jit_apply(self._traced)

    def __call__(self, model: nnx.Module) -> dict[str, float]:
        return {
            f"{part} {name}": getattr(errors, name)
            for part in self._parts
            for errors in [Errors.of(self.predictions(model, part))]
            for name in ("energy", "forces")
        }

    def predictions(self, model: nnx.Module, part: str) -> list[Prediction]:
        """Energies and forces of the structures of a part."""
        structures, batches = self._parts[part]
        found = [one for batch in batches for one in self._of_batch(model, batch)]
        return [
            Prediction.of(self._samples[at], energy, forces)
            for at, (energy, forces) in zip(structures, found, strict=True)
        ]

    def _of_batch(self, model: nnx.Module, batch: GraphBatch) -> Sequence[tuple[float, np.ndarray]]:
        """Energy and forces of each structure of a batch."""
        found = self._predict(model, batch)
        count = int(np.sum(batch.graph_mask))
        ends = np.cumsum(batch.num_nodes_of_each)[:count]
        forces = np.split(np.asarray(found.forces, np.float64), ends)
        return list(zip(np.asarray(found.energy[:count], np.float64), forces, strict=False))

    def _traced(self, model: nnx.Module, batch: GraphBatch) -> models.Potential:
        self.count += 1
        return models.energy_forces_stress(model, batch)


def optimizer_of(config: TrainConfig) -> optax.GradientTransformation:
    """Adam with clipped gradients, whose learning rate falls to zero along a cosine."""
    rate = optax.cosine_decay_schedule(config.learning_rate, config.steps)
    return optax.chain(optax.clip_by_global_norm(_LONGEST_GRADIENT), optax.adam(rate))


def loop_of(config: TrainConfig) -> LoopConfig:
    """Length of the training, and the intervals of evaluations and saves."""
    return LoopConfig(
        steps=config.steps,
        eval_every=config.eval_every,
        checkpoint_every=config.checkpoint_every,
        seed=streams(config.seed).training,
        select="validation forces",
        select_mode="min",
        ema_decay=_AVERAGE,
        examples_per_step=config.batch_size,
        examples="structures",
    )


def potential_of(config: TrainConfig, batches: Batches) -> nnx.Module:
    """A potential whose initial energies and forces have the scale of those of training."""
    data, train = batches.dataset, batches.split.train
    options: dict[str, Any] = {
        "cutoff": config.radius(),
        "num_interactions": config.num_layers,
        "species_shift": species_energies(data, train),
        "species_scale": force_scale(batches),
        # The shift is a mean energy, not that of lone atoms, and runs of earlier versions resume.
        "subtract_lone_atoms": False,
        "implementation": config.implementation,
        "rngs": nnx.Rngs(streams(config.seed).parameters),
    }
    if config.model == "nequip":
        irreps = "+".join(f"{config.features}x{irrep}" for irrep in ("0e", "1o", "2e"))
        degree = np.mean(
            [batches.samples[at].num_edges / batches.samples[at].num_nodes for at in train]
        )
        return models.NequIP(
            len(data.elements), irreps, num_neighbours=max(float(degree), 1), **options
        )
    model = {"schnet": models.SchNet, "painn": models.PaiNN}[config.model]
    return model(len(data.elements), config.features, **options)


def force_scale(batches: Batches) -> float:
    """Root mean square of the components of the forces of training; one if all are zero."""
    forces = [batches.dataset[at]["forces"].ravel() for at in batches.split.train]
    return float(np.sqrt(np.mean(np.concatenate(forces) ** 2))) or 1.0
