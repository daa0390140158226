"""Memory and time of a training step, by steps of message passing and by batch."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from experiments._runs import shown
from experiments.sudoku.config import CostConfig
from experiments.sudoku.data import Pool, make_data
from experiments.sudoku.networks import make_network, training_loss
from experiments.sudoku.recipes import Recipe, recipe

_POLICIES: tuple[Any, ...] = (None, 1, "auto")


@dataclass(frozen=True)
class Cost:
    """Cost of one training step.

    Attributes:
      steps: number of message passing steps with gradients.
      warm_up: number of steps before these, without gradients.
      batch: number of puzzles.
      recompute_every: steps between stored states; None if all are stored.
      megabytes: size of temporary arrays in the compiled program.
      ms: time of loss and gradients; None where only memory is measured.
    """

    steps: int
    warm_up: int
    batch: int
    recompute_every: int | str | None
    megabytes: float
    ms: float | None


def cost(config: CostConfig) -> list[Cost]:
    """Prints memory by steps, with and without rematerialisation, and time by steps and batch.

    Raises:
      ValueError: if an option is invalid.
    """
    config.check()
    base = recipe(config.recipe)
    given: dict[str, Any] = {"features": config.features, "dtype": config.dtype}
    base = replace(base, **{name: value for name, value in given.items() if value is not None})
    pool = _pool()
    batch, some, most = max(config.batches), min(config.steps), max(config.steps)
    table = []

    def add(steps: int, batch: int, policy: Any, warm_up: int = 0, *, timed: bool) -> None:
        settings = replace(
            base, num_steps=steps, batch_size=batch, recompute_every=policy, warm_up=warm_up
        )
        table.append(_measure(settings, pool, config.repeats if timed else 0))
        print(_line(table[-1]), flush=True)

    print(f"{'steps':>5}  {'warm-up':>7}  {'batch':>5}  {'kept':>12}  {'MB':>9}  {'ms':>9}")
    for policy in _POLICIES:
        for steps in config.steps:
            add(steps, batch, policy, timed=policy is None)
    if base.network != "gated":
        for warm_up in (0, most - some):
            add(some, batch, None, warm_up, timed=False)
    for fewer in sorted(config.batches)[:-1]:
        add(some, fewer, None, timed=True)
    config.out.mkdir(parents=True, exist_ok=True)
    file = config.out / f"cost-{config.recipe}.json"
    file.write_text(json.dumps([vars(row) for row in table], indent=2) + "\n")
    print(f"table: {shown(file)}")
    return table


def _pool() -> Pool:
    puzzles = make_data(64, 1).train
    return Pool(jnp.array(puzzles.puzzles), jnp.array(puzzles.solutions), jnp.float32(20))


def _measure(settings: Recipe, pool: Pool, repeats: int) -> Cost:
    graphdef, state = nnx.split(make_network(settings))

    @jax.jit
    def step(state, key):
        def loss(state):
            model = nnx.merge(graphdef, state)
            return training_loss(model, pool, nnx.Rngs(key), settings)[0]

        return jax.value_and_grad(loss)(state)

    key = jax.random.key(0)
    compiled = step.lower(state, key).compile()
    ms = None
    if repeats:
        jax.block_until_ready(compiled(state, key))
        start = time.perf_counter()
        for _ in range(repeats):
            jax.block_until_ready(compiled(state, key))
        ms = 1e3 * (time.perf_counter() - start) / repeats
    memory = compiled.memory_analysis()
    if memory is None:
        raise NotImplementedError("cost: this platform does not say what memory programs take")
    return Cost(
        steps=settings.num_steps,
        warm_up=settings.warm_up,
        batch=settings.batch_size,
        recompute_every=settings.recompute_every,
        megabytes=memory.temp_size_in_bytes / 1e6,
        ms=ms,
    )


def _line(row: Cost) -> str:
    names = {None: "everything", 1: "states", "auto": "some states"}
    warm_up = f"0 to {row.warm_up}" if row.warm_up else "0"
    ms = "-" if row.ms is None else f"{row.ms:.1f}"
    kept = names[row.recompute_every]
    return (
        f"{row.steps:>5}  {warm_up:>7}  {row.batch:>5}  {kept:>12}  {row.megabytes:9,.1f}  {ms:>9}"
    )
