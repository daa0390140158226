"""The command that times gradients of extremes."""

import pytest

from experiments.benchmarks._workloads import Workload
from experiments.benchmarks.extreme_gradients import Options, measure


def test_an_unknown_graph_is_named():
    with pytest.raises(ValueError, match=r"--like must be among random, .*reddit.*, got 'redit'"):
        Options(like=("redit",))


@pytest.mark.again("tests/test_documented_commands.py")
def test_each_case_is_timed_both_ways_and_compared_with_float64(capsys):
    rows = measure(Options(width=8), Workload("tiny", 30, 200), "float32")
    assert [row["case"] for row in rows] == ["neighbour_max", "neighbour_pna", "PNAConv"]
    for row in rows:
        assert row["ours_forward"] > 0 and row["ours_with_gradients"] > 0
        assert row["case"] == "PNAConv" or row["error"] < 1e-5
    assert len(capsys.readouterr().out.splitlines()) == len(rows)
