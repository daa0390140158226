"""Networks of plain JAX before and after fuse: what is shown of them, and how they are timed."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments._plain_networks import NAMES, Edges, available, plain_network
from experiments.benchmarks import fuse as benchmark
from experiments.mlp import __main__ as command_line
from experiments.mlp import fuse as fuse_module
from experiments.mlp.config import NETWORKS, FuseConfig
from experiments.mlp.fuse import explain_models, model_names
from jaxgnn.fusion import explain, fuse

_rng = np.random.default_rng(0)
EDGES = Edges(*(jnp.asarray(_rng.integers(0, 11, 40), jnp.int32) for _ in range(2)), 11)
SMALL = {"nodes": 11, "edges": 40, "dim": 8}


@pytest.fixture(autouse=True)
def dtypes_are_promoted_as_for_users():
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.costly(4)
@pytest.mark.parametrize("name", NAMES)
def test_a_plain_network_is_the_same_rewritten_and_by_hand(name):
    if name not in available():
        pytest.skip("reason: jraphx is not installed")
    network = plain_network(name, EDGES, 8)
    expected = jax.jit(network.run)(*network.arrays)
    assert jnp.isfinite(expected).all()
    for other in (fuse(network.run, only_if_faster=False), network.by_hand):
        if other is not None:
            np.testing.assert_allclose(other(*network.arrays), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.costly(6)
@pytest.mark.parametrize("name", NAMES)
def test_both_searches_rewrite_a_network_alike_where_that_pays(name):
    if name not in available():
        pytest.skip("reason: jraphx is not installed")
    ids = (jnp.asarray(_rng.integers(0, 2000, 60_000), jnp.int32) for _ in range(2))
    network = plain_network(name, Edges(*ids, 2000), 64)
    by_matcher, by_egglog = (
        explain(network.run, *network.arrays, search=search).findings.applied
        for search in ("matcher", "egglog")
    )
    assert by_egglog == by_matcher


def test_every_network_and_the_nine_of_the_benchmark_can_be_asked_for():
    names = model_names()
    assert len(names) == len(NETWORKS) + len(NAMES)
    assert names["784-256x2-10@64"] == NETWORKS[0]
    assert "jraph.GAT" in names


def test_the_command_prints_a_table_and_writes_a_page(tmp_path, capsys, monkeypatch):
    options = [f"--{name}={value}" for name, value in SMALL.items()]
    models = ["784-256x2-10@64", "jraph.GAT"]
    command = ["mlp", "fuse", "--model", *models, "--run", str(tmp_path), "--all-rewrites"]
    monkeypatch.setattr(sys, "argv", [*command, "--search=matcher", "--no-measure", *options])
    command_line.main()
    text = capsys.readouterr().out
    assert "gat_attention" in text
    assert "3 layers of 8 rows -> fused_mlp" in text
    assert [line for line in text.splitlines() if line.startswith("jraph.GAT ")]
    for name, op in zip(models, ("fused_mlp", "gat_attention"), strict=True):
        page = (tmp_path / f"fuse_{name}.html").read_text()
        assert "<svg" in page
        assert op in page


def test_measured_and_predicted_times_stand_in_the_table(tmp_path, capsys):
    config = FuseConfig(("mean",), **SMALL, all_rewrites=True, search="matcher", run=tmp_path)
    found = explain_models(config)["mean"]
    line = capsys.readouterr().out.strip().splitlines()[-1]
    assert f"{found.measured.before_ms:.3g} -> {found.measured.after_ms:.3g}" in line
    before, after = map(sum, zip(*map(found.predicted_ms, found.findings.applied), strict=True))
    assert f"{before:.3g} -> {after:.3g}" in line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": ("gcn",)}, r"fuse: --model must be among 784-256x2-10@64, .*, got 'gcn'"),
        ({"nodes": 1}, "fuse: --nodes must be at least 2, got 1"),
        ({"edges": -1}, "fuse: --edges must be at least 0, got -1"),
        ({"dim": 0}, "fuse: --dim must be at least 1, got 0"),
    ],
)
def test_bad_options_are_named(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        explain_models(FuseConfig(**options, run=tmp_path))


def test_a_network_whose_package_is_not_installed_is_refused(monkeypatch):
    monkeypatch.setattr(fuse_module, "available", lambda: ("mean",))
    with pytest.raises(ValueError, match="--model must be a network whose package is installed"):
        explain_models(FuseConfig(("jraphx.GCNConv",)))


def test_the_benchmark_times_a_network_and_the_version_by_hand(tmp_path, capsys):
    options = benchmark.FuseOptions(
        out=tmp_path, graphs=("tiny",), models=("maxk", "mean"), budget=1.0
    )
    benchmark.main(options)
    rows = [json.loads(line) for line in (tmp_path / "fuse.jsonl").read_text().splitlines()]
    assert [row["model"] for row in rows] == ["maxk", "mean"]
    assert rows[0]["hand_ms"] > 0
    assert "hand_ms" not in rows[1]
    assert rows[1]["plain_ms"] > 0
    assert rows[1]["matcher_rewriting_ms"] > 0
    assert "by hand" in capsys.readouterr().out


def test_what_does_not_fit_is_a_row_and_no_crash(tmp_path, capsys, monkeypatch):
    def out_of_memory(candidates, **options):
        return dict.fromkeys(candidates)

    monkeypatch.setattr(benchmark, "measure_in_turns", out_of_memory)
    benchmark.main(benchmark.FuseOptions(out=tmp_path, graphs=("tiny",), models=("mean",)))
    assert "out of memory -> out of memory ms" in capsys.readouterr().out
    assert json.loads((tmp_path / "fuse.jsonl").read_text())["plain_ms"] is None


def test_lines_that_would_come_too_late_are_named_and_left_out(tmp_path, capsys):
    options = benchmark.FuseOptions(out=tmp_path, graphs=("tiny",), models=("mean",), limit=-1.0)
    benchmark.main(options)
    assert (
        "tiny      mean                     left out: the time was over" in capsys.readouterr().out
    )
    assert not (tmp_path / "fuse.jsonl").exists()


def test_a_graph_that_there_is_not_is_named():
    with pytest.raises(
        ValueError, match=r"fuse: --graphs must be among empty, tiny, .*, got 'cora'"
    ):
        benchmark.main(benchmark.FuseOptions(graphs=("cora",)))
