"""Node classification on several types of nodes, from the command line to the report."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from experiments._baselines import BaselineScore
from experiments._seeds import Repeats
from experiments.benchmarks._report import read_rows
from experiments.relations import train as train_module
from experiments.relations.beside import PERCEPTRON
from experiments.relations.config import TrainConfig
from experiments.relations.data import batch_of, load, loader_of, papers_of
from experiments.relations.networks import make_network
from experiments.relations.train import train, train_all
from jaxgnn.testing import assert_close


def _config(folder: Path, **options) -> TrainConfig:
    defaults = {
        "papers": 1000,
        "authors": 500,
        "venues": 20,
        "hidden_features": 16,
        "batch_size": 128,
        "learning_rate": 0.02,
        "epochs": 60,
        "eval_every": 5,
        "run": folder / "run",
        "progress": False,
    }
    return TrainConfig(**(defaults | options))


MAJORITY = {"majority class": BaselineScore(0.125, 0.125, "")}


@pytest.fixture
def nothing_beside(monkeypatch):
    """Runs have no baselines, which take seconds."""
    monkeypatch.setattr(train_module, "scores_beside", lambda *_: MAJORITY)


@pytest.mark.costly
@pytest.mark.parametrize("options", [{"sample": (6, 4), "epochs": 15}, {}], ids=["sampled", "full"])
def test_a_run_beats_the_features_alone_and_the_majority(options, tmp_path, capsys):
    config = _config(tmp_path, **options)
    outcome, beside = train(config)
    assert beside["majority class"].test < 0.2
    for name in ("majority class", PERCEPTRON, "label propagation"):
        assert outcome.test > beside[name].test + 0.15, name
    result = json.loads((config.run / "result.json").read_text())
    assert result["test"] == outcome.test and result["metric"] == "accuracy"
    page, printed = (config.run / "report.html").read_text(), capsys.readouterr().out
    for text in (page, printed):
        assert PERCEPTRON in text and config.label() in text
    assert f"test accuracy: {outcome.test:.4f}" in printed


@pytest.mark.costly
@pytest.mark.parametrize("layer", ["sage", "gat"])
def test_batches_with_all_neighbours_have_the_logits_of_the_whole_graph(layer, tmp_path):
    config = _config(tmp_path, papers=120, authors=40, layer=layer, sample=(-1, -1))
    dataset = load(config)
    batch = batch_of(dataset, papers_of(dataset))
    model = make_network(config, dataset, batch.graph)
    model.eval()
    whole = model(batch.graph, batch.features)
    seen = []
    for drawn in loader_of(config, dataset, batch).epoch(0):
        mask = np.asarray(drawn.seed_mask)
        seeds = np.asarray(drawn.n_id["paper"])[np.asarray(drawn.seed_ids)][mask]
        logits = model(drawn.blocks, drawn.x)[drawn.seed_ids][mask]
        assert_close(logits, whole[seeds], reduction_length=120, roundings=8)
        np.testing.assert_array_equal(np.asarray(drawn.y)[mask], dataset.labels[seeds])
        seen += seeds.tolist()
    np.testing.assert_array_equal(np.sort(seen), dataset.train)


def test_a_sampled_run_resumes_within_an_epoch(tmp_path, monkeypatch, nothing_beside):
    options = {"papers": 200, "sample": (3,), "batch_size": 32, "epochs": 3, "eval_every": 1}
    loop_of = train_module.loop_of
    # Of the 4 steps of an epoch, the third is the last that is stored.
    monkeypatch.setattr(
        train_module, "loop_of", lambda *given: replace(loop_of(*given), checkpoint_every=3)
    )
    expected = train(_config(tmp_path / "whole", **options)).outcome
    assert len(expected.history) == 12
    config, asked = _config(tmp_path, **options), []

    class Stopping(train_module.SampledEpochs):
        def _note(self, step):
            super()._note(step)
            asked.append(step)
            if len(asked) == 8:
                raise KeyboardInterrupt

    monkeypatch.setattr(train_module, "SampledEpochs", Stopping)
    with pytest.raises(KeyboardInterrupt):
        train(config)
    resumed = train(config).outcome
    assert asked[8:] == [7, 8, 9, 10, 11, 12]
    assert resumed.history == expected.history and resumed.test == expected.test


def test_several_seeds_have_folders_of_their_own_and_stored_rows(tmp_path, monkeypatch, capsys):
    folders = []

    def fake(run):
        folders.append(run.run_folder())
        return train_module.Trained(SimpleNamespace(test=0.5 + run.seed / 10), MAJORITY)

    monkeypatch.setattr(train_module, "train", fake)
    monkeypatch.setattr(train_module, "RESULTS", tmp_path / "rows.jsonl")
    config = _config(tmp_path)
    train_all(config, Repeats((0, 1)), commit_results=True)
    majority, row = read_rows(tmp_path / "rows.jsonl")
    assert majority["method"] == "majority class" and majority["accuracy"] == [0.125, 0.125]
    assert row["method"] == config.label() and row["seeds"] == [0, 1] and "commit" in row
    assert row["accuracy"] == [0.5, 0.6]
    assert folders == [config.run / "sage-seed0", config.run / "sage-seed1"]
    printed = capsys.readouterr().out
    assert "55.00 ± 7.07 (2)" in printed
    assert "mean ± standard deviation (number of seeds), seeds 0 1" in printed


def test_every_type_of_nodes_receives_messages(tmp_path):
    config = _config(tmp_path)
    dataset = load(config)
    graph = batch_of(dataset, papers_of(dataset)).graph
    assert {receiver for *_, receiver in graph.edge_types} == set(dataset.num_nodes)
    for edge_type, ends in dataset.edges.items():
        assert graph[edge_type].num_edges == ends.shape[1]
    leaves = jax.tree.leaves(load(replace(config, seed=1)).labels)
    assert not np.array_equal(leaves[0], dataset.labels)


def test_folders_and_tables_name_what_is_sampled():
    config = TrainConfig(sample=(8, 4, 2))
    assert config.label() == "SAGE for each relation, sampled 8 4 2" and config.layers() == 3
    assert config.variant_name() == "sage-sample-8-4-2-of256-seed0"
    assert TrainConfig().run_folder() == Path("runs/relations/papers2000-sage-seed0")
    assert TrainConfig().layers() == 2


BAD = {
    "--sample": ({"sample": (3, 0)}, "train: --sample must be positive numbers, or -1 for all"),
    "--num-layers": (
        {"sample": (3, 2), "num_layers": 3},
        "--sample must be a number for each of the 3 layers, got 3 2",
    ),
    "--batch-size": ({"sample": (3,), "batch_size": 0}, "--batch-size must be at least 1, got 0"),
    "--papers": ({"papers": 99}, "--papers must be at least 100, got 99"),
    "--authors": ({"authors": 3}, "--authors must be at least 4, got 3"),
    "--venues": ({"venues": 1}, "--venues must be at least 2, got 1"),
    "--dropout": ({"dropout": 1.0}, r"--dropout must be in \[0, 1\), got 1.0"),
    "--epochs": ({"epochs": 0}, "--epochs must be at least 1, got 0"),
    "--learning-rate": ({"learning_rate": float("nan")}, "--learning-rate must be at least 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options_are_named_as_they_are_typed_before_anything_is_written(name, tmp_path):
    options, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        train(_config(tmp_path, **options))
    assert not list(tmp_path.iterdir())
