"""One training run or several, from options to dynamics with the trained potential."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from flax import nnx

from experiments._driver import Training, finish_seeds, train_in_folder, train_seeds
from experiments._nodes import num_parameters
from experiments._runs import finish, shown
from experiments._seeds import ONE_SEED, Repeats, streams
from experiments.benchmarks._report import Row
from experiments.molecules.baseline import PairPotential, species_energies
from experiments.molecules.config import TrainConfig
from experiments.molecules.data import Batches, load, split_of
from experiments.molecules.draw import draw_results
from experiments.molecules.dynamics import Trajectory, calmest, run_dynamics
from experiments.molecules.errors import Errors, Prediction
from experiments.molecules.setup import (
    Loss,
    Scores,
    force_scale,
    loop_of,
    optimizer_of,
    potential_of,
)
from experiments.molecules.tables import Outcome, errors_table
from jaxgnn.training import FitResult, RunFolder, Table, phase, plot_curves

RESULTS = Path(__file__).parent / "results" / "molecules.jsonl"
PAIRS = "pair potential"

# Options that a resumed run may change: they do not change the result of the training.
_MAY_CHANGE = (
    *("run", "fresh", "progress", "data", "checkpoint_every", "report"),
    *("dynamics", "temperature"),
)


def train(config: TrainConfig) -> Outcome:
    """Trains one potential and writes its report, pictures, metrics and checkpoints.

    Raises:
      ValueError: if an option or a data file is invalid.
      FloatingPointError: if no evaluation was finite.
    """
    config.check()
    with phase(f"structures of {config.data_name()}", progress=config.progress):
        data = load(config)
        split = split_of(config, len(data))
        radius, seed = config.radius(), streams(config.seed).training
        batches = Batches(data, split, radius, config.batch_size, seed)
        scores, loss = Scores(batches), Loss(force_scale(batches), config.energy_weight)
    with phase("methods without a network", progress=config.progress):
        trivial = trivial_predictions(config, batches)
    model = potential_of(config, batches)
    training = Training(
        model,
        optimizer_of(config),
        loss,
        batches,
        batches(1),
        loop_of(config),
        scores,
        unit="step",
    )
    result, run = train_in_folder(config, training, _MAY_CHANGE)
    assert result.best is not None and result.best_model is not None
    best = result.best_model
    best.eval()  # as in the evaluations, so that nothing compiles again
    predictions = trivial | {config.label(): scores.predictions(best, "test")}
    trajectory = _dynamics(config, batches, best)
    outcome = Outcome(
        label=config.label(),
        errors={name: Errors.of(rows) for name, rows in predictions.items()},
        step=result.best.step,
        ms_per_step=result.ms_per_step,
        history=result.history,
        trajectory=trajectory,
    )
    pictures = _draw(config, run, outcome, predictions)
    # The loss was traced once before the training.
    compiled = {"training step": loss.count - 1, "prediction": scores.count}
    _report(config, batches, result, outcome, run, pictures, compiled)
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
      ValueError: if an option or a data file is invalid.
    """
    outcomes = train_seeds(train, config, repeats)
    finish_seeds(
        repeats,
        lambda note: _table(config, outcomes, note),
        _rows(config, outcomes),
        RESULTS if commit_results else None,
    )
    return outcomes


def trivial_predictions(config: TrainConfig, batches: Batches) -> dict[str, list[Prediction]]:
    """Predictions for the test structures without a network, by the name of the method."""
    data, split, samples = batches.dataset, batches.split, batches.samples
    of_species = species_energies(data, split.train)
    pairs = PairPotential(
        [samples[at] for at in split.train],
        len(data.elements),
        config.radius(),
        config.energy_weight,
    )
    test = [samples[at] for at in split.test]
    return {
        "energies of species": [
            Prediction.of(
                one, float(of_species[one.nodes["species"]].sum()), 0 * one.nodes["forces"]
            )
            for one in test
        ],
        PAIRS: [Prediction.of(one, *pairs(one)) for one in test],
    }


def _dynamics(config: TrainConfig, batches: Batches, model: nnx.Module) -> Trajectory | None:
    if config.dynamics == 0:
        return None
    with phase(f"dynamics of {config.dynamics} fs", progress=config.progress):
        return run_dynamics(
            model,
            batches.dataset,
            calmest(batches.dataset, batches.split.test),
            cutoff=config.radius(),
            steps=config.dynamics,
            temperature=config.temperature,
            seed=streams(config.seed).training,
        )


def _draw(
    config: TrainConfig, run: RunFolder, outcome: Outcome, predictions: dict[str, list[Prediction]]
) -> list[Path]:
    """Draws the curves and the forces; returns the pictures beside the curves."""
    title = f"{config.data_name()}: {outcome.label}, seed {config.seed}"
    best = {outcome.label: outcome.step}
    curves = {outcome.label: outcome.history}
    plot_curves(curves, run.path / "curves.png", title=title, best=best)
    shown_methods = {name: predictions[name] for name in (PAIRS, outcome.label)}
    picture = run.path / "forces.png"
    draw_results(shown_methods, outcome.trajectory, picture, title)
    return [picture]


def _table(config: TrainConfig, outcomes: list[Outcome], note: str) -> Table:
    title = f"Errors on test structures of {config.data_name()}"
    return errors_table(title, [outcome.errors for outcome in outcomes], note)


def _rows(config: TrainConfig, outcomes: list[Outcome]) -> list[Row]:
    """A row for each method, with the list of each error over the seeds."""
    common = {"experiment": "molecules", "data": config.data_name()}
    common |= {"structures": config.structures, "steps": config.steps}
    names = list(outcomes[0].errors)
    errors = {name: [asdict(outcome.errors[name]) for outcome in outcomes] for name in names}
    rows = [
        {**common, "method": name}
        | {field: [each[field] for each in errors[name]] for field in errors[name][0]}
        for name in names
    ]
    runs = [outcome.trajectory for outcome in outcomes if outcome.trajectory is not None]
    rows[-1] |= {"drift": [one.drift for one in runs], "dynamics": config.dynamics}
    return rows


def _report(
    config: TrainConfig,
    batches: Batches,
    result: FitResult,
    outcome: Outcome,
    run: RunFolder,
    pictures: list[Path],
    compiled: dict[str, int],
) -> None:
    """Prints the result, and writes it to the report at the end."""
    title = f"{config.data_name()}: {outcome.label}, seed {config.seed}"
    methods = {name: asdict(errors) for name, errors in outcome.errors.items()}
    run.write_json("result.json", {"step": outcome.step, "errors": methods})
    counts = [f"{len(part)} {name}" for name, part in batches.split._asdict().items()]
    print(f"{config.data_name()}: structures: {', '.join(counts)}; batches {batches.shape}")
    pace = "" if outcome.ms_per_step is None else f", {outcome.ms_per_step:.1f} ms a step"
    size = f"{num_parameters(result.model):,} parameters"
    print(f"{outcome.label}, {size}, seed {config.seed}: best at step {outcome.step}{pace}")
    print(f"compilations: {', '.join(f'{name} {count}' for name, count in compiled.items())}")
    note = "root mean square errors, and mean absolute ones"
    table = _table(config, [outcome], note)
    print(table.text())
    if outcome.trajectory is not None:
        print(_dynamics_line(outcome.trajectory))
    print(f"forces: {shown(pictures[0])}")
    best, others = outcome.test, outcome.errors[PAIRS]
    print(
        f"test: energy {best.energy:.1f} meV/atom, forces {best.forces:.1f} meV/Å; {PAIRS} "
        f"{others.energy:.1f} meV/atom, {others.forces:.1f} meV/Å"
    )
    finish(run.path, config.report, title=title, tables=[table], pictures=pictures)


def _dynamics_line(run: Trajectory) -> str:
    return (
        f"dynamics of {run.num_atoms} atoms, {run.times[-1]:.0f} fs at {run.temperature:.0f} K: "
        f"total energy drifts by {run.drift:+.3f} meV per atom, spread {run.spread:.3f}, "
        f"of {run.exchanged:.1f} exchanged; neighbours found again {run.rebuilds} times"
    )
