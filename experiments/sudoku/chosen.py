"""Choice and name of the network that ``solve`` and ``evaluate`` use."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from flax import nnx

from experiments._runs import shown
from experiments.sudoku.config import TrainConfig
from experiments.sudoku.networks import make_network
from experiments.sudoku.recipes import Recipe
from jaxgnn._errors import bad_input
from jaxgnn.pretrained import load_weights, sudoku_weights
from jaxgnn.training import load_model
from jaxgnn.training.files import read_json

DEFAULT_RUN = TrainConfig().run_folder()
# Options of a run that are paths, which are strings in JSON.
PATHS = ("data", "run", "initial")


@dataclass(frozen=True)
class Chosen:
    """A trained network.

    Attributes:
      model: the network.
      name: its class and origin, for messages.
      run: the folder of its run; None if it comes from a file of weights.
    """

    model: nnx.Module
    name: str
    run: Path | None


def chosen_network(command: str, run: Path | None, weights: Path | None) -> Chosen:
    """The network of a run or of a file of weights.

    Without either it is the network that comes with the library, or if there is none, that of a
    run of ``train`` without options.

    Args:
      command: name of the command, for errors.
      run: folder of a run, or None.
      weights: a file of weights, or None.

    Raises:
      ValueError: if both are given, or one of them is damaged.
      FileNotFoundError: if there is no such file, or no network at all.
    """
    if weights is not None and run is not None:
        raise bad_input(command, "--weights", "left out where --run is given", weights)
    if run is None and weights is None:
        if sudoku_weights().exists():
            return _of_file(sudoku_weights(), "the weights that come with jaxgnn")
        if not DEFAULT_RUN.exists():
            raise FileNotFoundError(
                f"no weights in {sudoku_weights()} and no run in {DEFAULT_RUN}: train one, or name "
                "another with --run"
            )
        run = DEFAULT_RUN
    if weights is not None:
        return _of_file(weights, shown(weights))
    assert run is not None
    model, settings = load_run(run, command)
    return Chosen(model, f"{type(model).__name__} of {shown(run)} ({settings.features} wide)", run)


def _of_file(weights: Path, name: str) -> Chosen:
    model = load_weights(weights)
    return Chosen(model, f"{type(model).__name__}, {name}", None)


def load_run(folder: Path, command: str = "experiments.sudoku") -> tuple[nnx.Module, Recipe]:
    """The network of a run, with the average of its parameters, and its hyper-parameters.

    Raises:
      ValueError: if the folder has no run with a checkpoint.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise bad_input(command, "--run", "the folder of a run", folder)
    values = read_json(file, dict, "an object, the configuration of the run")
    values.pop("report", None)  # affects files, not the training
    unknown = values.keys() - {field.name for field in fields(TrainConfig)}
    if unknown:
        raise ValueError(f"{file}: not of a run of experiments.sudoku: {sorted(unknown)}")
    values |= {name: Path(values[name]) for name in PATHS if values.get(name) is not None}
    config = TrainConfig(**(values | {"seeds": ()}))
    settings = config.settings()
    model = make_network(settings, config.seed, config.implementation)
    return load_model(folder, model, which="average"), settings
