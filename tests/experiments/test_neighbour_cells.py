"""The benchmark of the search for neighbours by cells."""

import numpy as np
import pytest

from experiments.benchmarks._report import read_rows
from experiments.benchmarks.neighbour_cells import Options, crystal, main
from jaxgnn.graph import radius_graph


def test_full_and_half_lists_have_the_edges_of_the_host(tmp_path):
    full, half = main(Options(atoms=(216,), out=tmp_path))
    assert [row["lists"] for row in read_rows(tmp_path / "neighbour_cells.jsonl")] == [
        "full",
        "half",
    ]
    made = crystal(216)
    expected = radius_graph(made.points, 5.0, box=made.box)
    assert full["edges"] == 2 * half["edges"] == len(np.asarray(expected.senders))


def test_too_few_atoms_are_named():
    with pytest.raises(ValueError, match="--atoms must be at least 64, got 5"):
        Options(atoms=(5,))
