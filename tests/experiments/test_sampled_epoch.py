"""The benchmark of an epoch that samples on the device."""

import jax
import pytest

from experiments.benchmarks._report import read_rows
from experiments.benchmarks.sampled_epoch import Options, main


def test_an_epoch_takes_all_training_nodes_and_lowers_the_loss(tmp_path, capsys):
    options = {"fanouts": (3, 2), "batch_size": 128, "hidden": 8, "dtypes": ("float32",)}
    with jax.numpy_dtype_promotion("standard"):  # as for users: optax mixes dtypes
        main(Options(graph="small", out=tmp_path, **options))
    (row,) = read_rows(tmp_path / "sampled_epoch.jsonl")
    assert row["steps"] == 8 and row["overflows"] == 0 and row["epoch_s"] > 0
    assert row["last_loss"] < row["first_loss"] + 0.5
    assert "epoch s" in capsys.readouterr().out


def test_bad_options_are_named():
    for wrong, message in (({"graph": "cora"}, "--graph"), ({"hidden": 0}, "positive")):
        with pytest.raises(ValueError, match=message):
            Options(**wrong)
