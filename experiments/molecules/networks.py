"""The potential of the options, with its energy scale from the training structures."""

from __future__ import annotations

from typing import Any

import numpy as np
from flax import nnx

from experiments._seeds import streams
from experiments.molecules.baseline import species_energies
from experiments.molecules.config import TrainConfig
from experiments.molecules.data import Batches
from jaxgnn import models


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
