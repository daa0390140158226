"""The benchmark of what a call costs: every way to call a step trains, and has its row."""

import pytest

from experiments.benchmarks import call_cost
from experiments.benchmarks._origin import origin
from experiments.benchmarks._report import read_rows

_OPS = ("spmm", "neighbour_reduce sum", "neighbour_reduce max")


@pytest.mark.again("tests/test_documented_commands.py")
def test_every_way_trains_the_network():
    for step in call_cost.ways(layers=1).values():
        losses = [float(step()) for _ in range(40)]
        assert sum(losses[-5:]) < 0.5 * sum(losses[:5])


def test_the_rows_are_printed_and_kept(tmp_path, capsys):
    rows = call_cost.main(call_cost.CallCostOptions(layers=1, calls=3, out=tmp_path))
    assert read_rows(tmp_path / "call_cost.jsonl") == [origin() | row for row in rows]
    of_ops = [f"{op}, {way}" for op in _OPS for way in ("eager", "jit")]
    assert [row["way"] for row in rows] == ["nnx.jit", "nnx.cached_partial", "jax.jit", *of_ops]
    assert all(row["host_ms"] > 0 for row in rows)
    assert capsys.readouterr().out.count("nnx.") == 2
    with pytest.raises(ValueError, match="call_cost: --calls must be at least 1, got 0"):
        call_cost.main(call_cost.CallCostOptions(calls=0))
