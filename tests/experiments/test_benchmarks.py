"""The benchmarks run, count bytes rightly, and leave rows that the report can read."""

import dataclasses
import hashlib
import importlib
import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tyro

from experiments.benchmarks import (
    _attention,
    _bars,
    _break_even,
    _hypergraphs,
    _layers,
    _sampling_peers,
    _streams,
    aggregate,
    maxk,
    maxk_spmm,
    preparation,
    report,
    run_all,
    sample_neighbours,
    scaling,
    segment_softmax,
    spmm,
    training,
    training_step,
)
from experiments.benchmarks._cache import cache_bandwidth
from experiments.benchmarks._command import command
from experiments.benchmarks._hypergraphs import COUPLINGS, HYPERGRAPHS, STEPS, Coupling, Hypergraph
from experiments.benchmarks._origin import origin, read_commit
from experiments.benchmarks._ratios import below_forward, ratio_fields, ratio_text
from experiments.benchmarks._report import (
    PICTURES,
    RESULTS,
    Column,
    append_rows,
    header,
    line,
    markdown,
    read_rows,
)
from experiments.benchmarks._session import Options, Session, run_op
from experiments.benchmarks._shades import shade
from experiments.benchmarks._workloads import (
    MESSAGES,
    ROWS,
    STREAMS,
    WORKLOADS,
    Workload,
    _build_on_device,
    forget_graphs,
    input_sets,
    uniform_graph,
)
from jaxgnn.datasets import synthetic
from jaxgnn.graph import CSRGraph
from jaxgnn.ops.core.registry import OPS
from jaxgnn.testing import machine, timing
from jaxgnn.testing.timing import Candidate
from tests.testing.test_timing import DEVICE_KEYS, raise_else

QUICK = {"repeats": 3, "batch_ms": 0.0}
HYPER_CONNECTION_OPS = [op.name for op in OPS if op.family == "mhc" and op.benchmarks]
LAYER_OPS = ("fused_linear", "fused_mlp")
ALL_ROWS = [row for op in OPS for benchmark in op.benchmarks for row in benchmark.row_names]
TINY = (Workload("uniform-48", 48, 200, 16, (4,), ("float32",), directions=("forward",)),)


@pytest.fixture
def session(tmp_path):
    return Session(TINY, tmp_path, timing=QUICK, copy_gb_per_s=10.0)


@pytest.fixture(scope="module")
def rows_of_all(tmp_path_factory):
    """The folder and the rows of one run of everything."""
    folder = tmp_path_factory.mktemp("results")
    return folder, run_all.main(Options("tiny", out=folder))


# -- where results go --------------------------------------------------------------------------

COMMANDS = sorted(
    path.stem
    for path in Path(maxk.__file__).parent.glob("*.py")
    if "__main__" in path.read_text() and "command(" in path.read_text()
)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_writes_below_runs_unless_it_is_told_to_add_to_what_is_kept(name):
    source = (Path(maxk.__file__).parent / f"{name}.py").read_text()
    (options,) = re.findall(r"command\(.*, (\w+), __doc__\)", source)
    options = getattr(importlib.import_module(f"experiments.benchmarks.{name}"), options)
    usual = tyro.cli(options, args=[])
    assert usual.rows == usual.pictures == Path("runs/benchmarks")
    assert tyro.cli(options, args=["--out", "here"]).pictures == Path("here")
    kept = tyro.cli(options, args=["--commit-results"])
    assert (kept.rows, kept.pictures) == (RESULTS, PICTURES)
    with pytest.raises(ValueError, match="--commit-results must be left out where --out is, got h"):
        options(out=Path("here"), commit_results=True)


def test_what_is_kept_with_the_code_is_where_the_options_say():
    assert (RESULTS / "spmm.jsonl").is_file()
    assert (PICTURES / "speed_gpu.png").is_file() and (PICTURES / "scaling_gpu.png").is_file()


@pytest.mark.again("tests/test_documented_commands.py")
def test_runs_leave_rows_and_pictures_below_runs_and_nothing_elsewhere(
    session, tmp_path, monkeypatch
):
    def contents():
        files = [*RESULTS.iterdir(), *PICTURES.iterdir()]
        return {file: hashlib.sha256(file.read_bytes()).digest() for file in files}

    before = contents()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("experiments.benchmarks._session.copy_bandwidth", lambda *_: 10.0)
    workload = WORKLOADS["cpu", "tiny"][0].name
    run_op(maxk.cases, Session.start(Options("tiny", only=(workload,))))
    options = scaling.ScalingOptions(100, 100, dim=8, k=2)
    scaling.main(options, dataclasses.replace(session, out=options.rows))
    report.main(report.ReportOptions())
    written = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    names = {"maxk.jsonl", "scaling.jsonl", "scaling_cpu.png", "speed_cpu.png"}
    assert written == {f"runs/benchmarks/{name}" for name in names}
    assert contents() == before


def commands_of(target: str, *variables: str) -> list[str]:
    """What ``make`` would run."""
    make = ["make", "--no-print-directory", "-n", target, *variables]
    printed = subprocess.run(make, cwd=PICTURES.parents[1], capture_output=True, text=True)
    assert printed.returncode == 0, printed.stderr
    return printed.stdout.splitlines()


@pytest.mark.skipif(shutil.which("make") is None, reason="reason: needs make")
@pytest.mark.parametrize("target", ["bench", "bench-report", "gpu-check"])
def test_targets_measure_below_runs_unless_they_are_told_to_add_to_what_is_kept(target):
    def benchmarks(*variables):
        return [line for line in commands_of(target, *variables) if "benchmarks" in line]

    assert all(line.endswith("--out runs/benchmarks") for line in benchmarks())
    assert all(line.endswith("--out here") for line in benchmarks("RESULTS=here"))
    assert all(line.endswith("--commit-results") for line in benchmarks("COMMIT_RESULTS=1"))
    assert benchmarks()


@pytest.mark.skipif(shutil.which("make") is None, reason="reason: needs make")
def test_a_gpu_is_asked_for_before_anything_else_is_done():
    first, *_ = commands_of("gpu-check", f"GPU_PYTHON={sys.executable}")
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    ended = subprocess.run(first, shell=True, capture_output=True, text=True, env=environment)
    assert ended.returncode == 1
    assert ended.stderr.strip().startswith(
        f"gpu-check: JAX of {sys.executable} runs on a cpu, not on a GPU: name a Python whose"
    )


# -- bytes, by hand ----------------------------------------------------------------------------


@pytest.fixture
def three_by_five():
    """Three rows, five columns, seven edges: 4 * 4 + 7 * 4 = 44 bytes of structure."""
    senders, receivers = np.arange(7) % 5, np.arange(7) % 3
    return CSRGraph.from_edges(senders, receivers, 3, num_senders=5)


def test_bytes_of_maxk():
    # 10 rows of 16 floats, and of 4 floats with one byte for the column.
    assert maxk.bytes_moved(10, 16, 4, 4, "forward") == 640 + 200
    assert maxk.bytes_moved(10, 16, 4, 4, "forward+backward") == 2 * 840
    # Beyond 256 columns an index takes two bytes.
    assert maxk.bytes_moved(1, 512, 4, 2, "forward") == 1024 + 4 * (2 + 2)


def test_bytes_of_spmm(three_by_five):
    gathered = 7 * 8 * 4
    assert spmm.bytes_moved(three_by_five, 8, 4, "forward") == 44 + gathered + 3 * 8 * 4
    assert spmm.bytes_moved(three_by_five, 8, 4, "backward") == 44 + gathered + 5 * 8 * 4
    both = 2 * (44 + gathered) + 8 * 8 * 4
    assert spmm.bytes_moved(three_by_five, 8, 4, "forward+backward") == both
    weighted = three_by_five.with_weights(jnp.ones(7))
    assert spmm.bytes_moved(weighted, 8, 4, "forward") == 44 + 28 + gathered + 96


def test_bytes_of_maxk_spmm(three_by_five):
    forward = 44 + 7 * 2 * (4 + 1) + 3 * 8 * 4
    backward = 44 + 7 * 2 * 4 + 5 * 2 * (1 + 4)
    assert maxk_spmm.bytes_moved(three_by_five, 8, 2, 4, "forward") == forward
    assert maxk_spmm.bytes_moved(three_by_five, 8, 2, 4, "backward") == backward
    assert maxk_spmm.bytes_moved(three_by_five, 8, 2, 4, "forward+backward") == forward + backward


def test_bytes_with_every_array_once(three_by_five):
    dense = 44 + (3 + 5) * 8 * 4
    assert spmm.bytes_once(three_by_five, 8, 4, "forward") == dense
    assert spmm.bytes_once(three_by_five, 8, 4, "backward") == dense
    assert spmm.bytes_once(three_by_five, 8, 4, "forward+backward") == 2 * dense
    kept = 44 + 5 * 2 * (4 + 1) + 3 * 8 * 4
    assert maxk_spmm.bytes_once(three_by_five, 8, 2, 4, "forward") == kept
    assert maxk_spmm.bytes_once(three_by_five, 8, 2, 4, "forward+backward") == 2 * kept


def test_bytes_of_reductions(three_by_five):
    graph, size = three_by_five, three_by_five.num_rows * 2 * 4
    gathered = graph.num_edges * 2 * 4
    forward = 16 + 4 * graph.num_edges + gathered + size
    assert aggregate.bytes_moved(graph, "neighbour_max", 2, 4, "forward") == forward
    backward = 16 + 4 * graph.num_edges + 2 * gathered + 2 * graph.num_cols * 2 * 4
    both = aggregate.bytes_moved(graph, "neighbour_max", 2, 4, "forward+backward")
    assert both == forward + backward


def test_bytes_of_segment_softmax(three_by_five):
    tensor = 7 * 2 * 4
    assert segment_softmax.bytes_moved(three_by_five, 2, 4, "forward") == 16 + 2 * tensor
    assert segment_softmax.bytes_moved(three_by_five, 2, 4, "forward+backward") == 32 + 5 * tensor


def test_bytes_of_attention(three_by_five):
    # Rows of 2 heads of 8 floats: 64 bytes. Two numbers a head are gathered backward: 16 bytes.
    sizes = {"heads": 2, "dim": 8, "itemsize": 4}
    nodes = {"dot_attention": 3 + 5 + 5, "gatv2_attention": 3 + 5, "gat_attention": 5}
    numbers = {"dot_attention": 0, "gatv2_attention": 0, "gat_attention": (3 + 5) * 2 * 4}
    for op, (ahead, back) in {
        "dot_attention": (2, 4),
        "gatv2_attention": (1, 3),
        "gat_attention": (1, 2),
    }.items():
        forward = 44 + ahead * 7 * 64 + 3 * 64
        assert _attention.bytes_moved(op, three_by_five, **sizes, way="forward") == forward
        backward = 2 * 44 + back * 7 * 64 + 7 * 16 + nodes[op] * 64 + numbers[op]
        both = _attention.bytes_moved(op, three_by_five, **sizes, way="forward+backward")
        assert both == forward + backward


# Bytes of n = 4 bfloat16 streams, for each token and feature: forward, and with the backward.
HYPER_CONNECTION_BYTES = {
    "mhc_pre": (10, 10 + 18),
    "mhc_post": (18, 18 + 28),
    "mhc_layer": (28, 28 + 54),
    "mhc_post_pre": (20, 20 + 38),
}


@pytest.mark.parametrize("op", HYPER_CONNECTION_BYTES)
def test_bytes_of_hyper_connections(op):
    forward, both = HYPER_CONNECTION_BYTES[op]
    sizes = {"tokens": 16384, "n": 4, "dim": 1280}
    assert _streams.bytes_moved(op, "forward", **sizes) == forward * 1280 * 16384
    assert _streams.bytes_moved(op, "backward", **sizes) == (both - forward) * 1280 * 16384
    assert _streams.bytes_moved(op, "forward+backward", **sizes) == both * 1280 * 16384


def test_bytes_of_other_streams():
    # Ten tokens of two streams of eight floats: x; and h_in, or x, f and y.
    sizes = {"tokens": 10, "n": 2, "dim": 8, "itemsize": 4}
    assert _streams.bytes_moved("mhc_pre", "forward", **sizes) == 10 * (64 + 32)
    assert _streams.bytes_moved("mhc_post", "forward", **sizes) == 10 * (64 + 32 + 64)
    # Two by two floats in and out, and back again with one gradient more.
    assert _streams.bytes_moved("sinkhorn", "forward", **sizes) == 10 * 2 * 16
    assert _streams.bytes_moved("sinkhorn", "forward+backward", **sizes) == 10 * 5 * 16


def test_bytes_and_products_of_layers():
    # A million rows of 128: what an H200 copies in 0.12 and 0.30 ms.
    sizes = {"rows": 10**6, "dim": 128}
    assert _layers.bytes_moved("forward", **sizes) == 2 * 256 * 10**6
    assert _layers.bytes_moved("forward+backward", **sizes) == 5 * 256 * 10**6
    assert _layers.flops("forward", rows=7, features=(2, 3, 5)) == 2 * 7 * (6 + 15)
    assert _layers.flops("forward+backward", rows=7, features=(2, 3)) == 3 * 2 * 7 * 6
    with pytest.raises(KeyError):
        _layers.bytes_moved("backward", **sizes)


def test_bytes_of_couplings_and_hypergraphs():
    # A million floats for each pass over all experts: 9 forward, 21 more backward.
    coupling = Coupling("", 488 // 8, dim=256, experts=8)
    rows, mean = 8 * 61 * 256 * 4, 61 * 256 * 4
    assert _hypergraphs.coupling_bytes(coupling, "forward", 4) == 9 * rows + mean
    assert _hypergraphs.coupling_bytes(coupling, "forward+backward", 4) == 30 * rows + 2 * mean
    products = 2 * 8 * 61 * 256 * (256 + 8)
    assert _hypergraphs.coupling_flops(coupling, "forward+backward") == 3 * 2 * products
    # Ten nodes in three hyperedges, seven incidences, eight floats a row.
    small = Hypergraph("", 10, 3, 7, 8)
    one_way = 2 * 7 * (32 + 4) + 13 * 4 + 13 * 32
    assert _hypergraphs.hypergraph_bytes(small, "forward", 4) == one_way + 2 * 320
    both = 2 * one_way + 6 * 320
    assert _hypergraphs.hypergraph_bytes(small, "forward+backward", 4) == both


@pytest.mark.parametrize(("op", "direction"), [("mhc", "forward"), ("mhc_pre", "sideways")])
def test_bytes_of_nothing_known(op, direction):
    with pytest.raises(KeyError):
        _streams.bytes_moved(op, direction, tokens=1, n=4, dim=64)


def test_cache_bandwidth_is_positive():
    assert 0 < cache_bandwidth(2**16, **QUICK) < np.inf


# -- workloads ---------------------------------------------------------------------------------


def test_every_workload_has_its_own_name():
    tables = (WORKLOADS, STREAMS, ROWS, MESSAGES, COUPLINGS, HYPERGRAPHS, STEPS)
    assert all(table.keys() == WORKLOADS.keys() for table in tables)
    for kind in WORKLOADS:
        names = [workload.name for table in tables for workload in table[kind]]
        assert len(set(names)) == len(names)


def test_streams_outgrow_the_cache_of_a_gpu():
    for workload in STREAMS["gpu", "full"]:
        smallest = min(jnp.dtype(dtype).itemsize for dtype in workload.dtypes)
        assert workload.nodes * workload.n * workload.dim * smallest > 60e6


def test_a_graph_is_the_same_whether_sorted_on_the_host_or_on_the_device():
    ends = np.random.default_rng(0).integers(20, size=(2, 90), dtype=np.int32)
    on_host = CSRGraph.from_edges(ends[0], ends[1], 20).prepared()
    on_device = _build_on_device(ends[0], ends[1], 20)
    assert jax.tree.structure(on_host) == jax.tree.structure(on_device)
    jax.tree.map(np.testing.assert_array_equal, on_host, on_device)


def test_uniform_graph_is_reproducible():
    one, two = uniform_graph(10, 30), uniform_graph(10, 30)
    np.testing.assert_array_equal(one.indices, two.indices)
    assert one.num_edges == 30


def test_a_workload_keeps_its_graph_until_told_to_forget():
    graph = TINY[0].graph()
    assert TINY[0].graph() is graph
    forget_graphs()
    assert TINY[0].graph() is not graph


def test_input_sets_outgrow_caches_within_reason():
    small = input_sets(lambda key: (jax.random.normal(key, (4,)),))
    assert len(small) == 8
    assert not np.array_equal(small[0][0], small[1][0])


# -- benchmarks --------------------------------------------------------------------------------


@pytest.mark.again("tests/test_documented_commands.py")
def test_all_rows_carry_device_and_versions(rows_of_all):
    folder, rows = rows_of_all
    assert {path.stem for path in folder.iterdir()} == set(ALL_ROWS)
    written = [row for path in sorted(folder.iterdir()) for row in read_rows(path)]
    assert len(written) == len(rows)
    for row in written:
        assert set(row) >= DEVICE_KEYS | set(origin())
        assert row["ms"] >= row["min_ms"] > 0
        assert row["gb_per_s"] == pytest.approx(row["bytes"] / row["ms"] / 1e6)
    assert len({row["date"] for row in written}) == 1


@pytest.mark.again("tests/test_documented_commands.py")
@pytest.mark.parametrize("op", LAYER_OPS)
def test_layers_are_timed_with_plain_code_and_their_products_counted(rows_of_all, op):
    _, rows = rows_of_all
    same = [row for row in rows if (row["op"], row["implementation"]) == (op, "plain")]
    names = ["40x8"] if op == "fused_linear" else ["40x8", "40x8 gelu"]
    both = [(name, direction) for name in names for direction in ("forward", "forward+backward")]
    assert [(row["workload"], row["direction"]) for row in same] == both
    for row in same:
        passes, products = (2, 1) if row["direction"] == "forward" else (5, 3)
        layers = 1 if op == "fused_linear" else 2
        assert row["bytes"] == passes * 40 * 8 * 4
        assert row["flops"] == products * layers * 2 * 40 * 8 * 8
        assert row["tflop_per_s"] == pytest.approx(row["flops"] / row["ms"] / 1e9)
    assert {row["implementation"] for row in rows if row["op"] == op} >= {"xla", "auto", "plain"}


@pytest.mark.again("tests/test_documented_commands.py")
def test_layers_that_keep_the_largest_are_timed_with_two_ops_and_the_product_alone(rows_of_all):
    _, rows = rows_of_all
    same = [row for row in rows if row["op"] == "fused_linear_maxk"]
    assert {row["implementation"] for row in same} >= {"auto", "two ops", "product"}
    for row in same:  # one of eight columns, four bytes and its number
        one_way = 40 * (8 * 4 + 4 + 1)
        forward = row["direction"] == "forward"
        assert row["bytes"] == (one_way if forward else 2 * one_way + 40 * 8 * 4)
        assert row["flops"] == (1 if forward else 3) * 2 * 40 * 8 * 8


@pytest.mark.again("tests/test_documented_commands.py")
def test_every_op_is_compared_with_xla(rows_of_all):
    _, rows = rows_of_all
    for op in ALL_ROWS:
        same = [row for row in rows if row["op"] == op]
        assert "xla" in {row["implementation"] for row in same}
        assert all(row["speedup_over_xla"] > 0 for row in same)
    assert "scipy" in {row["implementation"] for row in rows if row["op"] == "spmm"}
    assert "lax.top_k" in {row["implementation"] for row in rows if row["op"] == "maxk"}
    assert "xla pair" in {row["implementation"] for row in rows if row["op"] == "mhc_post_pre"}


@pytest.mark.again("tests/test_documented_commands.py")
def test_hyper_connections_are_timed_forward_and_with_the_backward(rows_of_all):
    _, rows = rows_of_all
    for op in HYPER_CONNECTION_OPS:
        same = [row for row in rows if (row["op"], row["implementation"]) == (op, "xla")]
        sizes = {"tokens": same[0]["nodes"], "n": 4, "dim": same[0]["dim"], "itemsize": 4}
        assert [row["direction"] for row in same] == ["forward", "forward+backward"]
        for row in same:
            assert row["bytes"] == _streams.bytes_moved(op, row["direction"], **sizes)


def test_one_op_alone(session, capsys):
    rows = run_op(spmm.cases, session)
    printed = capsys.readouterr().out
    assert printed.count("uniform-48") >= len(rows) > 0
    assert printed.startswith("op ")


def test_too_little_memory_is_a_row_without_a_time(session):
    def fail(x):
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    case = next(iter(spmm.cases(TINY[0])))
    large = dataclasses.replace(
        case, candidates={"fails": Candidate(fail, [(1,)], jit=False), **case.candidates}
    )
    times = {row["implementation"]: row["ms"] for row in session.run([large])}
    assert times.pop("fails") is None
    assert times.keys() == case.candidates.keys()
    assert all(ms > 0 for ms in times.values())
    with pytest.raises(RuntimeError, match="else"):
        session.time_in_turns({"": Candidate(raise_else, [(1,)], jit=False)})


def test_the_candidates_of_a_case_take_turns(session):
    seen = []
    case = next(iter(spmm.cases(TINY[0])))
    candidates = {name: Candidate(seen.append, [(name,)], jit=False) for name in ("xla", "ours")}
    session.run([dataclasses.replace(case, candidates=candidates)])
    assert seen[-6:] == ["xla", "ours", "ours", "xla", "xla", "ours"]


@pytest.mark.parametrize("wrong", [["--scale", "huge"], ["--dim", "64"]])
def test_unknown_options_are_refused(wrong, capsys):
    with pytest.raises(SystemExit):
        tyro.cli(Options, args=wrong)
    assert wrong[0] in capsys.readouterr().err


def test_hypergraphs_have_bars_against_torch_geometric_and_the_clock():
    row = {"op": "expert_coupling", "direction": "forward+backward", "platform": "gpu", "k": None}
    row |= {"dtype": "float32", "workload": "32768 tokens", "dim": 256, "device": "NVIDIA H200"}
    times = {"auto": 2.0, "PyG": 60.0, "PyG convs": 50.0}
    (text,) = _bars.compare_with_bars(
        [{**row, "implementation": n, "ms": t} for n, t in times.items()]
    )
    assert "auto is 25.00x PyG convs (bar: 20x): met" in text
    assert _bars.published(row) == ("PyG 2.8", 51.0)
    assert _bars.published({**row, "dtype": "bfloat16"}) is None
    step = {**row, "op": "expert_lm", "direction": "training step", "workload": "8 experts 4x64"}
    (text,) = _bars.compare_with_bars([{**step, "implementation": "auto", "ms": 6.0}])
    assert "auto is 0.83x 5 ms (bar: 1x): NOT met" in text


def test_options_choose_workloads(tmp_path):
    (workload,) = Session.start(
        Options("tiny", out=tmp_path, only=("24x16",)), WORKLOADS, STREAMS
    ).workloads
    assert workload.name == "24x16"


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="reason: names those of a CPU")
def test_a_workload_that_does_not_exist_is_refused_with_those_that_do(tmp_path):
    message = "--only must be of uniform-tiny with --scale tiny on a cpu, got nothing"
    with pytest.raises(ValueError, match=message):
        Session.start(Options("tiny", out=tmp_path, only=("nothing",)))


def test_a_command_ends_with_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["maxk", "--scale", "tiny", "--only", "nothing"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=r"^error: benchmarks: --only must be "):
        command(Session.start, Options, None)


def test_ratios_are_told_apart_from_noise(session, monkeypatch, capsys):
    def timed(low, median, high, program):
        return timing.Timing(median, low, 7, 1, low, high, others=0.0, program=program)

    times = {
        "xla": timed(9.0, 10.0, 11.0, 20 * "a"),
        "twin": timed(9.0, 10.0, 11.0, 20 * "a"),
        "near": timed(8.0, 9.0, 9.5, 20 * "b"),
        "fast": timed(4.0, 5.0, 6.0, None),
    }
    monkeypatch.setattr("experiments.benchmarks._session.measure_in_turns", lambda *_, **__: times)
    rows = session.run([next(iter(spmm.cases(TINY[0])))])
    assert read_rows(session.out / "spmm.jsonl") == [origin() | row for row in rows]
    assert [row["same_program_as_xla"] for row in rows] == [True, True, False, False]
    assert [row["program"] for row in rows] == [16 * "a", 16 * "a", 16 * "b", None]
    assert rows[3]["speedup_over_xla"] == 2.0
    ends = ("speedup_low_over_xla", "speedup_high_over_xla")
    assert [rows[3][end] for end in ends] == [9 / 6, 11 / 4]
    printed = capsys.readouterr().out.splitlines()[1:5]
    for text, verdict in zip(printed, ("1", "same program", "≈ same", "2.00"), strict=True):
        assert f"  {verdict}  " in text


TIMED = timing.Timing(10.0, 9.0, 7, 1, 9.0, 11.0, program="a")


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"speedup_over_xla": None}, None),
        ({"speedup_over_xla": 2.0, "implementation": "ffi"}, "2.00"),  # of an older release
        ({"speedup_over_xla": 1.0, "implementation": "xla"}, "1"),
        (ratio_fields("xla", TIMED, TIMED), "1"),
        (ratio_fields("xla", TIMED, dataclasses.replace(TIMED)), "same program"),
        (
            {
                "speedup_over_xla": 1.1,
                "speedup_low_over_xla": 0.9,
                "speedup_high_over_xla": 1.3,
            },
            "≈ same",
        ),
    ],
)
def test_ratios_of_rows_as_they_are_printed(row, text):
    assert ratio_text(row, "xla") == text


def test_columns_without_a_value_are_left_out(session, capsys):
    session.run([next(iter(spmm.cases(TINY[0])))])
    of_spmm = capsys.readouterr().out.splitlines()[0].split()
    on_cpu = {"kernels"} if session.device["platform"] == "cpu" else set()
    for absent in {"TF/s", "peer", "limit"} | on_cpu:
        assert absent not in of_spmm
    on_h200 = dataclasses.replace(session, device={**session.device, "device": "NVIDIA H200"})
    on_h200.run([next(iter(spmm.cases(TINY[0])))])
    assert {"peer", "limit"} < set(capsys.readouterr().out.splitlines()[0].split())


def test_every_op_that_is_quoted_has_a_column_and_every_peer_its_source():
    rows = read_rows(_bars.PEERS)
    needed = {"ms", "device", "date", "source", "command", "workload", "implementation"}
    for row in rows:
        assert needed <= row.keys() and row["source"] in ("once measured", "published"), row
        if row["ms"] is not None:
            name, ms = _bars.published(row) or ("", math.inf)
            assert name and ms <= row["ms"]
            assert _bars.has_peers(row["op"], row["device"])
    # A minimum over neighbours is timed as a maximum here.
    assert {row["op"] for row in rows} - {"neighbour_min", "training"} <= set(ALL_ROWS)
    assert not _bars.has_peers("spmm", "NVIDIA H100 80GB HBM3")
    assert not _bars.has_peers("sinkhorn", "NVIDIA H200")


def test_a_busy_machine_is_told_of_in_one_line(session, monkeypatch, capsys):
    moments = itertools.count(0.0, 10.0)

    def read():  # others use three of four core seconds
        now = next(moments)
        return machine.CpuReading(now, 0.5 * now, 2.0 * now, 2)

    monkeypatch.setattr(timing, "read_cpu", read)
    rows = session.run([next(iter(spmm.cases(TINY[0])))])
    assert {row["others"] for row in rows} == {0.75}
    (warning,) = [text for text in capsys.readouterr().out.splitlines() if "warning" in text]
    assert f"in {len(rows)} of {len(rows)} measurements other processes" in warning
    assert "75% at most" in warning


def test_gradients_in_less_time_than_the_forward_pass_alone_are_named():
    common = {"op": "maxk", "workload": "w", "dtype": "float32", "k": 4, "implementation": "xla"}
    times = (("forward", 2.0), ("forward+backward", 1.5), ("backward", 0.1))
    rows = [{**common, "direction": direction, "ms": ms} for direction, ms in times]
    (text,) = below_forward(rows)
    assert text.startswith("warning: maxk w float32 4 xla: 1.500 ms with gradients is less than 2")
    assert list(below_forward([rows[0], {**rows[1], "ms": 2.5}])) == []
    assert list(below_forward([rows[0], {**rows[1], "implementation": "ffi"}])) == []
    assert list(below_forward([{**rows[0], "ms": None}, rows[1]])) == []


def test_bars_are_printed_beside_the_ratios():
    common = {"op": "maxk_spmm", "direction": "forward", "platform": "cpu", "dtype": "float32"}
    rows = [
        {**common, "workload": "uniform-1M", "k": None, "implementation": "xla", "ms": 30.0},
        {**common, "workload": "uniform-1M", "k": 32, "implementation": "ffi", "ms": 1.0},
        {**common, "workload": "other", "k": None, "implementation": "xla", "ms": 30.0},
        {**common, "workload": "other", "k": 32, "implementation": "ffi", "ms": 3.0},
    ]
    met, missed = _bars.compare_with_bars(rows)
    assert "ffi is 30.00x xla (bar: 15x): met" in met
    assert "NOT met" in missed
    assert "uniform-1M" in missed


def test_hyper_connections_have_bars_on_a_gpu():
    common = {"op": "mhc_layer", "direction": "forward+backward", "platform": "gpu", "k": None}
    common |= {"dtype": "bfloat16", "device": "NVIDIA H200", "bytes": 82 * 1280 * 16384}
    common |= {"workload": "16384x1280", "dim": 1280}
    # The limit is 0.400 ms, of which 1.35 are allowed; TransformerEngine must take twice as long.
    ours, theirs = ({**common, "implementation": name} for name in ("pallas", "TE"))
    assert _bars.limit_ms(ours) == pytest.approx(0.400, abs=5e-4)
    assert _bars.limit_ms({**ours, "bytes": 28 * 1280 * 16384}) == pytest.approx(0.137, abs=5e-4)
    assert _bars.limit_ms({**ours, "device": "NVIDIA A100"}) is None
    assert _bars.published(ours) == ("TE", 1.076)
    assert _bars.published({**ours, "dtype": "float32"}) is None
    limit, other = _bars.compare_with_bars([{**ours, "ms": 0.53}, {**theirs, "ms": 1.05}])
    assert "pallas is 0.75x byte limit (bar: 0.741x): met" in limit
    assert "pallas is 1.98x TE (bar: 2x): NOT met" in other
    # What counts is the time of the kernels, unless only one side has it.
    ours |= {"ms": 0.55, "kernel_ms": 0.53}
    for kernel_ms, verdict in (
        (None, "1.95x TE (bar: 2x): NOT met"),
        (1.07, "2.02x TE (bar: 2x): met"),
    ):
        rows = [ours, {**theirs, "ms": 1.07, "kernel_ms": kernel_ms}]
        limit, other = _bars.compare_with_bars(rows)
        assert "pallas is 0.75x byte limit (bar: 0.741x): met" in limit
        assert verdict in other
    # Widths without a bar are not spoken of.
    assert list(_bars.compare_with_bars([{**ours, "ms": 1.0, "workload": "131072x64"}])) == []


def test_the_fused_boundary_has_a_bar_against_the_pair():
    row = {"op": "mhc_post_pre", "direction": "forward+backward", "platform": "gpu", "k": None}
    row |= {"dtype": "bfloat16", "workload": "8192x7168"}
    times = {"pallas": 0.7, "pallas pair": 1.0, "xla": 9.0, "xla pair": 1.0}
    (line_of_bar,) = _bars.compare_with_bars(
        [{**row, "implementation": name, "ms": ms} for name, ms in times.items()]
    )
    assert "pallas is 1.43x pallas pair (bar: 1.25x): met" in line_of_bar


def test_layers_have_bars_against_the_copy_and_against_plain_code():
    row = {"op": "fused_linear", "direction": "forward", "platform": "gpu", "k": None}
    row |= {"dtype": "bfloat16", "workload": "1000000x128", "dim": 128, "device": "NVIDIA H200"}
    row |= {"bytes": _layers.bytes_moved("forward", rows=10**6, dim=128)}
    times = {"pallas": 0.15, "auto": 0.158, "plain": 0.158, "plain cublaslt": 0.17}
    rows = [{**row, "implementation": name, "ms": ms} for name, ms in times.items()]
    limit, plain, cublaslt = _bars.compare_with_bars(rows)
    assert "pallas is 0.79x byte limit (bar: 0.769x): met" in limit
    assert "pallas is 1.05x plain (bar: 1.1x): NOT met" in plain
    assert "pallas is 1.13x plain cublaslt (bar: 1.1x): met" in cublaslt
    square, _ = _bars.compare_with_bars([{**r, "workload": "8192x4096"} for r in rows])
    assert "auto is 1.00x plain (bar: 0.95x): met" in square
    assert _bars.published(row) == ("torch", 0.370)
    assert _bars.published({**row, "direction": "forward+backward"}) is None
    assert _bars.published({**row, "op": "fused_mlp"}) == ("torch", 0.603)
    assert _bars.published({**row, "op": "fused_mlp", "workload": "1000000x128 gelu"}) is None


def test_others_are_quoted_on_their_device_only():
    row = {"op": "maxk_spmm", "workload": "reddit", "direction": "backward", "k": 32}
    row |= {"dtype": "float32", "dim": 256, "device": "NVIDIA H200"}
    assert _bars.published(row) == ("MaxK-GNN", 6.63)
    dense = {**row, "op": "spmm", "direction": "forward", "k": None}
    assert _bars.published(dense) == ("cuSPARSE ALG3", 16.95)
    assert _bars.published({**row, "device": "NVIDIA A100"}) is None
    assert _bars.published({**row, "k": 7}) is None


# -- break-even --------------------------------------------------------------------------------


def _sweep(*speedups):
    return [
        {"workload": "w", "dtype": "float32", "dim": 64, "ratio": (i + 1) / len(speedups)}
        | {"sparse_ms": 1.0, "dense_ms": speedup}
        for i, speedup in enumerate(speedups)
    ]


@pytest.mark.parametrize(
    ("speedups", "expected"),
    [
        ((4, 2, 1.5, 0.5), 0.75),
        ((0.5, 0.4, 0.3, 0.2), 0.0),
        ((4, 3, 2, 1.1), 1.0),
        ((4, 0.99, 2, 0.5), 0.75),  # a noisy loss amid wins
    ],
)
def test_break_even_is_where_the_sparse_product_stops_paying(speedups, expected):
    assert _break_even.break_even(_sweep(*speedups)) == expected


@pytest.mark.parametrize("lost, ks", [(math.inf, [8, 32]), (0.0, [8])])
def test_break_even_run_ends_where_the_sparse_product_has_lost(session, monkeypatch, lost, ks):
    monkeypatch.setattr(_break_even, "_LOST", lost)
    rows = _break_even.run(session, dims=(32,), parts=(8, 32))
    assert [row["k"] for row in rows] in ([], ks)
    written = read_rows(session.out / "maxk_spmm_break_even.jsonl") if rows else []
    assert written == [origin() | row for row in rows]
    for row in written:
        assert set(row) >= DEVICE_KEYS | set(origin())
        assert row["ratio"] == row["k"] / 32


# -- scaling and report ------------------------------------------------------------------------


def test_edge_counts_are_spaced_logarithmically():
    assert scaling.edge_counts(1e2, 1e4) == [100, 316, 1000, 3162, 10000]
    assert scaling.edge_counts(1e3, 1e3) == [1000]


@pytest.mark.long
def test_a_training_step_is_timed_with_relu_and_every_k_and_learns(session):
    options = training_step.TrainingStepOptions(
        "tiny", layers=2, hidden=16, ks=(2, 4), out=session.out
    )
    rows = training_step.main(options, session)
    assert read_rows(session.out / "training_step.jsonl") == [origin() | row for row in rows]
    assert [(row["activation"], row["k"]) for row in rows] == [
        ("relu", None),
        ("maxk", 2),
        ("maxk", 4),
    ]
    assert rows[0]["speedup_over_relu"] == 1
    assert all(row["ms"] > 0 and row["memory_mib"] > 0 for row in rows)
    data = training_step.load(options)
    state, step = training_step.make_step(options, data, 4)
    losses = []
    for _ in range(20):
        state, loss = jax.jit(step)(state, data)
        losses.append(float(loss))
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.again("tests/ops/dense/test_fused_linear.py")
def test_plain_linear_layers_take_the_same_step(session):
    small = {"kind": "gcn", "layers": 1, "hidden": 16, "ks": ()}
    options = training_step.TrainingStepOptions("tiny", **small, out=session.out)
    data = training_step.load(options)
    state, step = training_step.make_step(options, data, 4)
    plain = _layers.traced_with(_layers.with_plain_layers, step)
    (ours, loss), (theirs, expected) = (jax.jit(f)(state, data) for f in (step, plain))
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(ours[0]), jax.tree.leaves(theirs[0]), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


@pytest.mark.long
def test_training_measures_every_activation_in_a_process_of_its_own(tmp_path, capsys):
    options = training.TrainingOptions("tiny", 3, (4,), torch=False, out=tmp_path)
    rows = training.main(options)
    assert read_rows(tmp_path / "training.jsonl") == [origin() | row for row in rows]
    assert [(row["activation"], row["k"]) for row in rows] == [("relu", None), ("maxk", 4)]
    assert rows[0]["speedup_over_relu"] == 1
    for row in rows:
        assert set(row) >= DEVICE_KEYS | set(origin())
        assert row["library"] == "jaxgnn"
        assert row["epoch_ms"] > 0
        assert row["ms"] > 0
        assert 0 <= row["test"] <= 1
        assert 1 <= row["best_epoch"] <= 3
    assert capsys.readouterr().out.count("jaxgnn  ") == 2


def test_training_says_why_torch_is_left_out(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(training, "_TORCH_MODULES", ("no_such_module",))
    assert training._torch_runs(training.TrainingOptions("tiny"), "cpu", tmp_path) == []
    assert "no rows of torch-geometric: no_such_module not installed" in capsys.readouterr().out


def test_the_median_is_taken_after_a_warm_up():
    steady = training._steady([100.0] * 5 + [1.0, 2.0, 3.0])
    assert (steady.low_ms, steady.median_ms, steady.high_ms) == (1.5, 2.0, 2.5)
    assert training._steady([100.0, 2.0]).median_ms == 2.0
    assert training._steady([]) is None


def test_the_most_frequent_class_is_that_of_the_training_nodes():
    data = synthetic("tiny")
    labels = np.zeros_like(data.labels)
    labels[data.train] = 1
    labels[data.test[: len(data.test) // 4]] = 1
    found = training._most_frequent(dataclasses.replace(data, labels=labels))
    assert found == pytest.approx(len(data.test) // 4 / len(data.test))


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        (training, {"epochs": 0}, "--epochs must be at least 1, got 0"),
        (training, {"ks": (0,)}, "--ks must be at least 1, got 0"),
        (training_step, {"hidden": 8, "ks": (9,)}, r"--ks must be in 1\.\.8 \(--hidden\), got 9"),
        (training_step, {"layers": 0}, "--layers must be at least 1, got 0"),
        (scaling, {"max_edges": 1}, "--max-edges must be at least --min-edges, 10000, got 1"),
        (scaling, {"min_edges": 0}, "--min-edges must be at least 1, got 0"),
        (scaling, {"k": 300}, r"--k must be in 1\.\.256 \(--dim\), got 300"),
        (preparation, {"edges": 0}, r"--edges must be in \[1, 2\^31\), got 0"),
        (sample_neighbours, {"batches": 0}, r"--batches must be in \[1, 2\^31\), got 0"),
        (sample_neighbours, {"only": ("pyg",)}, "--only must be among neighbour, .*, got 'pyg'"),
        (preparation, {"only": ("pyg",)}, "--only must be among numpy, device, .*, got 'pyg'"),
    ],
)
def test_a_command_names_the_option_at_fault(command, options, message):
    name = command.__name__.rpartition(".")[2]
    of_command = {
        "training": training.TrainingOptions,
        "training_step": training_step.TrainingStepOptions,
        "scaling": scaling.ScalingOptions,
        "preparation": preparation.PreparationOptions,
        "sample_neighbours": sample_neighbours.SampleOptions,
    }
    with pytest.raises(ValueError, match=f"^{name}: {message}$"):
        command.main(of_command[name](**options))


@pytest.mark.again("tests/test_documented_commands.py")
def test_scaling_draws(session):
    options = scaling.ScalingOptions(100, 100, dim=8, k=2, out=session.out)
    rows = scaling.main(options, session)
    assert read_rows(session.out / "scaling.jsonl") == [origin() | row for row in rows]
    assert all(row["ns_per_edge"] > 0 for row in rows)
    for row in rows:
        assert row["limit_ms"] == pytest.approx(row["bytes_once"] / 10.0 / 1e6)
        assert row["cache_limit_ms"] == pytest.approx(row["bytes"] / session.cache_gb_per_s / 1e6)
    assert _is_png(session.out / f"scaling_{jax.default_backend()}.png")


def test_preparation_times_all_candidates_and_counts_bytes(tmp_path):
    options = preparation.PreparationOptions(1000, 10, repeats=2, out=tmp_path)
    rows = preparation.main(options)
    assert read_rows(tmp_path / "preparation.jsonl") == [origin() | row for row in rows]
    assert {"numpy", "device", "maxk_spmm", "scipy"} <= {row["candidate"] for row in rows}
    for row in rows:
        assert 0 < row["min_s"] <= row["median_s"] <= row["max_s"]
        assert (row["of_edges"] or 2) >= 2


def test_sample_neighbours_times_all_that_is_ours(tmp_path):
    sizes = {"nodes": 300, "edges": 5000, "fanouts": (3, 2), "batch_size": 8, "batches": 2}
    options = sample_neighbours.SampleOptions(**sizes, threads=(2,), out=tmp_path)
    rows = sample_neighbours.main(options)
    assert read_rows(tmp_path / "sample_neighbours.jsonl") == [origin() | row for row in rows]
    by_name = {row["candidate"]: row for row in rows}
    assert list(by_name) == ["neighbour", "at once", "replace", "weighted", "labor"]
    for row in rows:
        assert row["sampled_nodes"] >= 8 and 0 < row["sampled_edges"] <= 2 * 8 * (3 + 8 * 2)
        assert row["edges_per_us_core"] == row["edges_per_us"] / 2 > 0


def test_a_peer_that_can_not_be_imported_says_why():
    with pytest.raises(NotImplementedError, match="dgl: ModuleNotFoundError: No module named"):
        _sampling_peers.Peer(sys.executable, "dgl", Path(), (5,), 1)


@pytest.mark.again("tests/test_documented_commands.py")
def test_report_draws_and_prints(rows_of_all, tmp_path, capsys):
    folder, rows = rows_of_all
    (picture,) = report.main(report.ReportOptions(tmp_path, out=folder))
    assert picture.name == f"speed_{rows[0]['platform']}.png"
    assert _is_png(picture)
    printed = capsys.readouterr().out
    assert "| op | direction | k | implementation |" in printed
    assert f"jax {jax.__version__}" in printed


def test_a_picture_marks_libraries_that_were_measured_once(tmp_path, monkeypatch):
    marked = []
    monkeypatch.setattr(report, "_draw_peer", lambda axes, at, *peer: marked.append(peer))
    options = report.ReportOptions(device="NVIDIA H200")
    of_card = [row for row in report.read_all(RESULTS) if row["device"] == options.device]
    rows = report.select(report.newest(of_card), options)
    report.draw(rows, tmp_path / "speed.png")
    assert _is_png(tmp_path / "speed.png")
    assert {name for name, _ in marked} == {"RTop-K", "cuSPARSE ALG3", "MaxK-GNN"}
    with pytest.raises(ValueError, match="--device must be one that was measured"):
        report.check(rows, report.ReportOptions(device="abacus"))


def test_report_draws_the_last_scaling_of_each_platform(tmp_path, monkeypatch):
    def row(platform, date, ms):
        return {"op": "spmm", "direction": "forward", "platform": platform, "date": date, "ms": ms}

    rows = [row("cpu", "2", 1.0), row("cpu", "2", 2.0), row("gpu", "1", 3.0), row("cpu", "1", 4.0)]
    append_rows(tmp_path / "scaling.jsonl", rows)
    found = report.last_scaling(tmp_path)
    rows = [origin() | row for row in rows]
    assert found == {"cpu": rows[:2], "gpu": rows[2:3]}
    assert report.last_scaling(tmp_path / "nowhere") == {}


def test_pictures_are_drawn_of_rows_that_were_kept_before_they_had_quartiles(tmp_path):
    report.main(report.ReportOptions(tmp_path, commit_results=True))
    names = {"speed_cpu.png", "speed_gpu.png", "scaling_cpu.png", "scaling_gpu.png"}
    assert {path.name for path in tmp_path.iterdir()} == names


@pytest.mark.again("tests/test_documented_commands.py")
def test_report_refuses_what_was_not_measured(rows_of_all, tmp_path):
    folder, _ = rows_of_all
    for wrong, message in (
        ({"workload": "reddit"}, "--workload must be one that was measured: .*, got reddit"),
        ({"k": 7}, r"--k must be one that was measured: .*4.*, got 7"),
        ({"dtype": "int8"}, "--dtype must be one that was measured: float32, got int8"),
    ):
        with pytest.raises(ValueError, match=f"^report: {message}"):
            report.main(report.ReportOptions(tmp_path, **wrong, out=folder))


def test_what_is_asked_for_is_shown_of_the_platforms_that_have_it(capsys, tmp_path):
    options = report.ReportOptions(tmp_path, "products", 16, commit_results=True)
    first, *_ = report.main(options)
    assert first.name == "speed_gpu.png"
    assert "Ops on products" in capsys.readouterr().out


def test_an_implementation_has_one_colour_that_no_other_of_a_picture_has():
    rows = report.newest(report.read_all(RESULTS))
    for platform in ("cpu", "gpu"):
        of_platform = [row for row in rows if row["platform"] == platform]
        shown = report.select(of_platform, report.ReportOptions())
        for group in {(row["op"], row["direction"]) for row in shown}:
            names = {r["implementation"] for r in shown if (r["op"], r["direction"]) == group}
            assert len({shade(name) for name in names}) == len(names)
            if len(names) == 1:  # then all others ran out of memory, where this one did not
                (only,) = (r for r in shown if (r["op"], r["direction"]) == group)
                alike = ("op", "direction", "workload", "dtype")
                same = [r for r in of_platform if all(r[key] == only[key] for key in alike)]
                assert len(same) > 1 and [r for r in same if r["ms"] is not None] == [only]


@pytest.mark.again("tests/test_documented_commands.py")
def test_report_takes_the_newest_of_equal_measurements(rows_of_all):
    _, rows = rows_of_all
    later = [{**row, "date": "2999-01-01T00:00:00+00:00"} for row in rows]
    assert {row["date"] for row in report.newest(later + rows)} == {later[0]["date"]}
    assert len(report.newest(rows + later)) == len(rows)


def test_report_without_results(tmp_path):
    with pytest.raises(ValueError, match="run the benchmarks first"):
        report.main(report.ReportOptions(out=tmp_path))


def test_tables():
    columns = (Column("name", "name", 5), Column("ms", "ms", 6, ".2f"))
    assert header(columns) == "name       ms"
    assert line({"name": "a", "ms": 1.234}, columns) == "a        1.23"
    assert line({"name": "a", "ms": None}, columns) == "a           -"
    assert markdown([{"name": "a", "ms": 1}], columns).splitlines() == [
        "| name | ms |",
        "| --- | ---: |",
        "| a | 1.00 |",
    ]


def test_rows_are_appended(tmp_path):
    path = tmp_path / "new" / "op.jsonl"
    append_rows(path, [{"a": 1}])
    append_rows(path, [{"a": None}])
    rows = [json.loads(text) for text in path.read_text().splitlines()]
    assert rows == [origin() | {"a": 1}, origin() | {"a": None}]


def test_a_row_names_the_commit_and_the_flags(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", " --xla_a=1 ")
    head = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    done = subprocess.run(head, capture_output=True, text=True)
    assert origin()["xla_flags"] == "--xla_a=1"
    monkeypatch.delenv("JAXGNN_COMMIT", raising=False)
    if done.returncode == 0:
        assert str(read_commit()).removesuffix("+changes") == done.stdout.strip()
    monkeypatch.setenv("JAXGNN_COMMIT", "abc")
    assert read_commit() == "abc"


def test_a_row_that_is_none_is_named(tmp_path):
    (tmp_path / "op.jsonl").write_text('{"a": 1}\nbroken\n')
    with pytest.raises(ValueError, match=r"op\.jsonl, line 2: not JSON: 'broken'"):
        report.read_all(tmp_path)


def _is_png(path):
    return path.read_bytes().startswith(b"\x89PNG")
