"""The benchmark of epochs with NeighborLoader."""

import jax
import pytest

from experiments.benchmarks._report import read_rows
from experiments.benchmarks.loader_epoch import CASES, Options, main


def test_each_way_to_make_batches_gives_the_same_losses(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {"fanouts": (3, 2), "batch_size": 128, "hidden": 8}
    with jax.numpy_dtype_promotion("standard"):  # as for users: optax mixes dtypes
        main(Options(graph="small", out=tmp_path, **options))
    rows = read_rows(tmp_path / "loader_epoch.jsonl")
    assert [row["candidate"] for row in rows] == list(CASES)
    assert all(row["steps"] == 8 and row["epoch_s"] > 0 for row in rows)
    first, last = ([row[key] for row in rows] for key in ("first_loss", "last_loss"))
    assert first == pytest.approx([first[0]] * len(rows), rel=1e-5)
    assert last == pytest.approx([last[0]] * len(rows), rel=1e-4) and last[0] != first[0]
    assert 0 < rows[-1]["hit_rate"] < 1 and rows[0]["hit_rate"] is None
    assert "epoch s" in capsys.readouterr().out


def test_bad_options_are_named():
    for wrong, message in (
        ({"graph": "cora"}, "--graph"),
        ({"cases": ("disk",)}, "--cases"),
        ({"steps": 0}, "positive"),
    ):
        with pytest.raises(ValueError, match=message):
            Options(**wrong)
