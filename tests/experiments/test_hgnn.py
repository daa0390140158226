"""The HGNN experiments, from the command line to the picture."""

import json
import math
import sys
from dataclasses import replace

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from experiments._seeds import Repeats, paired
from experiments.hgnn import __main__ as command_line
from experiments.hgnn import lm as lm_module
from experiments.hgnn import nodes as nodes_module
from experiments.hgnn.config import LMConfig, LMRun, NodesConfig
from experiments.hgnn.data import clique_expansion, load
from experiments.hgnn.lm import lm, train
from experiments.hgnn.nodes import make_batch, nodes
from jaxgnn.datasets import TextDataset
from jaxgnn.models import HypergraphGNN
from jaxgnn.models._hypergraph_gnn import _CONVOLUTIONS
from jaxgnn.testing import check_forward_mode
from tests.datasets import formats

TINY = {
    "num_layers": 1,
    "coupler_layers": 1,
    "features": 8,
    "num_heads": 2,
    "context": 12,
    "batch_size": 4,
    "steps": 30,
    "learning_rate": 3e-2,
    "eval_every": 15,
    "checkpoint_every": 10,
    "progress": False,
}


@pytest.fixture(scope="module")
def text():
    def numbers(first, last):
        words = " ".join(f"{i} and {i + 1}" for i in range(first, last))
        return np.frombuffer(words.encode(), np.uint8)

    return TextDataset("numbers", train=numbers(0, 300), validation=numbers(300, 320))


# -- language models -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compared(text, tmp_path_factory):
    """The folder, the outcomes and what was printed of a comparison."""
    folder = tmp_path_factory.mktemp("lm")
    options = {"experts": (1, 2), "couplings": ("hypergraph",), "run": folder, **TINY}
    return folder, lm(LMConfig(**options), dataset=text)


@pytest.mark.long
def test_lm_learns_with_every_number_of_experts_and_draws_them(compared):
    folder, comparison = compared
    outcomes = [runs[0] for runs in comparison.outcomes]
    labels = [outcome.run.label() for outcome in outcomes]
    assert labels == ["1 expert", "2 experts, all pairs"]
    for outcome in outcomes:
        assert outcome.validation < 0.8 * outcome.history[0]["loss"]
        assert outcome.perplexity == pytest.approx(np.exp(outcome.validation))
        result = json.loads((outcome.run.run_folder() / "result.json").read_text())
        assert result["perplexity"] == outcome.perplexity
    for name in ("perplexity.png", "curves.png"):
        assert (folder / name).stat().st_size > 5000


def test_the_table_of_lm_pairs_couplings_with_none_seed_by_seed(text, tmp_path, monkeypatch):
    losses = {"alone": {0: 2.0, 1: 2.2}, "hypergraph": {0: 1.9, 1: 2.3}}

    def fake(run, dataset):
        loss = 2.5 if run.experts == 1 else losses[run.coupling][run.seed]
        row = {"step": 1, "loss": loss, "validation loss": loss}
        return lm_module.Outcome(run, loss, 10 * run.experts, 4.0, [row])

    monkeypatch.setattr(lm_module, "train", fake)
    config = LMConfig(experts=(1, 2), run=tmp_path)
    rows = {row[:2]: row for row in lm(config, Repeats((0, 1)), dataset=text).table.rows}
    assert rows["1", "-"][3:6] == ("2.500 ± 0.000 (2)", "12.18", "-")
    assert rows["2", "not coupled"][5] == "-"
    difference = str(paired([1.9, 2.3], [2.0, 2.2], digits=3))
    assert rows["2", "all pairs"][2:6] == ("20", "2.100 ± 0.283 (2)", "8.17", difference)
    assert rows["-", "counts, 0 bytes before"][3].endswith("(2)")
    assert (tmp_path / "perplexity.png").stat().st_size > 5000


def test_runs_by_default_are_one_of_one_expert_and_two_of_more():
    runs = [(run.experts, run.coupling) for run in LMConfig().variants()]
    several = [(n, coupling) for n in (2, 4, 8) for coupling in ("alone", "hypergraph")]
    assert runs == [(1, "alone"), *several]


@pytest.mark.parametrize("experts", [2, 8])
def test_coupled_and_not_differ_by_nothing_but_weights_of_hyperedges(experts):
    shapes = []
    for coupling in ("alone", "hypergraph"):
        run = LMRun(experts=experts, coupling=coupling, **TINY)
        state = nnx.state(nnx.eval_shape(lambda run=run: lm_module._make_model(run)), nnx.Param)
        shapes.append({path: p.shape for path, p in nnx.to_flat_state(state)})
    assert shapes[0].keys() == shapes[1].keys()
    different = {path for path in shapes[0] if shapes[0][path] != shapes[1][path]}
    assert len(different) == TINY["num_layers"] * TINY["coupler_layers"]
    assert all(path[-2:] == ("weights", "logits") for path in different)


@pytest.mark.long
def test_losses_of_orthogonality_fall_when_they_are_asked_for(text, tmp_path):
    options = TINY | {"output_orthogonality": 1.0, "weight_orthogonality": 20.0}
    run = LMRun(experts=3, coupling="mean", run=tmp_path, **options)
    history = train(run, text).history
    for name in ("output orthogonality", "weight orthogonality"):
        assert history[-1][name] < 0.7 * history[0][name]
    assert history[-1]["loss"] < 0.9 * history[0]["loss"]


BAD = {
    "experts": ({"experts": (0, 2)}, "--experts must be at least 1, got 0 2"),
    "no experts": ({"experts": ()}, r"--experts must be one or more, all different, got \(\)"),
    "couplings": (
        {"couplings": ("mean", "mean")},
        "--couplings must be one or more, all different",
    ),
    "strategy": (
        {"strategy": "all_triples"},
        "--experts must be 1, or at least 3 for --strategy all_triples, got 2",
    ),
    "context": ({"context": 0}, "--context must be at least 1, got 0"),
    "long context": ({"context": 10**6}, "--context must be less than the text's"),
    "batch size": ({"batch_size": 0}, "--batch-size must be at least 1, got 0"),
    "strength": ({"output_orthogonality": -1.0}, "--output-orthogonality must be at least 0"),
    "strength NaN": ({"weight_orthogonality": float("nan")}, "--weight-orthogonality must be"),
    "heads": ({"num_heads": 3}, "num_heads must be a divisor of 8"),
    "steps": ({"steps": 0}, "--steps must be at least 1, got 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options_of_lm_are_named(name, text, tmp_path):
    options, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        lm(LMConfig(run=tmp_path / "run", **(TINY | options)), dataset=text)
    assert not (tmp_path / "run").exists(), "a bad option must not leave a run folder"


def test_a_loss_beyond_what_a_perplexity_can_be_is_told_so():
    for loss, perplexity in ((0.0, 1.0), (1e3, math.inf), (math.inf, math.inf)):
        assert lm_module.Outcome(LMRun(), loss, 0, None, []).perplexity == perplexity
    assert math.isnan(lm_module.Outcome(LMRun(), math.nan, 0, None, []).perplexity)


# -- nodes ---------------------------------------------------------------------------------------


@pytest.mark.again("test_nodes_reads_lines_of_text")
def test_nodes_classifies_digits(tmp_path, capsys):
    config = NodesConfig(hidden_features=32, epochs=30, run=tmp_path / "run", progress=False)
    outcome = nodes(config)
    assert outcome.test > 0.95
    assert (tmp_path / "run/curves.png").stat().st_size > 5000
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result == {"metric": "accuracy", "test": outcome.test, "epoch": outcome.epoch}
    assert "16,173 incidences" in capsys.readouterr().out
    page = (tmp_path / "run/report.html").read_text()
    assert "label propagation" in page and "Classes" in page
    again = nodes(config)
    assert again.history == outcome.history and again.ms_per_epoch == outcome.ms_per_epoch


def test_nodes_share_an_edge_of_the_expansion_if_they_share_a_hyperedge():
    data = formats.small_hypergraph()
    graph = clique_expansion(data)
    members = [set(data.node_ids[data.hyperedge_ids == i]) for i in range(data.num_hyperedges)]
    expected = {(a, b) for group in members for a in group for b in group if a != b}
    edges = list(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))
    assert len(edges) == len(set(edges)) and set(edges) == expected


def test_nodes_of_several_seeds_print_their_mean(tmp_path, monkeypatch, capsys):
    tests = {0: 0.5, 1: 0.7}
    monkeypatch.setattr(
        nodes_module, "nodes", lambda config: nodes_module.Outcome(tests[config.seed], 1, None, [])
    )
    nodes_module.nodes_all(NodesConfig(run=tmp_path), Repeats((0, 1)))
    assert "test accuracy: 60.00 ± 14.14 (2) %" in capsys.readouterr().out


def test_a_run_whose_validations_are_all_nan_has_no_best_epoch(tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.hgnn.nodes.accuracy", lambda *_: math.nan)
    config = NodesConfig(hidden_features=4, epochs=2, run=tmp_path / "run", progress=False)
    with pytest.raises(FloatingPointError, match="every evaluation was NaN; no epoch is the best"):
        nodes(config)
    assert not (tmp_path / "run/result.json").exists()


@pytest.mark.again("tests/nn/test_hypergraph.py")
@pytest.mark.parametrize("kind", _CONVOLUTIONS)
def test_every_convolution_has_a_network_of_every_depth(kind):
    batch = make_batch(NodesConfig(), formats.small_hypergraph())
    for layers in (1, 3):
        options = {"num_layers": layers, "kind": kind}
        model = nnx.eval_shape(lambda o=options: HypergraphGNN(3, 8, 5, **o, rngs=nnx.Rngs(0)))
        scores = nnx.eval_shape(
            lambda m: m(batch.hypergraph, batch.features, rngs=nnx.Rngs(dropout=1)), model
        )
        assert scores.shape == (formats.NODES, 5)


@pytest.mark.again("tests/ops/test_forward_mode.py")
@pytest.mark.costly
@pytest.mark.parametrize("kind", _CONVOLUTIONS)
def test_networks_have_forward_mode_gradients_by_the_name_of_the_reference(kind):
    batch = make_batch(NodesConfig(), formats.small_hypergraph())
    model = HypergraphGNN(3, 8, 5, kind=kind, implementation="xla", rngs=nnx.Rngs(0))
    check_forward_mode(lambda x: model(batch.hypergraph, x), batch.features)


@pytest.mark.again("tests/nn/test_hypergraph.py")
@pytest.mark.parametrize("kind", ["hgnn", "unigcn", "alldeepsets"])
def test_convolutions_fit_a_small_hypergraph(kind):
    """Two groups of nodes, whose hyperedges tell them apart and whose features do not."""
    members = [range(0, 6), range(3, 8), range(8, 14), range(11, 16)]
    labels = np.repeat([0, 1], 8)
    small = formats.small_hypergraph()
    data = replace(
        small,
        node_ids=np.concatenate([np.array(m, np.int32) for m in members]),
        hyperedge_ids=np.repeat(np.arange(4, dtype=np.int32), [len(m) for m in members]),
        num_hyperedges=4,
        features=np.eye(16, dtype=np.float32),
        labels=labels,
        train=np.array([0, 4, 8, 12], np.int32),
    )
    batch = make_batch(NodesConfig(), data)
    model = HypergraphGNN(16, 32, 2, kind=kind, dropout=0.0, rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(model, nnx.Param)

    def scores(state):
        return nnx.merge(graphdef, state)(batch.hypergraph, batch.features)

    def loss(state):
        log_p = jax.nn.log_softmax(scores(state))
        right = jax.numpy.take_along_axis(log_p, batch.labels[:, None], axis=1)[:, 0]
        return -jax.numpy.mean(right, where=batch.train)

    adam = optax.adam(0.02)

    def step(_, both):
        state, moments = both
        with jax.numpy_dtype_promotion("standard"):  # Optax mixes dtypes
            updates, moments = adam.update(jax.grad(loss)(state), moments)
            return optax.apply_updates(state, updates), moments

    @jax.jit
    def descend(state):
        return jax.lax.fori_loop(0, 100, step, (state, adam.init(state)))[0]

    assert float(jax.jit(loss)(descend(state))) < 0.1


@pytest.mark.again("tests/datasets/test_readers.py")
@pytest.mark.parametrize("split", [3, None])
def test_nodes_reads_pickles_with_published_and_random_splits(split, tmp_path, capsys):
    data = replace(formats.small_hypergraph(), labels=np.arange(formats.NODES) % 2)
    formats.write_hypergcn(tmp_path, data)
    config = NodesConfig(
        dataset="hypergcn",
        data=tmp_path,
        split=split,
        hidden_features=4,
        epochs=3,
        normalize=True,
        run=tmp_path / "run",
        progress=False,
    )
    outcome = nodes(config)
    assert ("validation accuracy" in outcome.history[-1]) == (split is None)
    printed = capsys.readouterr().out
    assert ("no validation nodes, last epoch 3" in printed) == (split == 3)


def test_nodes_reads_lines_of_text(tmp_path):
    formats.write_hyperedge_text(tmp_path, formats.small_hypergraph(), features=False)
    config = NodesConfig(dataset="text", data=tmp_path, feature_noise=0.1)
    assert load(config).num_incidences == formats.small_hypergraph().num_incidences


BAD_NODES = {
    "data": ({"dataset": "hypergcn"}, "--data must be the folder with the files of hypergcn"),
    "neighbors": ({"neighbors": 0}, "neighbors: expected 1 to 1796, got 0"),
    "layers": ({"num_layers": 0}, "--num-layers must be at least 1, got 0"),
    "dropout": ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
    "model": ({"model": "gcn"}, "kind must be one of hgnn, hcha, .*, got 'gcn'"),
    "epochs": ({"epochs": 0}, "--epochs must be at least 1, got 0"),
}


@pytest.mark.parametrize("name", BAD_NODES)
def test_bad_options_of_nodes_are_named(name, tmp_path):
    options, message = BAD_NODES[name]
    with pytest.raises(ValueError, match=message):
        nodes(NodesConfig(run=tmp_path / "run", progress=False, **options))
    assert not (tmp_path / "run").exists(), "a bad option must not leave a run folder"


def test_the_command_line_ends_a_bad_file_with_one_line(tmp_path, monkeypatch):
    formats.write_hypergcn(tmp_path, formats.small_hypergraph())
    (tmp_path / "labels.pickle").write_bytes(b"cos\nsystem\n.")
    arguments = ["hgnn", "nodes", "--dataset", "hypergcn", "--data", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    # Python prints such a code on stderr, and exits with 1.
    with pytest.raises(SystemExit, match=r"^error: .*labels\.pickle: refers to os\.system"):
        command_line.main()


@pytest.mark.again("test_the_table_of_lm_pairs_couplings_with_none_seed_by_seed")
def test_the_command_line_trains_on_the_text_of_python(tmp_path, monkeypatch, capsys):
    # As above, so that nothing is compiled again.
    options = ["--experts", "2", "--couplings", "hypergraph", "--no-progress"]
    for name, value in (TINY | {"run": tmp_path / "run"}).items():
        if name != "progress":
            options += ["--" + name.replace("_", "-"), str(value)]
    monkeypatch.setattr(sys, "argv", ["hgnn", "lm", *options])
    command_line.main()
    assert "all pairs" in capsys.readouterr().out
