"""The command that times second derivatives of attention."""

import re

import pytest

from experiments.benchmarks import attention_second_order
from experiments.benchmarks.attention_second_order import HEADS, WIDTH, Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"edges": 0}, "--edges must be greater than zero, got 0"),
        ({"most_gib": -1.0}, "--most-gib must be greater than zero, got -1.0"),
        ({"like": "redit"}, "--like must be one of .*reddit.*, got 'redit'"),
    ],
)
def test_options_that_make_no_sense_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        Options(**options)


@pytest.mark.again("tests/test_documented_commands.py")
def test_it_tells_the_memory_and_does_not_run_what_needs_more(capsys, monkeypatch, tmp_path):
    of_gat = {"gat_attention": attention_second_order.ARRAYS["gat_attention"]}
    monkeypatch.setattr(attention_second_order, "ARRAYS", of_gat)
    full = 20_000 * HEADS * WIDTH * 4 / 2**30  # an array of edges times heads times width
    options = Options(nodes=50, edges=20_000, most_gib=full, out=tmp_path)
    (row,) = attention_second_order.main(options)
    (line,) = capsys.readouterr().out.splitlines()[2:]
    parts = r"kernels [\d,.]+ ms, temporary ([\d.]+) GiB; xla not run, temporary ([\d.]+) GiB"
    found = re.fullmatch(f"gat_attention: {parts}", line)
    assert found is not None, line
    kernels, xla = map(float, found.groups())
    assert kernels < full / 2 < full < xla
    assert row["kernels_temporary_bytes"] < 2**30 * full < row["xla_temporary_bytes"]
    assert row["kernels_ms"] > 0 and row["xla_ms"] is None
    assert (tmp_path / "attention_second_order.jsonl").is_file()
