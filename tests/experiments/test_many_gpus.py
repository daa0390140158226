"""The benchmark of many GPUs runs on CPU devices, with one's losses and the predicted bytes."""

import pytest

from experiments.benchmarks._report import read_rows
from experiments.benchmarks._wire import counted_bytes
from experiments.benchmarks.many_gpus import ManyGPUsOptions, main

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
    """
    assert counted_bytes(program, 4) == {
        "all-gather": 3 * 2 * 4 * (4 + 1),
        "reduce-scatter": 3 * 2 * 4 * 4,
        "all-reduce": 2 * 3 * (16 + 1) * 4 // 4,
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
