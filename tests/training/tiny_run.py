"""A small run with dropout, batch statistics, momentum and a best model: all there is to resume.

Imported by the tests, and run by `test_kill.py` as a process of its own:
`python tiny_run.py FOLDER SECONDS_A_STEP [NAME]` prints a digest of the final and the best
parameters. With NAME, it kills itself just before it renames a file or folder to a path that ends
in NAME.
"""

import dataclasses
import hashlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxgnn.training import FitResult, LoopConfig, RunFolder, fit, jit_apply

LOOP = LoopConfig(
    steps=18,
    eval_every=4,
    checkpoint_every=6,
    log_every=5,
    seed=7,
    select="validation accuracy",
)


@dataclasses.dataclass(frozen=True)
class Config:
    """Configuration of the run, as an experiment would have it."""

    width: int = 16
    learning_rate: float = 3e-3
    loop: LoopConfig = LOOP


class Classifier(nnx.Module):
    """Two layers; batch statistics, and dropout from the loop's random numbers and from its own."""

    def __init__(self, width: int, *, rngs: nnx.Rngs):
        self.first = nnx.Linear(2, width, rngs=rngs)
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.dropout = nnx.Dropout(0.2)
        self.own_dropout = nnx.Dropout(0.1, rngs=rngs)
        self.last = nnx.Linear(width, 2, rngs=rngs)
        # Weakly typed, as users write it.
        self.scale = nnx.Param(jnp.full((), 1.0))

    def __call__(self, x: jax.Array, rngs: nnx.Rngs | None = None) -> jax.Array:
        x = jax.nn.relu(self.norm(self.first(x)))
        x = self.own_dropout(self.dropout(x, rngs=rngs))
        return self.scale[...] * self.last(x)


def make_data(rows: int, seed: int) -> dict[str, jax.Array]:
    """Points in the plane; the class is whether they lie outside a circle."""
    x = np.random.default_rng(seed).normal(size=(rows, 2)).astype(np.float32)
    return {"x": jnp.array(x), "y": jnp.array((x**2).sum(1) > 1.4, jnp.int32)}


def loss_fn(model: Classifier, batch: dict[str, jax.Array], rngs: nnx.Rngs):
    """Cross-entropy; logs the accuracy on the batch."""
    logits = model(batch["x"], rngs)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()
    return loss, {"accuracy": (logits.argmax(-1) == batch["y"]).mean()}


predict = jit_apply(lambda model, x: model(x).argmax(-1))


def train(
    run: RunFolder | None,
    config: Config,
    *,
    model: nnx.Module | None = None,
    loss=loss_fn,
    before_step: Callable[[int], None] = lambda step: None,
    **options: Any,
) -> FitResult:
    """Trains a fresh classifier on batches that depend on the step alone.

    `before_step` is called with the number of each step; the tests end runs in it.
    """
    data, held_out = make_data(256, seed=0), make_data(128, seed=1)

    def batches(step: int) -> dict[str, jax.Array]:
        before_step(step)
        rows = np.random.default_rng(step).choice(256, size=32, replace=False)
        return {name: array[rows] for name, array in data.items()}

    def evaluate(model: Classifier) -> dict[str, float]:
        hits = predict(model, held_out["x"]) == held_out["y"]
        return {"validation accuracy": hits[:64].mean(), "test accuracy": hits[64:].mean()}

    defaults: dict[str, Any] = {
        "config": config.loop,
        "evaluate": evaluate,
        "run": run,
        "progress": False,
    }
    return fit(
        Classifier(config.width, rngs=nnx.Rngs(0)) if model is None else model,
        optax.adamw(config.learning_rate),
        loss,
        batches,
        **defaults | options,
    )


def digest(model: nnx.Module | None) -> str:
    """A hash of all bits of a model's arrays, random streams included."""
    arrays = jax.tree.leaves(nnx.split(model)[1])
    plain = [
        jax.random.key_data(a) if jnp.issubdtype(a.dtype, jax.dtypes.prng_key) else a
        for a in arrays
    ]
    return hashlib.sha256(b"".join(np.asarray(a).tobytes() for a in plain)).hexdigest()


def damaged(data: bytes, draw: random.Random) -> bytes:
    """The bytes with 1 to 64 of them zeroed or replaced, one bit flipped, or an end lost."""
    changed, begin = bytearray(data), draw.randrange(len(data))
    end = min(begin + draw.randint(1, 64), len(data))
    kind = draw.choice(["zero", "replace", "flip", "truncate", "append"])
    if kind == "zero":
        changed[begin:end] = bytes(end - begin)
    elif kind == "replace":
        changed[begin:end] = draw.randbytes(end - begin)
    elif kind == "flip":
        changed[begin] ^= 1 << draw.randrange(8)
    elif kind == "truncate":
        del changed[begin:]
    else:
        changed += draw.randbytes(64)
    return bytes(changed)


def kill_before_rename_to(name: str) -> None:
    """Lets this process send itself SIGKILL: the moment is exact, and nothing can clean up."""

    def hook(event: str, arguments: tuple) -> None:
        if event == "os.rename" and os.fsdecode(arguments[1]).endswith(name):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def main() -> None:
    folder, seconds, *kill = sys.argv[1:]
    for name in kill:
        kill_before_rename_to(name)
    run = RunFolder(folder, Config())
    result = train(run, Config(), before_step=lambda step: time.sleep(float(seconds)))
    print(digest(result.model), digest(result.best_model), result.best)


if __name__ == "__main__":
    main()
