"""The benchmark of sampling on the device, and the random graphs that it samples."""

import numpy as np
import pytest

from experiments.benchmarks._random_graph import SIZES, random_graph
from experiments.benchmarks._report import read_rows
from experiments.benchmarks.sample_on_device import Options, main


def test_random_graphs_have_their_mean_degree_and_nodes_of_many_edges_send_many():
    num_nodes, mean_degree = SIZES["small"]
    graph = random_graph("small")
    indptr, indices = (np.asarray(array) for array in graph)
    received = np.diff(indptr)
    assert graph.num_nodes == num_nodes and indptr[0] == 0 and indptr[-1] == len(indices)
    assert abs(received.mean() / mean_degree - 1) < 0.15
    sent = np.bincount(indices, minlength=num_nodes)
    assert len(sent) == num_nodes and received.max() > 10 * mean_degree
    assert np.corrcoef(received, sent)[0, 1] > 0.2
    with pytest.raises(ValueError, match="products, papers, small"):
        random_graph("reddit")


def test_each_program_is_timed_with_its_memory_and_its_compilation(tmp_path, capsys):
    options = {"fanouts": (2,), "batch_size": 16, "in_flight": (2,), "relabelling": ("marks",)}
    main(Options(graph="small", repeats=1, out=tmp_path, **options))
    (row,) = read_rows(tmp_path / "sample_on_device.jsonl")
    assert row["relabelling"] == "marks" and row["in_flight"] == 2 and row["overflows"] == 0
    assert 16 < row["edges_per_batch"] <= 32 and row["ms_per_batch"] > 0
    speed = row["edges_per_batch"] / row["ms_per_batch"] / 1e3
    assert row["million_edges_per_s"] == pytest.approx(speed)
    assert "M edges/s" in capsys.readouterr().out


def test_bad_options_are_named():
    for wrong, message in (({"graph": "cora"}, "--graph"), ({"batch_size": 0}, "positive")):
        with pytest.raises(ValueError, match=message):
            Options(**wrong)
