"""Training puzzles and held-out puzzles, as files and on the device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from experiments.sudoku.progress import Counts
from experiments.sudoku.recipes import Recipe
from jaxgnn.datasets import sudoku
from jaxgnn.datasets.sudoku import Puzzles
from jaxgnn.training import phase

MINIMAL = (22, 23, 24)
MIXED = tuple(range(20, 35))  # 17 to 19 can not be generated in numbers
# Seeds of the held-out puzzles start here, far from any likely training seed.
_HELD_OUT_SEED = 1_000_000


@dataclass(frozen=True)
class Data:
    """Puzzles of a run.

    Attributes:
      train: minimal puzzles for training, the hardest first.
      minimal: held-out minimal puzzles with 22, 23 and 24 givens.
      mixed: held-out puzzles with 20 to 34 givens.
    """

    train: Puzzles
    minimal: Puzzles
    mixed: Puzzles


def make_data(
    train: int, test: int, seed: int = 0, threads: int | None = None, *, progress: bool = False
) -> Data:
    """Generates all puzzles.

    Args:
      train: number of training puzzles, before those with a held-out solution are dropped.
      test: number of held-out puzzles of each level.
      seed: seed from which separate seeds for training and held-out puzzles are derived.
      threads: number of threads; None for all CPUs that the process may use.
      progress: whether to show progress on stderr.

    Raises:
      ValueError: if a number is not positive.
    """
    minimal, mixed = make_held_out(test, seed, threads, progress=progress)
    count = Counts("training puzzles", train, progress=progress)
    puzzles = sudoku.generate(train, seed=seed, threads=threads, progress=count)
    with phase("rating the training puzzles", progress=progress):
        puzzles = hardest_first(without(puzzles, minimal, mixed))
    return Data(puzzles, minimal, mixed)


def make_held_out(
    test: int, seed: int = 0, threads: int | None = None, *, progress: bool = False
) -> tuple[Puzzles, Puzzles]:
    """Generates the minimal and the mixed held-out puzzles, ``test`` of each level."""
    first = _HELD_OUT_SEED + 2 * seed
    options: dict[str, Any] = {"threads": threads}
    minimal, mixed = test * len(MINIMAL), test * len(MIXED)
    options["progress"] = Counts("minimal puzzles", minimal, progress=progress)
    held_out = sudoku.generate(minimal, MINIMAL, minimal=True, seed=first, **options)
    options["progress"] = Counts("puzzles of all levels", mixed, progress=progress)
    return held_out, sudoku.generate(mixed, MIXED, seed=first + 1, **options)


def without(puzzles: Puzzles, *held_out: Puzzles) -> Puzzles:
    """The puzzles that share no solution with a held-out one, so that no puzzle is in both."""
    known = np.unique(np.concatenate([_keys(data.solutions) for data in held_out]))
    return puzzles[~np.isin(_keys(puzzles.solutions), known)]


def hardest_first(puzzles: Puzzles) -> Puzzles:
    """Sorted by the guesses that a search needs, then by the cells that singles leave open."""
    rating = sudoku.difficulty(puzzles.puzzles)
    return puzzles[np.lexsort((-rating.open, -rating.guesses))]


def write(data: Data, folder: Path) -> None:
    """Writes ``train.csv``, ``minimal.csv`` and ``mixed.csv``, for ``read_palm``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "minimal", "mixed"):
        sudoku.write_palm(folder / f"{name}.csv", getattr(data, name))


def read(folder: Path) -> Data:
    """Reads the files of ``write``, or other puzzles with these names.

    Raises:
      FileNotFoundError: if a file is missing.
      ValueError: naming a file and an invalid line.
    """
    held_out = [sudoku.read_palm(folder / f"{name}.csv") for name in ("minimal", "mixed")]
    train = without(sudoku.read_palm(folder / "train.csv"), *held_out)
    return Data(hardest_first(train), *held_out)


def held_out(data: Data, recipe: Recipe) -> dict[str, Puzzles]:
    """Held-out puzzles of a recipe: minimal and mixed ones, or easier ones if it trains on them.

    Levels take turns in each, so that the first puzzles cover every level.
    """
    if recipe.fewest <= max(MINIMAL):
        return {"minimal": data.minimal, "mixed": data.mixed}
    givens = np.maximum(data.mixed.givens, recipe.fewest)
    return {f"{recipe.fewest}-givens": sudoku.add_givens(data.mixed, givens)}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Pool:
    """The training puzzles on the device, and the curriculum's bound.

    Attributes:
      puzzles: minimal ones, the hardest first.
      solutions: solutions of the puzzles.
      fewest: lower bound of the givens at this step, including a fraction.
    """

    puzzles: Int[Array, "count 81"]
    solutions: Int[Array, "count 81"]
    fewest: Float[Array, ""]


class Drawn(NamedTuple):
    """The boards of a step, if they are drawn before it.

    Attributes:
      puzzles: 0 where blank.
      solutions: their solutions.
    """

    puzzles: Int[Array, "batch 81"]
    solutions: Int[Array, "batch 81"]


def draw(key: Array, pool: Pool, recipe: Recipe) -> Drawn:
    """Draws a batch: random puzzles with random further givens and random symmetries.

    Returns:
      Puzzles and solutions, [batch, 81] int32.
    """
    pick_key, level_key, reveal_key, turn_key = jax.random.split(key, 4)
    count, batch = pool.puzzles.shape[0], recipe.batch_size
    places = jax.random.uniform(pick_key, (batch,)) ** recipe.hard
    rows = jnp.minimum((places * count).astype(jnp.int32), count - 1)
    puzzles, solutions = pool.puzzles[rows], pool.solutions[rows]
    # Equal numbers for each number of givens between the bounds.
    spread = jnp.maximum(recipe.most + 1 - pool.fewest, 1.0)
    givens = pool.fewest + spread * jax.random.uniform(level_key, (batch,))
    givens = jnp.floor(givens).astype(jnp.int32)
    keys = jax.random.split(reveal_key, batch)
    puzzles = jax.vmap(sudoku.reveal)(keys, puzzles, solutions, givens)
    if recipe.augment:
        keys = jax.random.split(turn_key, batch)
        puzzles, solutions = jax.vmap(sudoku.augment)(keys, puzzles, solutions)
    return Drawn(puzzles.astype(jnp.int32), solutions.astype(jnp.int32))


def fewest_givens(recipe: Recipe, step: int, steps: int) -> float:
    """The curriculum: the lower bound of givens at step ``step`` of ``steps``, counted from 1."""
    ramp = max(1.0, recipe.curriculum * steps)
    return recipe.easiest + (recipe.fewest - recipe.easiest) * min(1.0, (step - 1) / ramp)


def _keys(boards: np.ndarray) -> np.ndarray:
    """Views each board of [count, 81] as one value of [count] that compares as a whole."""
    boards = np.ascontiguousarray(boards)
    return boards.view(np.dtype((np.void, boards.shape[1])))[:, 0]
