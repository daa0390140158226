"""Link prediction, from the command line to the report."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from experiments.links import train as train_module
from experiments.links.config import TrainConfig
from experiments.links.data import links_of
from experiments.links.sampled import SampledLoss, loader_of
from experiments.links.setup import make_model, scores_of
from experiments.links.train import train
from experiments.links.trivial import trivial_scores
from jaxgnn import datasets

TINY = datasets.SyntheticScale(
    nodes=120, edges=900, features=8, communities=4, exponent=0.5, train=0.6, validation=0.2
)


@pytest.fixture(scope="module")
def tiny():
    return datasets.synthetic(TINY, seed=0)


def _config(folder: Path, **options) -> TrainConfig:
    defaults = {
        "dataset": "synthetic",
        "hidden_features": 16,
        "embedding_features": 8,
        "k": 4,
        "supervision": 0.3,
        "epochs": 12,
        "eval_every": 4,
        "checkpoint_every": 4,
        "candidates": 10,
        "run": folder / "run",
        "progress": False,
    }
    return TrainConfig(**(defaults | options))


def _pairs(edges):
    return {tuple(sorted(pair)) for pair in np.asarray(edges).reshape(2, -1).T.tolist()}


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory):
    config = _config(tmp_path_factory.mktemp("links"), checkpoint_every=0)
    return config.run, train(config, tiny)


@pytest.mark.long
def test_a_run_learns_and_writes_its_scores_curves_and_report(trained):
    folder, outcome = trained
    losses = [row["loss"] for row in outcome.history]
    assert losses[-1] < losses[0] and outcome.validation["ROC-AUC"] > 0.5
    assert set(outcome.test) == {"ROC-AUC", "AP", "MRR", "hits@20"}
    result = json.loads((folder / "result.json").read_text())
    assert result["test"] == outcome.test and result["metric"] == "ROC-AUC"
    page = (folder / "report.html").read_text()
    assert (folder / "curves.png").exists()
    for name in ("common neighbours", "Adamic-Adar", "preferential attachment", "cosine"):
        assert name in page


def test_no_part_is_asked_for_what_it_has_seen(tiny, tmp_path):
    config = _config(tmp_path, negatives="source", negatives_per_edge=3)
    links = links_of(config, tiny)
    every = _pairs([tiny.senders, tiny.receivers])
    training = links.training
    assert not _pairs(training.positives) & _pairs(links.split.train.messages)
    for name, part in links.examinations.items():
        messages = _pairs(getattr(links.split, name).messages)
        assert not _pairs(part.positives) & messages
        assert not _pairs(part.negatives) & every
        np.testing.assert_array_equal(part.candidates[0][:, 0], part.positives[0])
        assert not _pairs(np.asarray(part.candidates)) & every
    # What the training draws avoids the training's own edges alone: others are not known to it.
    drawn = training.sampler.sample(jax.random.key(0), 200, jnp.arange(120))
    known = _pairs(links.split.validation.messages)
    assert not _pairs(drawn) & known
    assert _pairs(drawn) & _pairs(links.examinations["test"].positives)


def test_validation_edges_are_read_at_the_test_only_where_asked(tiny, tmp_path):
    seen = {}
    for read in (False, True):
        links = links_of(_config(tmp_path, read_validation=read), tiny)
        split, nodes = links.split, links.examinations["test"].nodes
        seen[read] = nodes.graph.num_edges
        validation, test = (_pairs(part.messages) for part in (split.validation, split.test))
        assert (_pairs(split.validation.supervision) <= test) == read
        assert validation <= test and (validation == test) == (not read)
    assert seen[True] > seen[False]


def test_methods_without_a_network_score_as_their_formulas_say(tiny, tmp_path):
    links = links_of(_config(tmp_path), tiny)
    part, asked = links.split.test, links.examinations["test"]
    joined = np.zeros((120, 120))
    joined[tuple(part.messages)] = 1
    degrees = joined.sum(axis=1)
    unit = tiny.features / np.linalg.norm(tiny.features, axis=1, keepdims=True)
    expected = {
        "common neighbours": joined @ joined.T,
        "Adamic-Adar": joined @ np.diag(1 / np.log(np.maximum(degrees, 2))) @ joined.T,
        "preferential attachment": np.outer(degrees, degrees),
        "cosine of features": unit @ unit.T,
    }
    found = trivial_scores(tiny, part, asked, 20)
    assert found.keys() == expected.keys()
    for name, matrix in expected.items():
        edges, others, ranked = (
            jnp.asarray(matrix[tuple(np.asarray(ends))], jnp.float32)
            for ends in (asked.positives, asked.negatives, asked.candidates)
        )
        scores = scores_of(edges, others, ranked, asked.candidates[1] >= 0, 20)
        for score, value in scores.items():
            np.testing.assert_allclose(found[name][score], value, atol=0.02, err_msg=name)


@pytest.mark.parametrize(
    "options",
    [
        {"model": "sage", "activation": "relu", "decoder": "mlp", "negatives": "source"},
        {
            "model": "gin",
            "activation": "maxk",
            "negatives": "degree",
            "select": "hits",
            "dtype": "bfloat16",
        },
    ],
)
@pytest.mark.long
def test_other_networks_decoders_and_negatives_run(options, tiny, tmp_path):
    outcome = train(_config(tmp_path, epochs=2, eval_every=0, **options), tiny)
    assert np.isfinite(list(outcome.test.values())).all()


def test_sampled_steps_predict_edges_that_they_do_not_read(tiny, tmp_path):
    config = _config(
        tmp_path, supervision=0.0, sample=(6, 4), batch_size=40, negatives_per_edge=2, seed=3
    )
    links = links_of(config, tiny)
    loader, model = loader_of(config, tiny, links), make_model(config, tiny.features.shape[1])
    assert config.layers() == 2 and len(loader) == -(-links.training.positives.shape[1] // 40)
    known = _pairs(links.split.train.messages)
    for batch in loader.epoch(0):
        ends, mask = np.asarray(batch.n_id)[np.asarray(batch.pairs).T], np.asarray(batch.pair_mask)
        positives, negatives = (_pairs(part[on].T) for part, on in _halves(ends, mask, 40))
        assert positives <= known and not negatives & known
        for block in batch.blocks:
            indptr, n_id = np.asarray(block.indptr), np.asarray(batch.n_id)
            rows = np.repeat(np.arange(block.num_rows), np.diff(indptr))
            read = _pairs([n_id[np.asarray(block.indices)[: indptr[-1]]], n_id[rows]])
            assert read and not read & positives
    loss, _ = SampledLoss(0.1)(model, batch, nnx.Rngs(0))
    assert np.isfinite(loss)


def _halves(ends, mask, count):
    return (ends[:count], mask[:count]), (ends[count:], mask[count:])


@pytest.mark.long
def test_a_sampled_run_learns_and_resumes_within_an_epoch(tiny, tmp_path, monkeypatch):
    options = {"sample": (8,), "batch_size": 64, "epochs": 8, "eval_every": 2, "supervision": 0.0}
    config, calls = _config(tmp_path, checkpoint_every=1, **options), []
    expected = train(_config(tmp_path / "whole", **options), tiny)
    losses = [row["loss"] for row in expected.history]
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) and expected.validation["ROC-AUC"] > 0.5
    assert expected.epoch in (2, 4, 6, 8)

    class Stopping(train_module.Scores):
        def __call__(self, model):
            calls.append(model)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return super().__call__(model)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(train_module, "Scores", Stopping)
        train(config, tiny)
    resumed = train(config, tiny)
    assert resumed.history == expected.history and resumed.test == expected.test


def test_folders_and_tables_name_what_is_sampled():
    config = TrainConfig(sample=(10, 5))
    assert config.label() == "GCN ReLU, dot, sampled 10 5" and config.layers() == 2
    assert config.variant_name() == "gcn-relu-dot-sample-10-5-of1024-seed0"
    assert TrainConfig().layers() == 1 and TrainConfig().variant_name() == "gcn-relu-dot-seed0"


BAD = {
    "--sample": ({"sample": (3, 0)}, "train: --sample must be positive numbers, or -1 for all"),
    "--num-layers": (
        {"sample": (3, 2), "num_layers": 3},
        "--sample must be a number for each of the 3 layers, got 3 2",
    ),
    "--batch-size": ({"sample": (3,), "batch_size": 0}, "--batch-size must be at least 1, got 0"),
    "--devices": ({"sample": (3,), "devices": 2}, "--devices must be left out with --sample 3"),
    "--test": ({"test": 1.0}, r"train: --test must be in \[0, 1\), got 1.0"),
    "both": ({"validation": 0.5, "test": 0.5}, "--validation and --test must be below 1 together"),
    "--validation": ({"validation": 0.0}, "--validation must be above 0, got 0.0"),
    "--candidates": ({"candidates": 0}, "--candidates must be at least 1, got 0"),
    "--k": ({"k": 99, "activation": "maxk"}, "--k must be at most --hidden-features, 16, got 99"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options_are_named_as_they_are_typed_before_anything_is_written(name, tmp_path, tiny):
    options, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        train(_config(tmp_path, **options), tiny)
    assert not list(tmp_path.iterdir())
