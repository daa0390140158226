"""One training run of the language model, from options to a picture of its curves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from experiments._driver import Training, train_in_folder, train_seeds, warmed_adamw
from experiments._runs import finish, shown
from experiments._seeds import ONE_SEED, Repeats, streams, summarize
from experiments._text import Batch, all_pieces, random_pieces
from experiments.mhc.config import TrainConfig
from jaxgnn.datasets import TextDataset, pydoc_text
from jaxgnn.models import CausalLM
from jaxgnn.training import (
    FitResult,
    LoopConfig,
    RunFolder,
    Table,
    jit_apply,
    phase,
    plot_curves,
)

_BYTES = 256
# Options that a resumed run may change: they do not change the result. ``steps`` is not among them,
# because the learning rate's schedule ends with them.
_MAY_CHANGE = ("run", "fresh", "progress", "checkpoint_every", "report", "devices")


@dataclass(frozen=True)
class Outcome:
    """Results of a run.

    Attributes:
      label: names the run in tables and pictures.
      validation: mean cross entropy on the validation text after the last step, nats a byte.
      train: mean of the training loss over the last tenth of the steps.
      parameters: number of trained parameters.
      ms_per_step: mean time of a step; None if the run was already complete.
      history: a row for each step.
      curves: path of the picture.
    """

    label: str
    validation: float
    train: float
    parameters: int
    ms_per_step: float | None
    history: list[dict[str, float]]
    curves: Path


def train(config: TrainConfig, dataset: TextDataset | None = None) -> Outcome:
    """Trains one model and writes its curves, metrics and checkpoints to the run folder.

    Args:
      config: the options of the run.
      dataset: the text, if it is already read.

    Raises:
      ValueError: if an option is invalid.
    """
    config.check()
    seeds = streams(config.seed)
    if dataset is None:
        with phase("reading the help of Python", progress=config.progress):
            dataset = pydoc_text(seed=seeds.split)
    batches = random_pieces(dataset.train, config.context, config.batch_size, seeds.training)
    validation = all_pieces(dataset.validation, config.context, config.batch_size)
    loop = LoopConfig(
        steps=config.steps,
        eval_every=config.eval_every,
        checkpoint_every=config.checkpoint_every,
        seed=seeds.training,
    )
    training = Training(
        make_model(config),
        _optimizer(config),
        _loss,
        batches,
        batches(1),
        loop,
        _Evaluation(validation),
        config.mesh(),
    )
    return _report(config, *train_in_folder(config, training, _MAY_CHANGE))


def train_all(config: TrainConfig, repeats: Repeats = ONE_SEED) -> list[Outcome]:
    """Trains a run for each seed, and prints their mean if there are several.

    Raises:
      ValueError: if an option is invalid.
    """
    outcomes = train_seeds(train, config, repeats)
    if len(outcomes) > 1:
        losses = summarize([outcome.validation for outcome in outcomes], digits=4)
        print(f"{outcomes[0].label}, seeds {' '.join(map(str, repeats.seeds))}")
        print(f"validation loss: {losses} nats a byte")
    return outcomes


class _Evaluation:
    """Mean cross entropy over ``pieces [batches, batch, context + 1]``."""

    def __init__(self, pieces: np.ndarray):
        self._pieces = pieces
        self._loss = jit_apply(_cross_entropy)

    def __call__(self, model: CausalLM) -> dict[str, float]:
        losses = [self._loss(model, batch) for batch in self._pieces]
        return {"validation loss": float(np.mean(jax.device_get(losses), dtype=np.float64))}


def make_model(config: TrainConfig) -> CausalLM:
    """The language model of the options, with the initial parameters of their seed."""
    return CausalLM(
        _BYTES,
        config.features,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        hyper_connections=config.hyper_connections or None,
        recompute_every=config.recompute_every,
        implementation=config.implementation,
        dtype=jnp.dtype(config.dtype),
        rngs=nnx.Rngs(streams(config.seed).parameters),
    )


def _cross_entropy(model: CausalLM, batch: Batch | jax.Array) -> jax.Array:
    batch = jnp.asarray(batch)
    logits = model(batch[:, :-1]).astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:]).mean()


def _loss(model: CausalLM, batch: Batch, rngs: nnx.Rngs) -> tuple[jax.Array, dict[str, jax.Array]]:
    return _cross_entropy(model, batch), {}


def _optimizer(config: TrainConfig) -> optax.GradientTransformation:
    options: dict[str, Any] = {"b2": 0.95, "weight_decay": config.weight_decay, "last": 0.1}
    warm_up, steps = config.steps // 10, max(config.steps, 1)
    return warmed_adamw(config.learning_rate, steps, warm_up=warm_up, **options)


def _report(config: TrainConfig, result: FitResult[CausalLM], run: RunFolder) -> Outcome:
    curves = run.path / "curves.png"
    title = f"help of Python, {config.label()}, seed {config.seed}"
    labels = {"loss": "cross entropy, nats a byte"}
    plot_curves({config.label(): result.history}, curves, title=title, axis_labels=labels)
    last = result.history[-max(1, config.steps // 10) :]
    outcome = Outcome(
        label=config.label(),
        validation=last[-1]["validation loss"],
        train=float(np.mean([row["loss"] for row in last])),
        parameters=sum(p.size for p in jax.tree.leaves(nnx.state(result.model, nnx.Param))),
        ms_per_step=result.ms_per_step,
        history=result.history,
        curves=curves,
    )
    summary = {name: getattr(outcome, name) for name in ("validation", "train", "parameters")}
    run.write_json("result.json", {"metric": "cross entropy, nats a byte", **summary})
    pace = "" if outcome.ms_per_step is None else f", {outcome.ms_per_step:.0f} ms a step"
    bits = outcome.validation / math.log(2)
    print(f"{outcome.label}: {outcome.parameters:,} parameters{pace}")
    print(f"validation loss: {outcome.validation:.4f} ({bits:.3f} bits a byte)")
    print(f"curves: {shown(curves)}")
    own = Table(
        title="This run",
        columns=("text", "cross entropy, nats a byte"),
        rows=(("training", outcome.train), ("validation", outcome.validation)),
        note="training: mean of the last tenth of the steps",
    )
    finish(run.path, config.report, title=title, tables=[own])
    return outcome
