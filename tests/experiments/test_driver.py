"""Behaviour that all experiments share: stopped and finished runs, several seeds, command lines."""

import functools
import importlib
import json
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from experiments import _driver
from experiments._seeds import Repeats
from experiments.attention.config import AttentionConfig
from experiments.benchmarks._report import read_rows
from experiments.graphs.config import GraphsConfig
from experiments.hgnn.config import LMRun
from experiments.links.config import TrainConfig as LinksConfig
from experiments.maxk import train as maxk
from experiments.maxk.config import TrainConfig as MaxKConfig
from experiments.mhc.config import TrainConfig as TextConfig
from experiments.molecules.config import TrainConfig as MoleculesConfig
from experiments.physics.config import TrainConfig as PhysicsConfig
from experiments.relations.config import TrainConfig as RelationsConfig
from jaxgnn import datasets


@functools.cache
def _nodes():
    scale = datasets.SyntheticScale(
        nodes=120, edges=900, features=8, communities=4, exponent=0.5, train=0.6, validation=0.2
    )
    return datasets.synthetic(scale, seed=0)


def _text():
    def numbers(first, last):
        words = " ".join(f"{i} and {i + 1}" for i in range(first, last))
        return np.frombuffer(words.encode(), np.uint8)

    return datasets.TextDataset("numbers", train=numbers(0, 300), validation=numbers(300, 320))


class Case(NamedTuple):
    """A small run of an experiment: its options, its data unless generated, and ``fit``'s user."""

    module: str
    config: Any
    data: Any = None
    driver: Any = _driver


_EVERY = {"eval_every": 2, "checkpoint_every": 2, "progress": False}
_LANGUAGE = {
    **_EVERY,
    "num_layers": 1,
    "features": 8,
    "num_heads": 2,
    "context": 12,
    "batch_size": 4,
    "steps": 6,
}
PARTICLES = PhysicsConfig(
    particles=9,
    runs=4,
    frames=12,
    horizon=6,
    num_steps=1,
    num_layers=1,
    hidden_features=8,
    batch_size=8,
    steps=4,
    **_EVERY,
)
ATOMS = MoleculesConfig(
    structures=16,
    model="schnet",
    num_layers=1,
    features=8,
    batch_size=2,
    steps=4,
    dynamics=3,
    **_EVERY,
)
LINKS = LinksConfig(
    dataset="synthetic",
    hidden_features=8,
    embedding_features=8,
    supervision=0.3,
    epochs=4,
    candidates=10,
    **_EVERY,
)
GRAPHS = GraphsConfig(
    dataset="mutag",
    model="gin",
    readout=("sum",),
    hidden_features=8,
    num_layers=1,
    batch_size=40,
    epochs=4,
    **_EVERY,
)
NODES = {"dataset": "synthetic", "hidden_features": 8, "epochs": 4, **_EVERY}
CASES = {
    "attention": Case("attention", AttentionConfig(model="gat", num_layers=1, **NODES), _nodes),
    "maxk": Case("maxk", MaxKConfig(num_layers=2, k=(4,), **NODES), _nodes, maxk),
    "links": Case("links", LINKS, _nodes),
    "graphs": Case("graphs", GRAPHS),
    "physics": Case("physics", PARTICLES),
    "molecules": Case("molecules", ATOMS),
    "mhc": Case("mhc", TextConfig(hyper_connections=2, **_LANGUAGE), _text),
    "experts": Case("hgnn.lm", LMRun(experts=2, coupler_layers=1, **_LANGUAGE), _text),
}


def _train_module(module):
    return importlib.import_module(f"experiments.{module}" + ".train" * ("." not in module))


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_a_stopped_run_resumes_to_the_same_result_and_a_finished_one_stays(
    name, tmp_path, monkeypatch
):
    module, config, data, driver = CASES[name]
    module = _train_module(module)
    given = () if data is None else (data(),)
    fit, evaluations = driver.fit, []

    def stopping(*arguments, evaluate, **options):
        def stop(*of):
            evaluations.append(of)
            if len(evaluations) == 2:
                raise KeyboardInterrupt
            return evaluate(*of)

        return fit(*arguments, evaluate=stop, **options)

    stopped = replace(config, run=tmp_path / "stopped")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(driver, "fit", stopping)
        module.train(stopped, *given)
    resumed = module.train(stopped, *given)
    whole = module.train(replace(config, run=tmp_path / "whole"), *given)
    assert resumed.history == whole.history
    folders = stopped.run_folder(), replace(config, run=tmp_path / "whole").run_folder()
    results = [json.loads((folder / "result.json").read_text()) for folder in folders]
    assert results[0] == results[1]
    for file in ("report.html", "curves.png"):
        assert (folders[0] / file).stat().st_size > 5000
    again = module.train(stopped, *given)
    assert again.history == whole.history and _pace(again) is not None
    fresh = module.train(replace(stopped, fresh=True), *given)
    assert fresh.history == whole.history and _pace(fresh) is not None
    if name == "molecules":
        np.testing.assert_array_equal(resumed.trajectory.total, whole.trajectory.total)


def _pace(outcome):
    return getattr(outcome, "ms_per_step", None) or getattr(outcome, "ms_per_epoch", None)


# The column of the stored rows, and the number of an outcome that is in it.
SEEDS = {
    "links": ("ROC-AUC", lambda outcome: outcome.test["ROC-AUC"], "gcn-relu-dot-seed{}"),
    "physics": ("one_step", lambda outcome: outcome.test.one_step, "seed{}"),
    "molecules": ("forces", lambda outcome: outcome.test.forces, "schnet-seed{}"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", SEEDS)
def test_several_seeds_have_folders_of_their_own_a_table_and_rows(
    name, tmp_path, monkeypatch, capsys
):
    column, number, folder = SEEDS[name]
    case = CASES[name]
    module = _train_module(case.module)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "rows.jsonl")
    if case.data is not None:
        monkeypatch.setattr(module, "load", lambda config: case.data())
    config = replace(case.config, run=tmp_path / "runs")
    outcomes = module.train_all(config, Repeats((0, 1)), commit_results=True)
    *_, row = read_rows(tmp_path / "rows.jsonl")
    assert row["experiment"] == name and row["method"] == config.label()
    assert row["seeds"] == [0, 1] and row["device"] and "commit" in row
    assert row[column] == list(map(number, outcomes)) and row[column][0] != row[column][1]
    assert {path.name for path in config.run.iterdir()} == {folder.format(n) for n in (0, 1)}
    assert "mean ± standard deviation (number of seeds), seeds 0 1" in capsys.readouterr().out


# Options as they are typed and as they are read, then a wrong line and its error.
LINES = {
    "relations": (
        RelationsConfig(sample=(8, 4)),
        ["--sample", "8", "4"],
        ["train", "--sample", "0"],
        "train: --sample must be positive numbers",
    ),
    "links": (
        LinksConfig(model="sage"),
        ["--model", "sage"],
        ["train", "--dataset", "nowhere"],
        "train: --dataset must be one of cora, citeseer",
    ),
    "physics": (
        PhysicsConfig(system="charges"),
        ["--system", "charges"],
        ["draw", "--run", "nowhere"],
        "draw: --run must be the folder of a run",
    ),
    "molecules": (
        MoleculesConfig(system="argon"),
        ["--system", "argon"],
        ["train", "--data", "a.cif"],
        "train: --data must be a file that ends in .ext",
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_a_command_line_takes_the_options_and_ends_with_one_line(name, monkeypatch, tmp_path):
    config, typed, wrong, message = LINES[name]
    command_line = importlib.import_module(f"experiments.{name}.__main__")
    calls = []
    monkeypatch.setattr(
        f"experiments.{name}.train.train_all",
        lambda *options, commit_results=False: calls.append((*options, commit_results)),
    )
    line = [name, "train", *typed, "--seeds", "0", "1", "--run", str(tmp_path)]
    monkeypatch.setattr("sys.argv", line)
    command_line.main()
    assert calls == [(replace(config, run=tmp_path), Repeats((0, 1)), False)]
    monkeypatch.setattr("sys.argv", [name, *wrong])
    with pytest.raises(SystemExit, match=f"error: {message}"):
        command_line.main()
