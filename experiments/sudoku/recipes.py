"""One recipe for each network, and a small one for CPUs.

Puzzles in the data are minimal. Training adds givens, so that each drawn puzzle has a number of
givens between two bounds. The lower bound falls during training: the curriculum. A minimal puzzle
that has more givens than the drawn number is not changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jaxgnn._errors import bad_input

Name = Literal["tiny", "candidate", "harder", "equivariant", "palm", "seed"]
Network = Literal["candidate", "equivariant", "relational", "gated"]


@dataclass(frozen=True)
class Recipe:
    """Hyper-parameters of a run.

    Attributes:
      network: ``CandidateNetwork``, ``EquivariantRelationalNetwork``,
        ``RecurrentRelationalNetwork`` or ``SudokuGNN``.
      features: width of a state.
      num_steps: number of message passing steps in training; all of them count in the loss except
        for ``gated``.
      test_steps: number of steps of message passing in evaluation.
      warm_up: largest number of steps before those of training, without gradients; half of the
        batches have none, the others any number up to this.
      dropout: dropout of edges, and in ``gated`` also of features.
      augment: whether puzzles are transformed by random symmetries; an equivariant network has
        them built in.
      batch_size: number of puzzles in a step.
      steps: number of optimiser steps, unless the options give a number of steps or of minutes.
      learning_rate: the highest, after the warm-up; it falls to zero along a cosine.
      weight_decay: weight decay of AdamW, on matrices.
      weight_penalty: weight penalty in the loss of the published network.
      ema_decay: decay of the average of parameters that is evaluated.
      puzzles: number of puzzles to train on.
      hard: exponent by which hard puzzles are drawn more often; 1 draws all equally often.
      easiest: number of givens at the start of training.
      fewest: lower bound of the givens at the end of the curriculum.
      most: upper bound of the givens.
      curriculum: part of the training in which the lower bound falls.
      recompute_every: steps between stored states; None keeps all.
      dtype: dtype of the computation; parameters are float32.
    """

    network: Network
    features: int
    num_steps: int
    test_steps: int
    batch_size: int
    steps: int
    learning_rate: float
    warm_up: int = 0
    dropout: float = 0.0
    augment: bool = True
    weight_decay: float = 0.0
    weight_penalty: float = 0.0
    ema_decay: float = 0.999
    puzzles: int = 1_000_000
    hard: float = 1.0
    easiest: int = 45
    fewest: int = 10
    most: int = 34
    curriculum: float = 0.1
    recompute_every: int | Literal["auto"] | None = None
    dtype: Literal["float32", "bfloat16"] = "bfloat16"


_RECIPES = {
    # Two CPU cores, three minutes, puzzles that are mostly solved by singles.
    "tiny": Recipe(
        "candidate",
        features=32,
        num_steps=8,
        test_steps=32,
        warm_up=8,
        batch_size=16,
        steps=300,
        learning_rate=4e-3,
        augment=False,
        ema_decay=0.9,
        puzzles=5_000,
        fewest=30,
        most=45,
        curriculum=0.5,
        dtype="float32",
    ),
    "candidate": Recipe(
        "candidate",
        features=96,
        num_steps=16,
        test_steps=64,
        warm_up=32,
        batch_size=256,
        steps=20_000,
        learning_rate=2e-3,
        augment=False,
        weight_decay=0.01,
        hard=1.3,
    ),
    # Continues from trained weights: the hardest puzzles most often, and the states of long runs.
    "harder": Recipe(
        "candidate",
        features=96,
        num_steps=16,
        test_steps=128,
        warm_up=112,
        batch_size=128,
        steps=30_000,
        learning_rate=8e-4,
        augment=False,
        weight_decay=0.01,
        hard=4.0,
        fewest=0,
        curriculum=0.0,
    ),
    "equivariant": Recipe(
        "equivariant",
        features=64,
        num_steps=16,
        test_steps=64,
        warm_up=32,
        batch_size=128,
        steps=10_000,
        learning_rate=1e-3,
        augment=False,
        weight_decay=0.01,
        recompute_every=1,
        hard=1.3,
    ),
    # 2e-4 and 64 puzzles as published; here batches are larger.
    "palm": Recipe(
        "relational",
        features=96,
        num_steps=32,
        test_steps=64,
        batch_size=256,
        steps=20_000,
        learning_rate=1e-3,
        weight_penalty=1e-4,
    ),
    "seed": Recipe(
        "gated",
        features=96,
        num_steps=32,
        test_steps=32,  # its loss is that of the last step of training
        dropout=0.1,
        batch_size=256,
        steps=20_000,
        learning_rate=1e-3,
        weight_decay=0.01,
        curriculum=0.5,
    ),
}


def recipe(name: Name) -> Recipe:
    """The hyper-parameters of that name.

    Raises:
      ValueError: if there is no such recipe.
    """
    if name not in _RECIPES:
        raise bad_input("train", "--recipe", f"one of {', '.join(_RECIPES)}", repr(name))
    return _RECIPES[name]
