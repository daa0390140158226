"""The soak of loaders."""

import pytest

from experiments.benchmarks._report import read_rows
from experiments.benchmarks.loader_soak import Options, check_flat, main


def test_a_short_soak_reads_memory_at_intervals(tmp_path):
    options = Options(minutes=0.01, readings=4, nodes=500, edges=4000, threads=1, out=tmp_path)
    (row,) = main(options)
    (written,) = read_rows(tmp_path / "loader_soak.jsonl")
    assert written["mib"] == row["mib"] and written["batches"] == row["batches"]
    assert len(row["mib"]) == 4 and min(row["mib"]) > 0
    assert row["batches"] == sorted(row["batches"]) and row["batches"][0] > 0


def test_growing_memory_is_an_error_and_bad_options_are_named():
    check_flat([100.0, 300.0, 310.0, 309.0])
    with pytest.raises(
        RuntimeError, match=r"memory grows: 310\.0 MiB at half time, then up to 350"
    ):
        check_flat([100.0, 300.0, 310.0, 350.0])
    for options, name in (({"minutes": 0.0}, "--minutes"), ({"readings": 3}, "--readings")):
        with pytest.raises(ValueError, match=name):
            Options(**options)
