"""One training run or several, from options to a picture of their curves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from flax import nnx

from experiments._driver import Training, finish_seeds, train_in_folder, train_seeds
from experiments._nodes import num_parameters
from experiments._runs import finish, shown
from experiments._seeds import ONE_SEED, Repeats, streams
from experiments.benchmarks._report import Row
from experiments.physics.config import TrainConfig
from experiments.physics.data import Parts, World, on_device, simulate
from experiments.physics.errors import Errors, trivial_errors
from experiments.physics.setup import Scores, loop_of, loss_of, optimizer_of, start
from experiments.physics.simulator import Simulator
from experiments.physics.tables import Outcome, errors_table, times_of
from jaxgnn.training import FitResult, RunFolder, Table, phase, plot_curves

RESULTS = Path(__file__).parent / "results" / "physics.jsonl"

# Options that a resumed run may change: they do not change the result.
_MAY_CHANGE = ("run", "fresh", "progress", "checkpoint_every", "report", "devices")


def train(config: TrainConfig) -> Outcome:
    """Trains one network and writes its report, curves, metrics and checkpoints to the run folder.

    Raises:
      ValueError: if an option is invalid.
      FloatingPointError: if no evaluation was finite.
    """
    config.check()
    with phase(f"simulating {config.system}", progress=config.progress):
        parts = simulate(config)
        world, runs = World.of(parts.train), on_device(parts.train)
    first = start(config.history)
    trivial = trivial_errors(parts.train, parts.test, config.horizon, first)
    scored = {"validation": parts.validation, "test": parts.test}
    scores = Scores(world, scored, config.horizon, config.history)
    model = Simulator(config, parts.train, nnx.Rngs(streams(config.seed).parameters))
    training = Training(
        model,
        optimizer_of(config),
        loss_of(config, world),
        lambda _: runs,
        runs,
        loop_of(config),
        scores,
        config.mesh(),
        unit="step",
    )
    result, run = train_in_folder(config, training, _MAY_CHANGE)
    outcome = _outcome(config, result, scores, trivial)
    _report(config, parts, result, outcome, run)
    return outcome


def train_all(
    config: TrainConfig, repeats: Repeats = ONE_SEED, *, commit_results: bool = False
) -> list[Outcome]:
    """Trains a run for each seed, and prints their mean if there are several.

    Args:
      config: the options of the runs.
      repeats: the seeds, and number of concurrent runs.
      commit_results: whether to add the errors to those that are stored with the code.

    Raises:
      ValueError: if an option is invalid.
    """
    outcomes = train_seeds(train, config, repeats)
    finish_seeds(
        repeats,
        lambda note: _table(config, outcomes, note),
        _rows(config, outcomes),
        RESULTS if commit_results else None,
    )
    return outcomes


def _outcome(
    config: TrainConfig, result: FitResult, scores: Scores, trivial: dict[str, Errors]
) -> Outcome:
    assert result.best is not None and result.best_model is not None
    result.best_model.eval()  # as in the evaluations, so that nothing compiles again
    return Outcome(
        label=config.label(),
        test=scores.errors(result.best_model, "test"),
        validation=result.best.metrics["validation rollout"],
        step=result.best.step,
        ms_per_step=result.ms_per_step,
        history=result.history,
        trivial=trivial,
    )


def _table(config: TrainConfig, outcomes: list[Outcome], note: str) -> Table:
    title = f"Errors on test runs of {config.particles} {config.system}"
    return errors_table(title, [outcome.methods() for outcome in outcomes], note)


def _rows(config: TrainConfig, outcomes: list[Outcome]) -> list[Row]:
    """A row for each method, with the list of each error over the seeds."""
    common = {"experiment": "physics", "system": config.system}
    common |= {"particles": config.particles, "horizon": config.horizon}
    found = [outcome.methods() for outcome in outcomes]
    return [
        {
            **common,
            "method": method,
            "one_step": [errors[method].one_step for errors in found],
            "energy": [errors[method].energy for errors in found],
            **{
                f"distance_{time}": [float(errors[method].distances[time - 1]) for errors in found]
                for time in times_of(config.horizon)
            },
        }
        for method in found[0]
    ]


def _report(
    config: TrainConfig, parts: Parts, result: FitResult, outcome: Outcome, run: RunFolder
) -> None:
    """Draws the curves, prints the result, and writes it to the report at the end."""
    title = f"{config.particles} {config.system}: {outcome.label}, seed {config.seed}"
    curves = run.path / "curves.png"
    best = {outcome.label: outcome.step}
    plot_curves({outcome.label: outcome.history}, curves, title=title, best=best)
    methods = {name: errors.scores() for name, errors in outcome.methods().items()}
    run.write_json("result.json", {"step": outcome.step, "errors": methods})
    counts = [f"{getattr(parts, p).num_runs} {p}" for p in ("train", "validation", "test")]
    print(
        f"{config.particles} {config.system}: runs of {config.frames} frames: {', '.join(counts)}"
    )
    pace = "" if outcome.ms_per_step is None else f", {outcome.ms_per_step:.1f} ms a step"
    reached = f"best validation rollout {outcome.validation:.3f} at step {outcome.step}"
    size = f"{num_parameters(result.model):,} parameters"
    print(f"{outcome.label}, {size}, seed {config.seed}: {reached}{pace}")
    note = (
        "one step: error of the next position, in % of that of constant velocity; distance to the "
        "simulated particle after a rollout; energy: its error at the end, in % of the kinetic "
        "energy"
    )
    table = _table(config, [outcome], note)
    print(table.text())
    print(f"curves: {shown(curves)}")
    others = min(float(errors.distances[-1]) for errors in outcome.trivial.values())
    mine = float(np.asarray(outcome.test.distances)[-1])
    print(f"distance after {config.horizon} frames: {mine:.3f}, without a network {others:.3f}")
    finish(run.path, config.report, title=title, tables=[table])
