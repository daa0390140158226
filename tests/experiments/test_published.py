"""Published results on Cora and MUTAG are repeated by their own protocols."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from experiments._node_data import make_batch
from experiments._seeds import Repeats
from experiments.attention import published
from experiments.attention.config import PublishedConfig
from experiments.graphs import folds
from experiments.graphs.config import FoldsConfig
from jaxgnn import datasets


@pytest.fixture(scope="module")
def gcn():
    """A GCN of Cora with its data, and the epoch at which training chose it."""
    dataset = datasets.cora(seed=0)
    batch = make_batch(dataset, normalization="gcn", self_loops=1, dtype="float32", op="spmm")
    model = published.PublishedGCN(dataset.features.shape[1], 7, nnx.Rngs(0))
    return model, batch, dataset


def test_training_stops_fifty_epochs_after_the_lowest_validation_loss(gcn):
    best = published.train_until_it_stops(*gcn, seed=0, epochs=10_000)
    assert best.test > 0.78 and best.validation > 0.78
    # Fewer epochs than those until the minimum end at a higher loss, more do not change it.
    until = int(best.epoch)
    assert 2 < until < 1000
    before = published.train_until_it_stops(*gcn, seed=0, epochs=until - 1)
    assert int(before.epoch) < until and before.loss > best.loss


def test_only_the_first_kernel_of_a_gcn_and_no_bias_of_a_gat_is_penalized(gcn):
    (kernel,) = gcn[0].penalized()
    assert kernel.shape == (1433, 64)
    gat = published.PublishedGAT(1433, 7, nnx.Rngs(0))
    shapes = [penalized.shape for penalized in gat.penalized()]
    assert sorted(shapes) == [(1, 7), (1, 7), (8, 8), (8, 8), (64, 7), (1433, 64)]


@pytest.mark.again("tests/test_documented_commands.py")
def test_a_row_has_the_scores_of_each_split(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(published, "RESULTS", tmp_path / "rows.jsonl")
    config = PublishedConfig(models=("gat",), epochs=2, commit_results=True)
    (row,) = published.train_all(config, Repeats((0, 1)))
    stored = json.loads((tmp_path / "rows.jsonl").read_text())
    assert stored["test"] == row["test"] and len(row["test"]) == 2
    assert {"commit", "xla_flags", "device", "jaxgnn"} < stored.keys()
    assert "81.8" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options, repeats, complaint",
    [
        ({"models": ("gcn", "gcn")}, {}, "published: --models must be one or more, each once"),
        ({"epochs": 0}, {}, "published: --epochs must be at least 1, got 0"),
        ({}, {"processes": 2}, "published: --processes must be 1, got 2"),
    ],
)
def test_bad_options_of_the_published_networks_are_named(options, repeats, complaint):
    with pytest.raises(ValueError, match=complaint):
        PublishedConfig(**options).check(Repeats(**repeats))


@pytest.mark.parametrize("name, value", [("folds", 1), ("dropout", 1.0), ("batch_size", 0)])
def test_bad_options_of_the_folds_are_named(name, value):
    with pytest.raises(ValueError, match=f"folds: --{name.replace('_', '-')} must be"):
        FoldsConfig(**{name: value}).check()


def test_each_graph_is_held_out_once_and_the_mean_curve_chooses_the_epoch(monkeypatch):
    seen, curves = [], [[0.5, 0.9, 0.8], [0.7, 0.6, 0.7]]

    def curve(config, graphs, fold, trained, held_out):
        assert not set(trained) & set(held_out) and len(trained) + len(held_out) == 188
        seen.extend(held_out)
        return curves[fold]

    monkeypatch.setattr(folds, "_curve", curve)
    row = folds.run(FoldsConfig(folds=2, epochs=3, progress=False))
    assert sorted(seen) == list(range(188))
    # The means are 0.6, 0.75 and 0.75: the first of the best counts.
    assert (row["epoch"], row["accuracy"]) == (2, [0.9, 0.6])


def test_a_fold_is_trained_without_epsilon_and_without_its_held_out_graphs():
    dataset = datasets.mutag()
    graphs = folds._Graphs(dataset)
    model = folds.PublishedGIN(7, 2, 4, 0.5, nnx.Rngs(0))
    _, trained, rest = nnx.split(model, folds._is_trained, ...)
    names = {path[-1] for path, _ in nnx.to_flat_state(trained)}
    assert names == {"kernel", "bias", "scale"}
    assert "epsilon" in {path[-1] for path, _ in nnx.to_flat_state(rest)}
    drawn = graphs.epoch(np.arange(100), 8, np.random.default_rng(0))
    assert drawn.nodes.shape[0] == folds._STEPS_OF_EPOCH
    assert int(jnp.sum(drawn.graph_mask)) == 8 * folds._STEPS_OF_EPOCH
    config = FoldsConfig(hidden_features=4, batch_size=8, epochs=4)
    accuracies = folds._curve(config, graphs, 0, np.arange(150), np.arange(150, 188))
    assert len(accuracies) == 4 and max(accuracies) > 0.5
