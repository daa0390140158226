"""The experiments with attention, from the command line to the picture."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments._baselines import BaselineScore
from experiments._node_training import train_in_one_program
from experiments._seeds import Repeats, paired, summarize
from experiments.attention import __main__ as command_line
from experiments.attention.compare import compare
from experiments.attention.config import AttentionConfig
from experiments.attention.recipes import MODELS, NAMES, recipe
from experiments.attention.setup import PARTS, batch_of
from experiments.attention.train import train
from jaxgnn import CSRGraph, datasets
from jaxgnn.graph import laplacian_positions, random_walk_positions

TINY = datasets.SyntheticScale(
    nodes=120, edges=900, features=12, communities=4, exponent=0.5, train=0.6, validation=0.2
)
POSITIONS = {"laplacian": 3, "walks": 2, "virtual_nodes": 1}


@pytest.fixture(scope="module")
def tiny():
    return datasets.synthetic(TINY, seed=0)


def _config(folder: Path, model="transformer", **options) -> AttentionConfig:
    defaults = {
        "dataset": "synthetic",
        "hidden_features": 16,
        "num_layers": 1,
        "epochs": 3,
        "eval_every": 2,
        "run": folder / "run",
        "progress": False,
    }
    return AttentionConfig(**(defaults | {"model": model} | options))


@pytest.mark.again("tests/training/test_resume.py")
def test_a_transformer_with_positions_trains_and_goes_on_where_it_stopped(tiny, tmp_path, capsys):
    config = _config(tmp_path, laplacian=3, k=2, epochs=12, dropout=0.1)
    outcome = train(config, tiny)
    assert outcome.history[-1]["loss"] < 0.8 * outcome.history[0]["loss"]
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["test"] == outcome.test and result["metric"] == "accuracy"
    for name in ("report.html", "curves.png"):
        assert (tmp_path / "run" / name).stat().st_size > 5000
    assert "synthetic transformer, seed 0: best validation accuracy" in capsys.readouterr().out
    again = train(config, tiny)
    assert again.history == outcome.history and again.ms_per_epoch == outcome.ms_per_epoch
    with pytest.raises(ValueError, match="was started with another configuration"):
        train(replace(config, heads=2), tiny)


@pytest.mark.costly(1)
@pytest.mark.parametrize("model", ["gatv2", "gat", "sage"])
def test_every_network_trains_and_its_loss_falls(model, tiny, tmp_path):
    own = {"k": 4} if model == "sage" else {"attention_dropout": 0.2}
    outcome = train(_config(tmp_path, model, epochs=12, **own), tiny)
    assert outcome.history[-1]["loss"] < 0.8 * outcome.history[0]["loss"]
    assert outcome.test > 0.3  # of four classes


def test_the_network_gets_positions_of_the_graph_without_self_loops(tiny, tmp_path):
    batch = batch_of(_config(tmp_path, **POSITIONS), tiny)
    graph = CSRGraph.from_edges(tiny.senders, tiny.receivers, tiny.num_nodes)
    np.testing.assert_array_equal(batch.given["laplacian"], laplacian_positions(graph, 3))
    np.testing.assert_array_equal(batch.given["walks"], random_walk_positions(graph, 2))
    loops = np.asarray(batch.graph.receivers()) == np.asarray(batch.graph.senders)
    assert loops.sum() >= tiny.num_nodes
    assert batch_of(_config(tmp_path), tiny).given == {}


@pytest.mark.long
def test_a_run_of_several_in_one_program_is_the_run_of_its_seed_alone(tiny, tmp_path):
    config = _config(tmp_path, **POSITIONS, input_dropout=0.3, attention_dropout=0.2)
    alone = train(replace(config, seed=5), tiny)
    _, together = train_in_one_program(PARTS, config, (2, 5), datasets=[tiny, tiny])
    for row, expected in zip(together.history, alone.history, strict=True):
        assert row["loss"] == pytest.approx(expected["loss"], rel=1e-3)


def test_a_comparison_has_trivial_methods_and_paired_differences_of_seeds(
    tmp_path, monkeypatch, capsys
):
    scores = iter((0.25, 0.35))
    fake = lambda *_: {"guess": BaselineScore(next(scores), 0.5, "")}  # noqa: E731
    monkeypatch.setattr("experiments._node_tables.baselines", fake)
    trained = []

    def quickly(parts, config, seeds):
        trained.append(config)
        config.check()
        return [_outcome(parts.label_of(config), seed + len(trained)) for seed in seeds]

    monkeypatch.setattr("experiments.attention.compare.train_in_one_program", quickly)
    config = AttentionConfig(dataset="digits", run=tmp_path, heads=2, k=8, laplacian=3)
    models = ("sage", "gat", "transformer")
    comparison = compare(config, models, Repeats((0, 1)), vmap=True)
    # Each has the options that say something to it.
    assert [(c.model, c.heads, c.k, c.laplacian) for c in trained] == [
        ("sage", None, 8, None),
        ("gat", 2, None, None),
        ("transformer", 2, 8, 3),
    ]
    rows = {row[0]: row for row in comparison.table.rows}
    assert rows["guess"][2] == "30.00 ± 7.07 (2)"
    assert rows["GAT"][2:4] == (str(summarize([2.0, 3.0])), str(paired([2.0, 3.0], [1.0, 2.0])))
    assert comparison.picture.stat().st_size > 5000
    text = capsys.readouterr().out
    assert comparison.table.text() in text and "--model gat" in text
    assert "--heads 2" in text.splitlines()[1] and "--heads" not in text.splitlines()[0]


def _outcome(label, test):
    from experiments._node_training import Outcome

    history = [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5}]
    return Outcome(label, 7, test / 100, 0.5, 2, 1.5, history, None)


def test_recipes_are_those_of_maxk_with_self_loops_for_attention():
    for model in MODELS:
        reddit = recipe("reddit", model)
        assert (reddit.num_layers, reddit.hidden_features, reddit.epochs) == (4, 256, 3000)
        assert recipe("ogbn-products", model).self_loops == (model != "sage")
        assert recipe("my_graph/", model) == recipe("cora", model)
    assert recipe("reddit", "sage").k == 32 and recipe("ogbn-proteins", "gat").metric == "ROC-AUC"
    assert set(NAMES) == set(MODELS)


BAD = {
    "dropout": ({"attention_dropout": 1.0}, r"--attention-dropout must be in \[0, 1\), got 1.0"),
    "heads": ({"heads": 3}, "--hidden-features must be a multiple of 3 heads, got 16"),
    "k": ({"model": "sage", "k": 17}, r"--k must be in 1\.\.16, the width, got 17"),
    "k of a head": ({"k": 5}, r"k must be an int in 1\.\.4, got 5"),
    "k of gat": ({"model": "gat", "k": 4}, "--k must be left out for gat"),
    "positions": ({"model": "sage", "walks": 4}, "--walks must be left out for sage"),
    "epochs": ({"epochs": 0}, "--epochs must be at least 1, got 0"),
    "rate": ({"learning_rate": float("inf")}, "--learning-rate must be finite, got inf"),
    "modes": (
        {"laplacian": 120},
        "--laplacian must be less than the 120 nodes of the graph, got 120",
    ),
    "streams": ({"hyper_connections": 0}, "--hyper-connections must be at least 1, got 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options_are_named(name, tiny, tmp_path):
    options, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        train(_config(tmp_path, **options), tiny)
    assert not (tmp_path / "run").exists(), "a bad option must not leave a run folder"


def _main(monkeypatch, *arguments: str) -> str | int | None:
    """Runs the command line in this process; the code that it exits with."""
    monkeypatch.setattr(sys, "argv", ["attention", *arguments])
    with pytest.raises(SystemExit) as exit_:
        command_line.main()
    return exit_.value.code


@pytest.mark.parametrize("command", ["train", "compare"])
def test_help_lists_the_options_of_every_command(command, monkeypatch, capsys):
    assert _main(monkeypatch, command, "--help") == 0
    text = capsys.readouterr().out
    for option in ("--dataset", "--virtual-nodes", "--hyper-connections", "--seeds", "--vmap"):
        assert option in text


BAD_COMMANDS = {
    "data set": (["train", "--dataset", "coral"], "--dataset must be one of cora"),
    "data": (["train", "--dataset", "yelp"], "--data must be the folder with the raw files of"),
    "seeds": (["compare", "--seeds", "1", "1"], "compare: --seeds must be each seed once"),
    "no use": (["compare", "--models", "gat", "--walks", "3"], "--walks must be left out for gat"),
    "models": (["compare", "--models", "gat", "gat"], "--models must be one or more, each once"),
}


@pytest.mark.parametrize("name", BAD_COMMANDS)
def test_the_command_line_names_a_bad_option_as_it_was_typed(name, tmp_path, monkeypatch):
    arguments, message = BAD_COMMANDS[name]
    monkeypatch.chdir(tmp_path)
    assert message in str(_main(monkeypatch, *arguments))
