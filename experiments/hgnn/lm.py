"""Perplexity of language models by number of experts, coupled and uncoupled."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from experiments._driver import Training, train_in_folder, warmed_adamw
from experiments._runs import finish, shown
from experiments._seeds import ONE_SEED, Repeats, paired, run_all, streams, summarize
from experiments._text import all_pieces, ngram_loss, random_pieces
from experiments.hgnn.config import LMConfig, LMRun, coupling_name
from jaxgnn.datasets import TextDataset, pydoc_text
from jaxgnn.models import ExpertGraphLM, expert_output_orthogonality, expert_weight_orthogonality
from jaxgnn.training import (
    FitResult,
    LoopConfig,
    RunFolder,
    Table,
    jit_apply,
    phase,
    plot_curves,
)
from jaxgnn.training.plots import colours

_BYTES = 256
# Context lengths, in bytes, of the n-gram baselines.
_ORDERS = (0, 1, 2, 3)
# Options that a resumed run may change: they do not change the result. ``steps`` is not among them,
# because the learning rate's schedule ends with them.
_MAY_CHANGE = ("run", "fresh", "progress", "checkpoint_every", "report", "devices")

# Pieces of text, and the current factor of the orthogonality losses.
Batch = tuple[np.ndarray, np.float32]


@dataclass(frozen=True)
class Outcome:
    """Results of a run.

    Attributes:
      run: the options of the run.
      validation: mean cross entropy on the validation text after the last step, nats a byte.
      parameters: number of trained parameters.
      ms_per_step: mean time of a step; None if the run was already complete.
      history: a row for each step.
    """

    run: LMRun
    validation: float
    parameters: int
    ms_per_step: float | None
    history: list[dict[str, float]]

    @property
    def perplexity(self) -> float:
        """The perplexity of a byte of the validation text; infinite if too large for a float."""
        return _perplexity(self.validation)


@dataclass(frozen=True)
class Comparison:
    """The outcomes of a comparison.

    Attributes:
      outcomes: for each number of experts and coupling, the outcomes of all seeds.
      table: losses, paired differences, parameters and time.
    """

    outcomes: list[list[Outcome]]
    table: Table


def lm(
    config: LMConfig, repeats: Repeats = ONE_SEED, *, dataset: TextDataset | None = None
) -> Comparison:
    """Trains every number of experts with every coupling; runs of a seed share the same batches.

    Args:
      config: the options of the runs.
      repeats: seeds, and number of concurrent runs.
      dataset: the text, if it is already read; else its split is that of each seed.

    Raises:
      ValueError: if an option is invalid.
    """
    config.check()
    repeats.check("lm")
    work = train if dataset is None else functools.partial(train, dataset=dataset)
    runs = [run for variant in config.variants() for run in repeats.of(variant)]
    flat, count = run_all(work, runs, repeats.processes), len(repeats.seeds)
    outcomes = [flat[i : i + count] for i in range(0, len(flat), count)]
    texts = [dataset or pydoc_text(seed=streams(seed).split) for seed in repeats.seeds]
    table = _table(outcomes, texts)
    picture, curves = config.run / "perplexity.png", config.run / "curves.png"
    title = f"help of Python, language model, {count} seed{'s' * (count > 1)}"
    _plot(outcomes, title, picture)
    histories = {runs[0].run.label(): [run.history for run in runs] for runs in outcomes}
    labels = {"loss": "cross entropy, nats a byte"}
    fields = ["validation loss"]
    plot_curves(histories, curves, fields=fields, title=title, axis_labels=labels)
    print(f"\n{table.text()}\npictures: {shown(picture.absolute())}, {shown(curves.absolute())}")
    return Comparison(outcomes, table)


def train(run: LMRun, dataset: TextDataset | None = None) -> Outcome:
    """Trains one model and writes its report, metrics and checkpoints to the run folder.

    Args:
      run: the options of the run.
      dataset: the text, if it is already read.

    Raises:
      ValueError: if an option is invalid.
    """
    seeds = streams(run.seed)
    if dataset is None:
        with phase("reading the help of Python", progress=run.progress):
            dataset = pydoc_text(seed=seeds.split)
    pieces = random_pieces(dataset.train, run.context, run.batch_size, seeds.training)
    validation = all_pieces(dataset.validation, run.context, run.batch_size)
    warm_up = max(1, run.steps // 10)

    def batches(step: int) -> Batch:
        return pieces(step), np.float32(min(1.0, step / warm_up))

    loop = LoopConfig(
        steps=run.steps,
        eval_every=run.eval_every,
        checkpoint_every=run.checkpoint_every,
        seed=seeds.training,
    )
    training = Training(
        _make_model(run),
        _optimizer(run),
        _Loss(run),
        batches,
        batches(1),
        loop,
        _Evaluation(validation),
        run.mesh(),
    )
    return _report(run, *train_in_folder(run, training, _MAY_CHANGE))


class _Evaluation:
    """Mean cross entropy over ``pieces [batches, batch, context + 1]``."""

    def __init__(self, pieces: np.ndarray):
        self._pieces = pieces
        self._loss = jit_apply(lambda model, batch: _cross_entropy(model(batch[:, :-1]), batch))

    def __call__(self, model: ExpertGraphLM) -> dict[str, float]:
        losses = [self._loss(model, batch) for batch in self._pieces]
        return {"validation loss": float(np.mean(jax.device_get(losses), dtype=np.float64))}


def _make_model(run: LMRun) -> ExpertGraphLM:
    alone = run.coupling == "alone"
    return ExpertGraphLM(
        _BYTES,
        run.features,
        num_layers=run.num_layers,
        num_heads=run.num_heads,
        num_experts=run.experts,
        coupling="hypergraph" if run.coupling == "alone" else run.coupling,
        strategy="alone" if alone else run.strategy,
        coupler_layers=run.coupler_layers,
        implementation=run.implementation,
        dtype=jnp.dtype(run.dtype),
        rngs=nnx.Rngs(streams(run.seed).parameters),
    )


def _cross_entropy(logits: jax.Array, pieces: jax.Array) -> jax.Array:
    wide = logits.astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(wide, pieces[:, 1:]).mean()


class _Loss:
    """Cross entropy, plus the configured orthogonality losses."""

    def __init__(self, run: LMRun):
        self._run = run

    def __call__(
        self, model: ExpertGraphLM, batch: Batch, rngs: nnx.Rngs
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        run, (pieces, warmth) = self._run, batch
        pieces = jnp.asarray(pieces)
        logits, experts = model(pieces[:, :-1], return_experts=True)
        loss, metrics = _cross_entropy(logits, pieces), {}
        if run.output_orthogonality:
            metrics["output orthogonality"] = expert_output_orthogonality(experts)
            loss += warmth * run.output_orthogonality * metrics["output orthogonality"]
        if run.weight_orthogonality:
            metrics["weight orthogonality"] = expert_weight_orthogonality(model)
            loss += warmth * run.weight_orthogonality * metrics["weight orthogonality"]
        return loss, metrics


def _optimizer(run: LMRun) -> optax.GradientTransformation:
    options: dict[str, Any] = {
        "b2": 0.95,
        "weight_decay": run.weight_decay,
        "last": 0.1,
        "decayed": _decayed,
    }
    warm_up, steps = run.steps // 10, max(run.steps, 1)
    return warmed_adamw(run.learning_rate, steps, warm_up=warm_up, **options)


def _decayed(params):
    """Mask of decayed parameters: no scales, biases or hyperedge weights, stacked or not."""
    names = {"kernel", "embedding"}
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key in names, params)


def _report(run: LMRun, result: FitResult[ExpertGraphLM], folder: RunFolder) -> Outcome:
    outcome = Outcome(
        run=run,
        validation=result.history[-1]["validation loss"],
        parameters=sum(p.size for p in jax.tree.leaves(nnx.state(result.model, nnx.Param))),
        ms_per_step=result.ms_per_step,
        history=result.history,
    )
    summary = {name: getattr(outcome, name) for name in ("validation", "perplexity", "parameters")}
    folder.write_json("result.json", {"metric": "cross entropy, nats a byte", **summary})
    name = f"{run.label()}, seed {run.seed}"
    print(f"{name}: validation perplexity {outcome.perplexity:.3f} a byte", flush=True)
    curves = folder.path / "curves.png"
    labels = {"loss": "cross entropy, nats a byte"}
    plot_curves(
        {run.label(): result.history}, curves, title=f"help of Python, {name}", axis_labels=labels
    )
    own = Table(
        title="This run",
        columns=("validation loss, nats a byte", "perplexity of a byte", "parameters"),
        rows=((outcome.validation, outcome.perplexity, outcome.parameters),),
    )
    finish(folder.path, run.report, title=f"help of Python: {name}", tables=[own])
    return outcome


def _plot(outcomes: Sequence[list[Outcome]], title: str, path: Path) -> None:
    """Draws perplexity against the number of experts, with the deviation over seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.8, 3.6), dpi=120, layout="constrained")
    axes = figure.subplots()
    single = [runs for runs in outcomes if runs[0].run.experts == 1]
    several = [runs for runs in outcomes if runs[0].run.experts > 1]
    names = list(dict.fromkeys(coupling_name(runs[0].run) for runs in several)) or ["1 expert"]
    shades = colours(names)
    for name in names:
        same = single + [runs for runs in several if coupling_name(runs[0].run) == name]
        points = [[run.perplexity for run in runs] for runs in same]
        axes.errorbar(
            [runs[0].run.experts for runs in same],
            [np.mean(p) for p in points],
            yerr=[np.std(p, ddof=1) for p in points] if len(points[0]) > 1 else None,
            marker="o",
            capsize=3,
            color=shades[name],
            label=name,
        )
    counts = sorted({runs[0].run.experts for runs in outcomes})
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_xlabel("experts in a layer")
    axes.set_ylabel("validation perplexity of a byte")
    run = outcomes[0][0].run
    axes.set_title(f"{title}\n{run.num_layers} layers, width {run.features}, {run.steps} steps")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, format="png")


def _table(outcomes: Sequence[list[Outcome]], texts: Sequence[TextDataset]) -> Table:
    """A row for each n-gram baseline, and for each number of experts and coupling."""
    rows: list[tuple[str, ...]] = []
    for order in _ORDERS:
        losses = [ngram_loss(text, order) for text in texts]
        name = f"counts, {order} byte{'s' * (order != 1)} before"
        rows.append(("-", name, "-", *_loss_cells(losses), "-", "-"))
    alone = {runs[0].run.experts: runs for runs in outcomes if runs[0].run.coupling == "alone"}
    for runs in outcomes:
        run, losses = runs[0].run, [outcome.validation for outcome in runs]
        times = [o.ms_per_step for o in runs if o.ms_per_step is not None]
        base = alone.get(run.experts)
        difference = "-"
        if base is not None and base is not runs:
            difference = str(paired(losses, [o.validation for o in base], digits=3))
        rows.append(
            (
                str(run.experts),
                "-" if run.experts == 1 else coupling_name(run),
                f"{runs[0].parameters:,}",
                *_loss_cells(losses),
                difference,
                f"{np.mean(times):.0f}" if times else "-",
            )
        )
    return Table(
        title="Validation loss, nats a byte",
        columns=(
            "experts",
            "coupling",
            "parameters",
            "loss",
            "perplexity",
            "against not coupled",
            "ms a step",
        ),
        rows=tuple(rows),
        note="mean ± standard deviation (seeds); perplexity of the mean loss; difference of the "
        "losses [95 % interval of Student's t] of the same seeds, below zero where coupling is "
        "better",
    )


def _loss_cells(losses: Sequence[float]) -> tuple[str, str]:
    """Mean loss with its deviation, and the perplexity of the mean."""
    mean = float(np.mean(losses))
    return str(summarize(losses, digits=3)), f"{_perplexity(mean):.2f}"


def _perplexity(loss: float) -> float:
    """exp(loss), infinite if that is too large for a float."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
