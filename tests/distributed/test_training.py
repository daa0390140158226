"""Trainings of one graph on several devices are those on one, and go on with another number."""

import json
from pathlib import Path

import jax
import pytest

from experiments._options import check_devices
from experiments._seeds import Repeats
from experiments.maxk.config import TrainConfig
from experiments.maxk.train import train
from experiments.maxk.trainings import train_all


def _history(folder, devices, epochs):
    """The log of a run that has gone on with so many devices up to an epoch."""
    config = TrainConfig(
        dataset="synthetic",
        num_layers=1,
        hidden_features=8,
        k=(4,),
        input_dropout=0.1,
        epochs=epochs,
        devices=devices,
        run=folder,
        progress=False,
    )
    train(config)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.long
def test_a_run_on_one_device_goes_on_with_two_and_four_as_on_one(tmp_path, four_devices, capsys):
    expected = _history(tmp_path / "one", 1, 6)
    for devices, epochs in ((1, 2), (2, 4)):
        assert len(_history(tmp_path / "many", devices, epochs)) == epochs
    actual = _history(tmp_path / "many", 4, 6)
    assert actual[-1]["loss"] < actual[0]["loss"]
    for row, wanted in zip(actual, expected, strict=True):
        assert row == pytest.approx(wanted, rel=1e-5)


BAD = {
    r"--devices must be in 1\.\.\d+, the devices that there are, got 99": {"devices": 99},
    "--devices must be at least 1, got 0": {"devices": 0},
    "--validate-kernels must be left out with --devices 2": {
        "devices": 2,
        "validate_kernels": True,
    },
}


ON_ONE_DEVICE = {
    "--vmap": ({}, {"vmap": True}),
    "--table-seeds": ({}, {"table_seeds": (0,)}),
    "--export": ({}, {"export": Path("model.jaxgnn")}),
    "--processes": ({"seeds": (0, 1), "processes": 2}, {}),
}


@pytest.mark.parametrize("name", ON_ONE_DEVICE)
def test_what_runs_on_one_device_is_refused_with_several(name, tmp_path, four_devices):
    repeats, options = ON_ONE_DEVICE[name]
    config = TrainConfig(run=tmp_path / "run", devices=2)
    with pytest.raises(ValueError, match=f"train: {name} must be left out with --devices 2"):
        train_all(config, Repeats(**repeats), **options)
    assert not (tmp_path / "run").exists()


def test_several_processes_need_all_of_their_devices(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    there = jax.device_count()
    message = f"--devices must be {there}, the devices of all 2 processes, got {there + 1}"
    with pytest.raises(ValueError, match=message):
        check_devices("train", there + 1)


@pytest.mark.parametrize("message", BAD)
def test_an_option_at_fault_is_named_as_it_is_typed(message, tmp_path):
    with pytest.raises(ValueError, match=f"train: {message}"):
        train(TrainConfig(run=tmp_path / "run", **BAD[message]))
    assert not (tmp_path / "run").exists()
