"""Classification and regression of whole graphs, from the command line to the report."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from experiments._seeds import Repeats
from experiments.graphs import __main__ as command_line
from experiments.graphs import train as train_module
from experiments.graphs.compare import compare
from experiments.graphs.config import GraphsConfig
from experiments.graphs.data import Batches, load
from experiments.graphs.networks import GraphNetwork
from experiments.graphs.task import loss_of, score_of, task_of
from experiments.graphs.train import train, train_all
from experiments.graphs.trivial import bag_of_edges, bag_of_nodes, trivial_scores
from jaxgnn.datasets import GraphsDataset, split_graphs
from jaxgnn.graph import GraphBatch, GraphSample
from tests.datasets.formats import write_csv


def _dataset(labels, graphs=96, **features) -> GraphsDataset:
    """Graphs of 5 to 9 nodes: paths (even numbers) and stars (odd ones), both directions."""
    rng = np.random.default_rng(0)
    counts = rng.integers(5, 10, graphs)
    senders, receivers = [], []
    for graph, count in enumerate(counts.tolist()):
        one = np.arange(1, count)
        other = np.zeros(count - 1, int) if graph % 2 else one - 1
        senders += [one, other]
        receivers += [other, one]
    data = GraphsDataset(
        name="paths and stars",
        senders=np.concatenate(senders).astype(np.int32),
        receivers=np.concatenate(receivers).astype(np.int32),
        num_nodes_of_each=counts.astype(np.int32),
        num_edges_of_each=(2 * (counts - 1)).astype(np.int32),
        labels=labels,
        num_classes=2 if labels.ndim == 1 else labels.shape[1],
        **features,
    )
    return split_graphs(data, (0.5, 0.25, 0.25))


@pytest.fixture(scope="module")
def shapes():
    return _dataset((np.arange(96) % 2).astype(np.int32))


def _config(folder: Path, **options) -> GraphsConfig:
    defaults = {
        "dataset": "paths",
        "model": "gin",
        "readout": ("sum",),
        "learning_rate": 0.01,
        "hidden_features": 8,
        "num_layers": 2,
        "dropout": 0.0,
        "batch_size": 16,
        "epochs": 12,
        "eval_every": 3,
        "checkpoint_every": 3,
        "run": folder / "run",
        "progress": False,
    }
    return GraphsConfig(**(defaults | options))


@pytest.fixture(scope="module")
def trained(shapes, tmp_path_factory):
    config = _config(tmp_path_factory.mktemp("graphs"), checkpoint_every=0)
    return config, train(config, shapes)


def test_a_network_tells_graphs_of_equal_bags_apart_and_writes_a_report(trained):
    config, outcome = trained
    assert outcome.test >= 0.9 and max(outcome.trivial.values()) <= 0.75
    result = json.loads((config.run / "result.json").read_text())
    assert result["test"] == outcome.test and result["trivial"] == outcome.trivial
    page = (config.run / "report.html").read_text()
    assert "bag of nodes" in page and (config.run / "curves.png").exists()


def test_every_epoch_has_each_training_graph_once_in_batches_of_one_shape(shapes):
    batches = Batches.of(shapes, 10, 3, seed=5)
    assert batches.per_epoch == 5  # of 48 graphs
    train_sizes = sorted(shapes.num_nodes_of_each[shapes.train].tolist())
    orders = set()
    for epoch in range(3):
        steps = range(1 + 5 * epoch, 6 + 5 * epoch)
        made = [batches(step) for step in steps]
        shown = {(batch.graph.num_rows, batch.graph.num_edges, batch.num_graphs) for batch in made}
        assert shown == {batches.shape}
        sizes = [batch.num_nodes_of_each[np.asarray(batch.graph_mask)] for batch in made]
        assert sorted(np.concatenate(sizes).tolist()) == train_sizes
        orders.add(tuple(np.concatenate(sizes).tolist()))
    assert len(orders) == 3
    again = Batches.of(shapes, 10, 3, seed=5)(7)
    np.testing.assert_array_equal(again.graph.indices, batches(7).graph.indices)
    parts = [batch for name in ("validation", "test") for batch in batches.part(name)]
    assert sum(int(batch.graph_mask.sum()) for batch in parts) == 48
    assert all(batch.graph.num_rows == batches.shape[0] for batch in parts)


FEATURES = {
    "quantities": {"node_features": 3, "edge_features": 2},
    "categories": {"node_categories": (4, 2), "edge_categories": (3,)},
    "none": {},
}


def _with_features(name: str) -> GraphsDataset:
    plain, rng = _dataset((np.arange(96) % 2).astype(np.int32)), np.random.default_rng(1)
    counts = {"node": plain.num_nodes_of_each.sum(), "edge": plain.num_edges_of_each.sum()}
    given = {}
    for of, count in counts.items():
        sizes = FEATURES[name].get(f"{of}_categories")
        if sizes is not None:
            given[f"{of}_categories"] = sizes
            given[f"{of}_features"] = rng.integers(0, sizes, (count, len(sizes))).astype("f4")
        elif width := FEATURES[name].get(f"{of}_features"):
            given[f"{of}_features"] = rng.normal(size=(count, width)).astype(np.float32)
    return replace(plain, **given)


@pytest.mark.parametrize(
    ("features", "options"),
    [
        ("quantities", {"model": "transformer", "readout": ("mean", "max")}),
        ("categories", {"model": "gin", "virtual_node": True, "norm": "graph"}),
        ("none", {"model": "gcn", "readout": ("sum", "mean"), "norm": "batch"}),
    ],
)
def test_what_a_network_says_of_a_graph_does_not_depend_on_its_batch(features, options, tmp_path):
    data = _with_features(features)
    model = GraphNetwork(_config(tmp_path, heads=2, **options), data, 3)
    model.eval()
    samples = [GraphSample(**data[graph]) for graph in range(4)]
    predict = jax.jit(lambda batch: model(batch))
    together = predict(GraphBatch.from_graphs(samples, pad_to=(64, 96, 8)))
    alone = predict(GraphBatch.from_graphs(samples[2:3], pad_to=(64, 96, 8)))
    np.testing.assert_allclose(together[2], alone[0], rtol=1e-4, atol=1e-5)
    assert together.shape == (8, 3) and np.abs(together[0] - together[1]).max() > 1e-4


def test_tasks_are_scored_as_ogb_scores_them_and_unknown_labels_do_not_count():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (96, 4)).astype(np.float32)
    labels[rng.random(labels.shape) < 0.3] = np.nan
    labels[:, 3] = np.where(np.isnan(labels[:, 3]), np.nan, 1)  # a task without negatives
    data = _dataset(labels)
    task = task_of(data)
    assert (task.kind, task.metric, task.is_error) == ("tasks", "ROC-AUC", False)
    logits = rng.normal(size=labels.shape).astype(np.float32)
    known = ~np.isnan(labels)
    for metric, function in {"ROC-AUC": roc_auc_score, "AP": average_precision_score}.items():
        expected = [function(labels[k, t], logits[k, t]) for t, k in enumerate(known.T[:3])]
        found = score_of(task_of(data, metric), logits, labels)
        np.testing.assert_allclose(found, np.mean(expected), rtol=1e-6)
    there = np.arange(96) < 90
    counted = known & there[:, None]
    losses = np.logaddexp(0, logits) - np.where(known, labels, 0) * logits

    def loss(logits):
        return loss_of(task, logits, jnp.asarray(labels), jnp.asarray(there))

    np.testing.assert_allclose(loss(logits), losses[counted].mean(), rtol=1e-5)
    slope = jax.grad(loss)(jnp.asarray(logits))
    assert np.isfinite(slope).all() and not slope[~counted].any() and slope[counted].all()


@pytest.mark.parametrize("metric", ["MAE", "RMSE"])
def test_numbers_are_learnt_standardised_and_scored_as_they_are(metric):
    rng = np.random.default_rng(0)
    labels = (7 + 3 * rng.normal(size=(96, 2))).astype(np.float32)
    labels[5, 1] = np.nan
    data = _dataset(labels)
    task = task_of(data, metric)
    assert task.kind == "numbers" and task.is_error
    np.testing.assert_allclose(task.mean, np.nanmean(labels[data.train], axis=0), rtol=1e-5)
    predicted = rng.normal(size=labels.shape)
    errors = predicted * task.scale + task.mean - labels
    squares = np.sqrt(np.nanmean(errors**2))
    expected = np.nanmean(np.abs(errors)) if metric == "MAE" else squares
    np.testing.assert_allclose(score_of(task, predicted, labels), expected, rtol=1e-6)
    scaled = errors / np.array(task.scale)
    expected = np.nanmean(np.abs(scaled) if metric == "MAE" else scaled**2)
    found = loss_of(task, jnp.asarray(predicted, jnp.float32), labels, np.ones(96, bool))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_bags_count_what_is_in_a_graph():
    data = _with_features("categories")
    nodes, edges = bag_of_nodes(data), bag_of_edges(data)
    assert nodes.shape == (96, 1 + 4 + 2) and edges.shape == (96, 1 + 3)
    for graph in (0, 95):
        found = data[graph]
        counts = [
            np.bincount(found["nodes"][:, c].astype(int), minlength=n) for c, n in ((0, 4), (1, 2))
        ]
        expected = [found["num_nodes"], *np.concatenate(counts)]
        assert nodes[graph].tolist() == expected
        kinds = np.bincount(found["edges"][:, 0].astype(int), minlength=3)
        assert edges[graph].tolist() == [found["senders"].size, *kinds]
    quantities = _with_features("quantities")
    np.testing.assert_allclose(
        bag_of_nodes(quantities)[3, 1:], quantities[3]["nodes"].sum(axis=0), rtol=1e-5
    )


def test_linear_models_of_bags_find_what_bags_say():
    plain = _with_features("quantities")
    sums = bag_of_nodes(plain)[:, 1:]
    numbers = (2 * sums[:, :1] - sums[:, 1:2] + 5).astype(np.float32)
    data = replace(plain, labels=numbers, num_classes=1)
    found = trivial_scores(data, task_of(data, "RMSE"))
    assert found["bag of nodes"] < 0.05 * found["majority"]
    tasks = np.concatenate([sums[:, :2] > 0, sums[:, 2:] > 0], axis=1).astype(np.float32)
    tasks[::7, 1] = np.nan
    data = replace(plain, labels=tasks, num_classes=3)
    found = trivial_scores(data, task_of(data))
    assert found["majority"] == 0.5 and found["bag of nodes"] > 0.95
    classes = (sums[:, 0] > 0).astype(np.int32)
    data = replace(plain, labels=classes)
    found = trivial_scores(data, task_of(data))
    assert found["bag of nodes"] > 0.9 > found["majority"]


def test_folders_of_the_tu_format_are_read_and_split(tmp_path):
    texts = {
        "A": "".join(f"{2 * g + 1}, {2 * g + 2}\n" for g in range(20)),
        "graph_indicator": "".join(f"{g + 1}\n{g + 1}\n" for g in range(20)),
        "graph_labels": "".join(f"{g % 2}\n" for g in range(20)),
    }
    for name, text in texts.items():
        (tmp_path / f"OWN_{name}.txt").write_text(text)
    config = _config(tmp_path, dataset=str(tmp_path), validation=0.2, test=0.3)
    data = load(config)
    assert (data.train.size, data.validation.size, data.test.size) == (10, 4, 6)
    assert config.data_name() == tmp_path.name
    with pytest.raises(ValueError, match="train: --dataset must be one of digits, mutag, zinc"):
        load(replace(config, dataset="nowhere"))
    with pytest.raises(ValueError, match="--data must be the folder with the files of ogbg-molhiv"):
        load(replace(config, dataset="ogbg-molhiv"))
    write_csv(tmp_path / "raw/num-node-list.csv", [[1]], compressed=False)
    with pytest.raises(FileNotFoundError, match=r"num-edge-list\.csv"):
        load(replace(config, dataset="ogbg-molhiv", data=tmp_path))


BAD = {
    "--test": ({"test": 1.0}, r"train: --test must be in \[0, 1\), got 1.0"),
    "--validation": ({"validation": 0.0}, "--validation must be above 0, got 0.0"),
    "both": ({"validation": 0.5, "test": 0.5}, "--validation and --test must be below 1 together"),
    "--dropout": ({"dropout": 1.0}, r"--dropout must be in \[0, 1\), got 1.0"),
    "--batch-size": ({"batch_size": 0}, "--batch-size must be at least 1, got 0"),
    "--readout": ({"readout": ("sum", "sum")}, "--readout must be one or more, each once"),
    "--heads": (
        {"model": "transformer", "heads": 3},
        "--hidden-features must be a multiple of 3 heads, got 8",
    ),
    "--virtual-node": (
        {"model": "transformer", "virtual_node": True},
        "--virtual-node must be left out for the transformer",
    ),
    "--metric": ({"metric": "MAE"}, "--metric must be one of accuracy for paths and stars"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options_are_named_as_they_are_typed_before_anything_is_written(name, tmp_path, shapes):
    options, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        train(_config(tmp_path, **options), shapes)
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_networks_are_compared_with_the_same_seeds_and_a_margin(
    shapes, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(train_module, "load", lambda config: shapes)
    config = _config(tmp_path, epochs=2, eval_every=0)
    found = compare(config, ("gin", "gcn"), Repeats((0, 1)))
    assert list(found.outcomes) == ["GIN", "GCN"] and found.picture.exists()
    assert [row[0] for row in found.table.rows] == [
        "majority",
        "bag of nodes",
        "bag of nodes and edges",
        "GIN",
        "GCN",
    ]
    assert "against bag of nodes, points" in capsys.readouterr().out
    assert {path.name for path in config.run.iterdir() if path.is_dir()} == {
        f"{model}-seed{seed}" for model in ("gin", "gcn") for seed in (0, 1)
    }
    again = train_all(config, Repeats((0, 1)))
    assert [run.test for run in again] == [run.test for run in found.outcomes["GIN"]]
    with pytest.raises(ValueError, match="compare: --models must be one or more, each once"):
        compare(config, ("gin", "gin"))


def test_the_command_line_takes_the_options_and_ends_with_one_line(monkeypatch, tmp_path):
    given = []
    monkeypatch.setattr(
        "experiments.graphs.train.train_all", lambda *options: given.append(options)
    )
    monkeypatch.setattr(
        "experiments.graphs.compare.compare", lambda *options: given.append(options)
    )
    start = ["--dataset", "mutag", "--seeds", "0", "1", "--run", str(tmp_path)]
    for command, more in {"train": [], "compare": ["--models", "gcn"]}.items():
        monkeypatch.setattr("sys.argv", ["graphs", command, *start, *more])
        command_line.main()
    config = replace(GraphsConfig(), dataset="mutag", run=tmp_path)
    assert given == [(config, Repeats((0, 1))), (config, ("gcn",), Repeats((0, 1)))]
    monkeypatch.undo()
    monkeypatch.setattr("sys.argv", ["graphs", "train", "--dataset", "nowhere"])
    with pytest.raises(SystemExit, match="error: train: --dataset must be one of digits, mutag"):
        command_line.main()
