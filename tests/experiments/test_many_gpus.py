"""The benchmark of many GPUs runs on CPU devices, with one's losses and the predicted bytes."""

import dataclasses

import numpy as np
import pytest

from experiments.benchmarks._report import append_rows, read_rows
from experiments.benchmarks._wire import counted_bytes
from experiments.benchmarks.many_gpus import ManyGPUsOptions, main
from experiments.benchmarks.scaling_model import Link, ScalingModelOptions, Step, rows_read, step_ms
from experiments.benchmarks.scaling_model import main as scaling_model
from jaxgnn import CSRGraph, distributed
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
    assert four["loss_difference"] < 1e-6 and four["imbalance"] < 1.001
    assert "x least" in capsys.readouterr().out


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
    with pytest.raises(ValueError, match="scaling_model: --out must be a folder in"):
        ScalingModelOptions(out=tmp_path / "none").check()
