"""A model that a training run exports, and predictions by it on the command line."""

import csv
import sys
from dataclasses import replace

import numpy as np
import pytest

import jaxgnn
from experiments.maxk import __main__ as command_line
from experiments.maxk.config import TrainConfig
from experiments.maxk.train import train
from jaxgnn import CSRGraph, datasets, ops

NODES = 60


def _write_graph(folder, nodes, *, known=True):
    """A ring of two classes that differ in their features."""
    folder.mkdir()
    ids = np.arange(nodes)
    names = ["chess", "choir"]
    rng = np.random.default_rng(nodes)
    features = rng.normal(size=(nodes, 5)) + 2.0 * (ids % 2)[:, None]
    labels = [f"n{i},{names[i % 2] if known else ''}\n" for i in ids]
    (folder / "labels.csv").write_text("node,label\n" + "".join(labels))
    (folder / "edges.csv").write_text("".join(f"n{i},n{(i + 2) % nodes}\n" for i in ids))
    np.save(folder / "features.npy", features.astype(np.float32))
    return folder


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The folder of a graph, what a run on it reached, and the model that it exported."""
    folder = tmp_path_factory.mktemp("served")
    graph, file = _write_graph(folder / "clubs", NODES), folder / "model.jaxgnn"
    config = TrainConfig(
        dataset=str(graph), hidden_features=8, num_layers=2, k=(4,), epochs=8, self_loops=2
    )
    config = replace(config, run=folder / "run", progress=False)
    return graph, train(config, export=file), file


def _main(monkeypatch, *options):
    monkeypatch.setattr(sys, "argv", ["experiments.maxk", *map(str, options)])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    return str(ended.value)


def _predicted(monkeypatch, *options):
    monkeypatch.setattr(sys, "argv", ["experiments.maxk", "predict", *map(str, options)])
    command_line.main()
    with open(options[-1], newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.again("tests/exporting/test_export.py")
def test_predictions_score_what_the_run_has_reported(served, monkeypatch, tmp_path):
    graph, outcome, file = served
    rows = _predicted(monkeypatch, file, "--dataset", graph, "--out", tmp_path / "made.csv")
    dataset = datasets.read_graph(graph)
    assert [row["node"] for row in rows] == list(dataset.node_names)
    predicted = np.array([dataset.class_names.index(row["class"]) for row in rows])
    right = (predicted == dataset.labels)[dataset.test]
    assert right.mean() == pytest.approx(outcome.test)
    assert all(0.5 <= float(row["probability"]) <= 1 for row in rows)


def test_a_graph_of_another_size_needs_no_known_label(served, monkeypatch, tmp_path):
    other = _write_graph(tmp_path / "other", 24, known=False)
    rows = _predicted(monkeypatch, served[2], "--dataset", other, "--out", tmp_path / "made.csv")
    assert len(rows) == 24 and {row["class"] for row in rows} <= {"chess", "choir"}
    read = datasets.read_graph(other, labelled=False)
    assert (read.labels == -1).all() and read.num_edges == 48 and not read.train.size
    with pytest.raises(ValueError, match=r"labels\.csv"):
        datasets.read_graph(other)


def test_bad_input_of_predict_is_one_line(served, monkeypatch, tmp_path):
    other = tmp_path / "spmm.jaxgnn"
    graph = CSRGraph.from_edges([0], [1], 2)
    other.write_bytes(jaxgnn.export(ops.spmm, graph, np.ones((2, 3), np.float32)))
    message = _main(monkeypatch, "predict", other)
    assert message.startswith("error: predict: FILE must be a model that experiments.maxk train")
    message = _main(monkeypatch, "predict", served[2])  # Cora, which has more features
    assert "predict: the features must be of 5 numbers a node" in message
    assert "1433 in cora" in message
    message = _main(monkeypatch, "predict", served[2], "--dataset", "nowhere")
    assert message.startswith("error: predict: --dataset must be one of cora")
    assert "no file" in _main(monkeypatch, "predict", tmp_path / "none").lower()


def test_what_could_not_be_exported_is_refused_before_training(monkeypatch, tmp_path):
    file = tmp_path / "m.jaxgnn"
    refused = {
        ("--export", file, "--seeds", 0, 1): "--export must be left out with several --seeds",
        ("--export", file, "--vmap"): "--export must be left out with several --seeds and with",
        ("--export", file, "--implementation", "ffi"): "--implementation must be left out, or xla",
        ("--export", tmp_path): "--export must be a file in a folder that exists",
        ("--export", tmp_path / "none" / "m"): "--export must be a file in a folder that exists",
    }
    for options, message in refused.items():
        run = ("--run", tmp_path / "run")
        assert f"error: train: {message}" in _main(monkeypatch, "train", *options, *run)
    assert not list(tmp_path.iterdir())
