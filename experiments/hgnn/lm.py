"""Perplexity of language models against the number of experts, coupled and not."""

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

from experiments._optimizers import warmed_adamw
from experiments._runs import discard, shown
from experiments.hgnn.config import LMConfig, LMRun, coupling_name
from experiments.mhc.data import all_pieces, random_pieces
from jaxgnn.datasets import TextDataset, pydoc_text
from jaxgnn.models import ExpertGraphLM, expert_output_orthogonality, expert_weight_orthogonality
from jaxgnn.training import FitResult, LoopConfig, RunFolder, fit, jit_apply, plot_curves

_BYTES = 256
# What may differ when a run is resumed: where, not what. Not ``steps``: the learning rate's
# schedule ends with them.
_MAY_CHANGE = ("run", "fresh", "progress", "checkpoint_every")

# Pieces of text, and how much of the strength of the losses of orthogonality counts.
Batch = tuple[np.ndarray, np.float32]


@dataclass(frozen=True)
class Outcome:
    """Results of a run.

    Attributes:
      run: the options of the run.
      validation: mean cross entropy on the validation text behind the last step, nats a byte.
      parameters: number of trained parameters.
      ms_per_step: mean time of a step; None if the run had been complete already.
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
        try:
            return math.exp(self.validation)
        except OverflowError:
            return math.inf


def lm(config: LMConfig, dataset: TextDataset | None = None) -> list[Outcome]:
    """Trains every number of experts with every coupling, on the same batches.

    Args:
      config: the options of the run.
      dataset: the text, if it is read already.

    Raises:
      ValueError: if an option is at fault.
    """
    config.check()
    if dataset is None:
        dataset = pydoc_text(seed=config.seed)
    outcomes = [train(variant, dataset) for variant in config.variants()]
    picture = config.run / f"perplexity-seed{config.seed}.png"
    _plot(outcomes, picture)
    curves = config.run / f"curves-seed{config.seed}.png"
    plot_curves({o.run.label(): o.history for o in outcomes}, curves, fields=["validation loss"])
    _print_table(outcomes)
    print(f"pictures: {shown(picture.absolute())}, {shown(curves.absolute())}")
    return outcomes


def train(run: LMRun, dataset: TextDataset) -> Outcome:
    """Trains one model and writes its metrics and checkpoints to the run folder.

    Raises:
      ValueError: if an option is at fault.
    """
    pieces = random_pieces(dataset.train, run.context, run.batch_size, run.seed)
    validation = all_pieces(dataset.validation, run.context, run.batch_size)
    warm_up = max(1, run.steps // 10)

    def batches(step: int) -> Batch:
        return pieces(step), np.float32(min(1.0, step / warm_up))

    loop = LoopConfig(
        steps=run.steps,
        eval_every=run.eval_every,
        checkpoint_every=run.checkpoint_every,
        seed=run.seed,
    )
    loss = _Loss(run)
    model = _make_model(run)
    nnx.eval_shape(lambda model: loss(model, batches(1), nnx.Rngs(0))[0], model)
    # All options are valid: only now are files written or removed.
    if run.fresh:
        discard(run.run_folder())
    folder = RunFolder(run.run_folder(), run, may_change=_MAY_CHANGE)
    result = fit(
        model,
        _optimizer(run),
        loss,
        batches,
        config=loop,
        evaluate=_Evaluation(validation),
        run=folder,
        progress=run.progress,
    )
    return _report(run, result, folder)


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
        rngs=nnx.Rngs(run.seed),
    )


def _cross_entropy(logits: jax.Array, pieces: jax.Array) -> jax.Array:
    wide = logits.astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(wide, pieces[:, 1:]).mean()


class _Loss:
    """Cross entropy, and what is asked for of the losses of orthogonality."""

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
    """Scales, biases and weights of hyperedges stay free, also where experts stack them."""
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
    print(f"{run.label()}: validation perplexity {outcome.perplexity:.3f} a byte", flush=True)
    return outcome


def _plot(outcomes: list[Outcome], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 3.6), dpi=120, layout="constrained")
    axes = figure.subplots()
    single = [o for o in outcomes if o.run.experts == 1]
    for name in dict.fromkeys(coupling_name(o.run) for o in outcomes if o.run.experts > 1):
        same = [o for o in outcomes if o.run.experts > 1 and coupling_name(o.run) == name]
        points = [(o.run.experts, o.perplexity) for o in single + same]
        axes.plot(*zip(*points, strict=True), marker="o", label=name)
    if len(outcomes) == len(single):
        axes.plot([1], [single[0].perplexity], "o", label="1 expert")
    counts = sorted({o.run.experts for o in outcomes})
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_xlabel("experts in a layer")
    axes.set_ylabel("validation perplexity of a byte")
    run = outcomes[0].run
    axes.set_title(f"{run.num_layers} layers, width {run.features}, {run.steps} steps")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, format="png")


def _print_table(outcomes: list[Outcome]) -> None:
    print(
        f"\n{'experts':>7}  {'coupling':<14}  {'parameters':>10}  {'validation loss':>15}"
        f"  {'perplexity':>10}  {'ms a step':>9}"
    )
    for outcome in outcomes:
        pace = "-" if outcome.ms_per_step is None else f"{outcome.ms_per_step:.0f}"
        name = "-" if outcome.run.experts == 1 else coupling_name(outcome.run)
        print(
            f"{outcome.run.experts:>7}  {name:<14}  {outcome.parameters:10,}"
            f"  {outcome.validation:15.4f}  {outcome.perplexity:10.3f}  {pace:>9}"
        )
