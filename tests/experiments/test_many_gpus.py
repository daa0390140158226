"""The benchmark of many GPUs runs on CPU devices, with one's losses and the predicted bytes."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from experiments.benchmarks import _many_graphs, many_gpus
from experiments.benchmarks._many_graphs import load, repeated
from experiments.benchmarks._report import append_rows, read_rows
from experiments.benchmarks._wire import counted_bytes, predicted_bytes
from experiments.benchmarks.many_gpus import ManyGPUsOptions, main
from experiments.benchmarks.scaling_model import Link, ScalingModelOptions, Step, rows_read, step_ms
from experiments.benchmarks.scaling_model import main as scaling_model
from jaxgnn import CSRGraph, distributed, ops
from jaxgnn.datasets import SCALES

_SMALL = {"layers": 1, "hidden": 16, "ks": (4,), "steps": 1, "repeats": 1, "budget_s": 0.1}


def test_bytes_are_those_predicted_and_losses_those_of_one_device(tmp_path, four_devices, capsys):
    main(ManyGPUsOptions(out=tmp_path, only=("tiny",), devices=(4, 1), dense=False, **_SMALL))
    one, four = read_rows(tmp_path / "many_gpus.jsonl")
    assert [row["devices"] for row in (one, four)] == [1, 4]
    assert one["counted_mb"] == one["predicted_mb"] == one["all_reduce_mb"] == 0
    # A row sends 4 values and 4 columns of a byte, and gets 4 values back.
    received = 3 * four["rows_of_device"] * (4 * 4 + 4 + 4 * 4) / 1e6
    assert four["counted_mb"] == four["predicted_mb"] == received
    assert four["loss_difference"] < 1e-6 and four["gradient_difference"] < 1e-5
    assert four["imbalance"] < 1.001 and four["cut_edges"] > one["cut_edges"] == 0
    assert "x least" in capsys.readouterr().out


@pytest.mark.again("test_bytes_are_those_predicted_and_losses_those_of_one_device")
def test_weak_rows_are_of_graphs_that_grow_with_the_devices(tmp_path, four_devices, capsys):
    options = {"dense": False, "weak": True, "overlap": True, "exchange": "all_to_all", **_SMALL}
    main(ManyGPUsOptions(out=tmp_path, only=("tiny",), devices=(1, 2), **options))
    one, two = read_rows(tmp_path / "many_gpus.jsonl")
    assert (one["times"], two["times"]) == (1, 2)
    assert two["edges"] == 2 * one["edges"] and two["nodes"] == 2 * one["nodes"]
    assert two["overlap"] and two["speedup_over_least"] == one["ms"] / two["ms"]
    assert "loss_difference" not in two and two["counted_mb"] == two["predicted_mb"] > 0


def test_where_memory_runs_out_a_row_says_so(tmp_path, monkeypatch, capsys):
    def too_large(*given):
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")

    monkeypatch.setattr(many_gpus, "spread_out", too_large)
    options = ManyGPUsOptions(out=tmp_path, only=("tiny",), devices=(1,), **_SMALL)
    with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
        main(options)
    main(dataclasses.replace(options, times=2))
    rows = read_rows(tmp_path / "many_gpus.jsonl")
    assert [(row["k"], row["ms"], row["times"]) for row in rows] == [(None, None, 2), (4, None, 2)]
    assert "no memory for it on 1 devices" in capsys.readouterr().out


def test_a_graph_of_many_copies_keeps_degrees_and_takes_senders_of_all_copies(monkeypatch):
    one = load("tiny")
    monkeypatch.setattr(_many_graphs, "_MAX_INT32", 2 * one.graph.num_edges)
    small, large = repeated(one, 2), repeated(one, 3)
    assert (small.graph.indptr.dtype, large.graph.indptr.dtype) == (np.int32, np.int64)
    nodes = one.graph.num_rows
    of_one, of_large = (np.diff(np.asarray(data.graph.indptr)) for data in (one, large))
    np.testing.assert_array_equal(of_large, np.tile(of_one, 3))
    senders = np.asarray(large.graph.indices)
    np.testing.assert_array_equal(senders % nodes, np.tile(one.graph.indices, 3))
    of_copies = np.bincount(senders // nodes, minlength=3) / len(senders)
    np.testing.assert_allclose(of_copies, 1 / 3, atol=0.01)
    assert large.features.shape == (3 * nodes, one.features.shape[1])
    # Blocks have short offsets, whatever those of the whole graph are.
    x = np.ones((3 * nodes, 2), np.float32)
    sharded = distributed.shard(large.graph, Mesh(np.array(jax.devices()[:1]), ("nodes",)))
    sums = distributed.sharded(ops.spmm, sharded.mesh)(sharded, sharded.shard_rows(x))
    assert sharded.blocks.indptr.dtype == np.int32
    np.testing.assert_array_equal(sharded.gather_rows(sums)[:, 0], of_large)


def test_bytes_are_counted_in_all_forms_that_xla_writes_collectives_in():
    program = """
      %a = f32[8,4]{1,0} all-gather(f32[2,4] %x), dimensions={0}
      %b = (u8[2,4]{1,0}, u8[8,4]{1,0}) all-gather-start(u8[2,4]{1,0} %y), dimensions={0}
      %c = u8[8,4]{1,0} all-gather-done(%b)
      ROOT %d = f32[2,4]{1,0} reduce-scatter(f32[8,4]{1,0} %z), dimensions={0}
      %e = (f32[16]{0}, f32[]) all-reduce(f32[16] %p, f32[] %q), to_apply=%add
      %f = bf16[8,4]{1,0} all-to-all(bf16[8,4]{1,0} %r), dimensions={0}
      %g = ((f32[8,4]{1,0}), f32[2,4]{1,0}) reduce-scatter-start(%z), dimensions={0}
      %h = ((f32[16]{0}), f32[16]{0}) all-reduce-start(%p), to_apply=%add
    """
    assert counted_bytes(program, 4) == {
        "all-gather": 3 * 2 * 4 * (4 + 1),
        "reduce-scatter": 2 * 3 * 2 * 4 * 4,
        "all-reduce": 2 * 3 * (16 + 1 + 16) * 4 // 4,
        "all-to-all": 3 * 2 * 4 * 2,
    }


@pytest.mark.again("test_bytes_are_counted_in_all_forms_that_xla_writes_collectives_in")
@pytest.mark.parametrize("exchange", ["all_gather", "all_to_all"])
def test_a_narrow_wire_has_the_predicted_bytes_before_a_compiler_widens_it(exchange, four_devices):
    """XLA for CPUs has no collectives of bfloat16, so that these are the bytes it is asked for."""
    small, data = {"layers": 2, "hidden": 16, "exchange": exchange}, load("tiny")
    predicted = {}
    for wire in (None, "bfloat16"):
        options = ManyGPUsOptions(wire_dtype=wire, **small)
        there = many_gpus.spread_out(options, data, 2)
        for k in (None, 4):
            state, step = many_gpus.make_step(options, data, k)
            run = distributed.sharded(step, there.graph.mesh, rows=(1, 2), outputs="all")
            lowered = jax.jit(run).lower(there.graph, there.features, there.labels, state)
            counted = counted_bytes(lowered.as_text("hlo"), 2)
            assert counted.pop("all-reduce") > 0
            predicted[wire, k] = predicted_bytes(there.graph, 2, 16, k)
            assert sum(counted.values()) == predicted[wire, k]
    assert predicted["bfloat16", None] / predicted[None, None] == 1 / 2
    assert predicted["bfloat16", 4] / predicted[None, 4] == (2 + 1 + 2) / (4 + 1 + 4)


BAD = {
    "--devices must be in 1..4, the devices that there are, got 5": {"devices": (5,)},
    "--only must be of tiny, flickr": {"only": ("cora",)},
    "--ks must be in 1..16": {"ks": (17,), "hidden": 16},
    "--repeats must be at least 1, got 0": {"repeats": 0},
}


@pytest.mark.parametrize("message", BAD)
def test_an_option_at_fault_is_named_as_it_is_typed(message, four_devices):
    with pytest.raises(ValueError, match=f"many_gpus: {message}"):
        ManyGPUsOptions(**BAD[message]).check()


def test_the_model_of_a_step_is_its_formula():
    step = Step(ms=100.0, layers=4, row_bytes=288, collectives=3, parameter_bytes=1e6)
    link = Link(gb_per_s=100.0, latency_us=10.0)
    assert step_ms(step, 1, 0, link) == 100.0
    wire = (4 * 5e5 * 288 + 2 * 0.75 * 1e6) / 100e9 * 1e3 + 13 * 0.01
    assert step_ms(step, 4, 5e5, link, imbalance=1.1) == pytest.approx(27.5 + wire)


def test_rows_read_are_those_of_a_random_partition():
    sizes = dataclasses.replace(SCALES["tiny"], exponent=0.0)
    ends = np.random.default_rng(0).integers(0, sizes.nodes, (2, sizes.edges))
    made = distributed.partition(CSRGraph.from_edges(*ends, sizes.nodes), 16, "random")
    assert rows_read(sizes, 16) == pytest.approx(made.halo_rows.mean(), rel=0.03)
    assert rows_read(sizes, 1) == 0


def test_predictions_stand_beside_what_was_measured(tmp_path, capsys):
    row = {"workload": "products", "k": 32, "layers": 4, "dim": 256, "device": "x", "edges": 1e8}
    row |= {"wire_dtype": None, "partition": "degree", "imbalance": 1.0, "parameter_mb": 1.0}
    one = {**row, "devices": 1, "ms": 100.0, "rows_received": 0}
    two = {**row, "devices": 2, "ms": 60.0, "rows_received": 1_000_000}
    append_rows(tmp_path / "many_gpus.jsonl", [one, two])
    made = scaling_model(ScalingModelOptions(out=tmp_path, most=4))
    assert [(r["workload"], r["devices"]) for r in made] == [
        (name, devices) for name in ("products", "papers100M") for devices in (1, 2, 4)
    ]
    assert made[1]["ratio"] == made[1]["model_ms"] / 60 and made[2]["ratio"] is None
    assert "papers100M" in capsys.readouterr().out
    assert (tmp_path / "many_gpus.png").stat().st_size > 10_000
    with pytest.raises(ValueError, match="scaling_model: --out must be a folder in"):
        ScalingModelOptions(out=tmp_path / "none").check()
