"""The command that counts rows in which MaxK selects otherwise on several devices than on one."""

import numpy as np
import pytest

from experiments.benchmarks._report import read_rows
from experiments.benchmarks.near_ties import Layer, NearTiesOptions, compared, main


@pytest.mark.again("tests/distributed/test_halo_exchange.py")
def test_where_entries_are_rounded_on_the_wire_the_rows_that_differ_are_all_of_the_difference(
    tmp_path, four_devices, capsys
):
    """With bfloat16 on the wire entries differ so much that a small graph has near ties."""
    small = {"layers": 2, "hidden": 64, "ks": (8,), "only": ("tiny",), "devices": (2,)}
    main(NearTiesOptions(out=tmp_path, wire_dtype="bfloat16", **small))
    first, second, own, same, dense = read_rows(tmp_path / "near_ties.jsonl")
    # The rows of the first layer are products of a node's own features.
    assert first["rows_by_rounding"] == first["rows_differ"] == 0 and first["rounding"] < 1e-6
    assert 0 < second["rows_by_rounding"] == second["rows_differ"] < second["rows"] / 20
    assert 1e-4 < second["rounding"] < 1e-2
    assert 0 < second["gap_over_rounding"] <= 2 and second["gap"] <= 2 * second["rounding"]
    assert [row["columns"] for row in (own, same, dense)] == [
        "own",
        "of one device",
        "all, with ReLU",
    ]
    assert own["loss_difference"] > 10 * same["loss_difference"] > 0
    assert own["gradient_difference"] > 5 * same["gradient_difference"] > 0
    assert same["loss_difference"] < 1e-4 and dense["loss_difference"] < 1e-4
    assert same["k"] == 8 and same["devices"] == 2 and same["matmul_precision"] == "highest"
    assert "gap / rounding" in capsys.readouterr().out


def test_gaps_and_rounding_are_those_of_the_rows_that_only_rounding_tells_apart():
    one = Layer(
        np.array([[4.0, 1.0, 0.75, 0.0], [2.0, 3.0, 1.0, 0.0], [8.0, 0.0, 6.0, 5.0]], np.float32),
        np.array([[0, 1], [0, 1], [0, 2]], np.uint8),
    )
    # Row 0 has a near tie, whose entries have moved by 0.25 and 0.125.
    entries = one.entries + np.array([[0, -0.25, 0.125, 0], [0] * 4, [-0.5, 0, 0, 0]], np.float32)
    same = Layer(entries, np.array([[0, 2], [0, 1], [0, 2]], np.uint8))
    own = Layer(entries, np.array([[0, 2], [0, 1], [2, 3]], np.uint8))
    assert compared(one, own, same) == {
        "rows": 3,
        "rows_differ": 2,
        "rows_by_rounding": 1,
        "gap": 0.25 / 8,
        "gap_over_rounding": 1.0,
        "rounding": 0.5 / 8,
    }
    alike = compared(one, one, one)
    assert alike["rows_differ"] == alike["rows_by_rounding"] == alike["rounding"] == 0
    assert alike["gap"] is alike["gap_over_rounding"] is None


BAD = {
    "--devices must be in 1..4, the devices that there are, got 5": {"devices": (5,)},
    "--devices must be at least 2, of 4 that there are": {"devices": (2, 1)},
    "--only must be of tiny, flickr": {"only": ("cora",)},
    "--ks must be in 1..16": {"ks": (17,), "hidden": 16},
    "--ks must be at least one number, got none": {"ks": ()},
}


@pytest.mark.parametrize("message", BAD)
def test_an_option_at_fault_is_named_as_it_is_typed(message, four_devices):
    with pytest.raises(ValueError, match=f"near_ties: {message}"):
        NearTiesOptions(**BAD[message]).check()
