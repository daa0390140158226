"""Trainings by batches are compared on one graph: rows, curves, and errors of options."""

import pytest

from experiments.benchmarks._report import read_rows
from experiments.benchmarks.sampled_training import SampledTrainingOptions, main, thinned

SMALL = {"nodes": 400, "edges": 4_000, "features": 8, "communities": 4, "hidden": 8, "layers": 1}
SMALL |= {"k": 4, "seconds": 0.0, "batch_size": 100, "fanout": 3}


@pytest.mark.costly(1)
@pytest.mark.parametrize(
    "methods", [("full", "saint"), ("full", "cluster", "shadow", "neighbour", "labor")]
)
def test_every_method_has_a_row_and_a_curve(methods, tmp_path):
    rows = main(SampledTrainingOptions(methods=methods, out=tmp_path, **SMALL))
    assert [row["method"] for row in rows] == list(methods)
    assert all(0 <= row["test"] <= 1 and len(row["curve"]) == 1 for row in rows)
    # One batch of all clusters would be the whole graph.
    assert all(row["steps"] >= 2 for row in rows if row["method"] == "cluster")
    assert [row["method"] for row in read_rows(tmp_path / "sampled_training.jsonl")] == list(
        methods
    )
    assert (tmp_path / "sampled_training.png").stat().st_size > 10_000


def test_a_stored_curve_keeps_its_first_its_last_and_its_best_point():
    curve = [{"epoch": epoch, "validation accuracy": 0.5} for epoch in range(1, 1001)]
    curve[706]["validation accuracy"] = 0.9
    epochs = [point["epoch"] for point in thinned(curve)]
    assert len(epochs) <= 40 and epochs == sorted(epochs)
    assert {1, 707, 1000} <= set(epochs)
    assert thinned(curve[:40]) == curve[:40]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"methods": ("full", "forest")}, "--methods must be among full, .*, got forest"),
        ({"methods": ("saint",)}, "--methods must be full first"),
        ({"batch_size": 0}, "--batch-size must be at least 1, got 0"),
    ],
)
def test_errors_name_the_option(options, message):
    with pytest.raises(ValueError, match=f"sampled_training: {message}"):
        main(SampledTrainingOptions(**options))
