"""Networks of plain JAX before and after fuse: what is shown of them, and how they are timed."""

import json
import sys
from types import SimpleNamespace
from typing import Any

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
from jaxgnn.fusion import fuse
from tests.experiments._stand_ins import ended_by_the_system, stuck_in_the_second_case

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


def test_every_network_and_the_nine_of_the_benchmark_can_be_asked_for():
    names = model_names()
    assert len(names) == len(NETWORKS) + len(NAMES)
    assert names["784-256x2-10@64"] == NETWORKS[0]
    assert "jraph.GAT" in names


def test_the_command_prints_a_table_and_writes_a_page(tmp_path, capsys, monkeypatch):
    options = [f"--{name}={value}" for name, value in SMALL.items()]
    models = ["784-256x2-10@64", "jraph.GAT"]
    command = ["mlp", "fuse", "--model", *models, "--run", str(tmp_path), "--all-rewrites"]
    monkeypatch.setattr(sys, "argv", [*command, "--no-measure", *options])
    command_line.main()
    text = capsys.readouterr().out
    assert "gat_attention" in text
    assert "3 layers of 8 rows -> fused_mlp" in text
    assert [line for line in text.splitlines() if line.startswith("jraph.GAT ")]
    for name, op in zip(models, ("fused_mlp", "gat_attention"), strict=True):
        page = (tmp_path / f"fuse_{name}.html").read_text()
        assert "<svg" in page
        assert op in page


def test_measured_times_stand_in_the_table(tmp_path, capsys):
    config = FuseConfig(("mean",), **SMALL, all_rewrites=True, run=tmp_path)
    found = explain_models(config)["mean"]
    line = capsys.readouterr().out.strip().splitlines()[-1]
    assert f"{found.measured.before_ms:.3g} -> {found.measured.after_ms:.3g}" in line


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
    assert rows[1]["plain_bytes"] > 0
    assert rows[1]["matcher_rewriting_ms"] > 0
    assert rows[1]["stages"]["compiling plain"] > 0
    assert "by hand" in capsys.readouterr().out


def _measured(models, monkeypatch, **replaced):
    """The rows of the benchmark on the smallest graph, with other functions in it, and stages."""
    for name, function in replaced.items():
        monkeypatch.setattr(benchmark, name, function)
    options = benchmark.FuseOptions(graphs=("tiny",), models=models, budget=1.0)
    messages = list(benchmark.measurements(options, 0))
    rows = [message.row for message in messages if isinstance(message, benchmark.Measured)]
    return rows, [message.stage for message in messages if isinstance(message, benchmark.Begun)]


def test_what_does_not_fit_when_it_runs_is_a_row_with_the_bytes_that_were_planned(monkeypatch):
    def out_of_memory(candidates, **options):
        return dict.fromkeys(candidates)

    ((row,), _) = _measured(("mean",), monkeypatch, measure_in_turns=out_of_memory)
    assert row["plain_ms"] is None
    assert f"out of memory ({row['plain_bytes'] / 1e9:.3g} GB)" in benchmark._line(row)


def test_what_is_planned_to_need_more_memory_than_a_host_has_is_a_row_and_not_run(monkeypatch):
    (row,), _ = _measured(("mean",), monkeypatch, _fits=lambda planned: False)
    assert row["plain_ms"] is row["fused_ms"] is None
    assert row["plain_bytes"] > 0
    assert "out of memory" in benchmark._line(row)


def test_what_does_not_fit_when_it_is_compiled_is_a_row_that_says_so(monkeypatch):
    def exhausted(traced):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    (row,), stages = _measured(("mean",), monkeypatch, opened=exhausted)
    assert row["plain_ms"] is row["plain_bytes"] is None
    assert "out of memory -> out of memory ms" in benchmark._line(row)
    assert "tracing plain" in stages


def _limits(limit, case_limit) -> Any:
    """In the place of options, which would make the other process import the benchmark."""
    return SimpleNamespace(limit=limit, case_limit=case_limit)


def test_a_case_that_does_not_end_is_stopped_and_the_next_ones_go_on(monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "measurements", stuck_in_the_second_case)
    monkeypatch.setattr(benchmark, "_PATIENCE", 0.1)
    rows = list(benchmark.rows_of(_limits(60.0, case_limit=1.0)))
    assert [row["model"] for row in rows] == ["0", "1", "2"]
    reason = "while compiling plain: stopped, as its time was over"
    assert [row.get("left_out") for row in rows] == [None, reason, None]
    assert " s  compiling plain" in capsys.readouterr().out


def test_a_process_that_the_system_ends_is_a_row_that_says_where(monkeypatch):
    monkeypatch.setattr(benchmark, "measurements", ended_by_the_system)
    (row,) = benchmark.rows_of(_limits(60.0, case_limit=60.0))
    assert row["left_out"] == "while measuring: its process ended by itself, with the code 9"


def test_no_time_at_all_is_refused():
    for name in ("limit", "case_limit"):
        option = name.replace("_", "-")
        with pytest.raises(ValueError, match=f"fuse: --{option} must be more than 0 seconds, got"):
            benchmark.main(benchmark.FuseOptions(**{name: 0.0}))


def test_a_graph_that_there_is_not_is_named():
    with pytest.raises(
        ValueError, match=r"fuse: --graphs must be among empty, tiny, .*, got 'cora'"
    ):
        benchmark.main(benchmark.FuseOptions(graphs=("cora",)))
