"""Experiments that train in batches have, on several devices, the losses of one."""

import dataclasses
import os
import re

import jax
import numpy as np
import pytest

from experiments._options import limit_launches
from experiments.graphs.config import GraphsConfig
from experiments.graphs.data import Batches
from experiments.graphs.train import train as train_graphs
from experiments.hgnn.config import LMConfig
from experiments.hgnn.lm import train as train_experts
from experiments.mhc.config import TrainConfig as TextConfig
from experiments.mhc.train import train as train_text
from experiments.mlp.config import ValidateConfig
from experiments.mlp.validate import _train as train_mlp
from experiments.sudoku.config import TrainConfig as SudokuConfig
from experiments.sudoku.data import make_data
from experiments.sudoku.train import train as train_sudoku
from jaxgnn.datasets import TextDataset, mutag
from tests._settings import jax_settings

_TEXT = {
    "num_layers": 1,
    "features": 8,
    "num_heads": 2,
    "context": 12,
    "batch_size": 8,
    "steps": 4,
    "eval_every": 2,
}
_GRAPHS = {
    "dataset": "mutag",
    "model": "gin",
    "hidden_features": 4,
    "num_layers": 1,
    "readout": ("sum",),
    "norm": "graph",
    "batch_size": 40,
    "epochs": 2,
    "eval_every": 1,
}
_BOARDS = {
    "features": 4,
    "num_steps": 2,
    "test_steps": 2,
    "warm_up": 0,
    "batch_size": 8,
    "steps": 4,
    "eval_puzzles": 2,
    "evaluations": 2,
}


def _train_text(folder, devices):
    config = TextConfig(hyper_connections=0, devices=devices, run=folder, progress=False, **_TEXT)
    return train_text(config, _text())


def _train_experts(folder, devices):
    options = {"experts": (2,), "couplings": ("hypergraph",), "weight_orthogonality": 0.1}
    config = LMConfig(devices=devices, run=folder, progress=False, **options, **_TEXT)
    config.check()
    return train_experts(config.variants()[0], _text())


def _train_sudoku(folder, devices):
    config = SudokuConfig(devices=devices, run=folder, progress=False, **_BOARDS)
    return train_sudoku(config, make_data(100, 2, seed=3))


def _train_graphs(folder, devices):
    config = GraphsConfig(devices=devices, run=folder, progress=False, **_GRAPHS)
    return train_graphs(config)


def _text():
    words = np.frombuffer(" ".join(map(str, range(400))).encode(), np.uint8)
    return TextDataset("numbers", train=words, validation=words[:300])


@pytest.mark.costly
@pytest.mark.parametrize("train", [_train_graphs, _train_sudoku, _train_text, _train_experts])
def test_a_training_on_four_devices_has_the_losses_of_one(train, tmp_path, four_devices):
    one, four = (train(tmp_path / str(count), count).history for count in (1, 4))
    assert one[0]["loss"] != one[-1]["loss"]
    for row, wanted in zip(four, one, strict=True):
        # Puzzles differ in how many cells are blank, so that no mean over parts is that of all.
        wanted = {name: value for name, value in wanted.items() if name != "cell accuracy"}
        assert {name: row[name] for name in wanted} == pytest.approx(wanted, rel=1e-4)


@pytest.mark.costly
def test_an_mlp_on_four_devices_has_the_weights_of_one(four_devices):
    options = {"steps": 3, "batch_size": 16, "implementation": "xla", "progress": False}
    one, four = (train_mlp(ValidateConfig(devices=count, **options), 0) for count in (1, 4))
    for wanted, found in zip(one.layers, four.layers, strict=True):
        for kernel, same in zip(wanted, found, strict=True):
            np.testing.assert_allclose(same, kernel, rtol=1e-4, atol=1e-5)
            assert len(same.sharding.device_set) == 1


BAD = {
    "validate: --batch-size must be divisible by --devices 3, got 32": ValidateConfig(devices=3),
    "train: --batch-size must be divisible by --devices 3, got 8": TextConfig(devices=3, **_TEXT),
    "lm: --batch-size must be divisible by --devices 3, got 8": LMConfig(devices=3, **_TEXT),
    "train: --batch-size must be divisible by --devices 3, got 10": SudokuConfig(
        devices=3, batch_size=10
    ),
    "train: --batch-size must be divisible by --devices 3, got 64": GraphsConfig(devices=3),
    "lm: --output-orthogonality must be left out with --devices 2, got 0.5": LMConfig(
        devices=2, output_orthogonality=0.5
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_options_that_do_not_fit_the_devices_are_named_with_numbers(message, four_devices):
    with pytest.raises(ValueError, match=re.escape(message)):
        BAD[message].check()


def test_a_batch_has_a_graph_for_each_device():
    with pytest.raises(ValueError, match=r"train: --devices must be at most \d+, .* got 200"):
        Batches.of(mutag(seed=0, fractions=(0.6, 0.2, 0.2)), 200, 1, seed=0, devices=200)


@pytest.mark.parametrize(
    "config", [TextConfig(), LMConfig(), SudokuConfig(), GraphsConfig(), ValidateConfig()]
)
@pytest.mark.parametrize("devices", [0, 999])
def test_devices_that_are_not_there_are_named(config, devices):
    with pytest.raises(ValueError, match=rf"--devices must be in 1\.\.\d+, .*, got {devices}"):
        dataclasses.replace(config, devices=devices).check()


_LIMIT = "--xla_gpu_nccl_termination_timeout_seconds"


@pytest.mark.parametrize(
    ("given", "platforms", "several_processes", "expected"),
    [
        (None, None, False, f"{_LIMIT}=60"),
        ("--xla_a=1", "cuda", False, f"--xla_a=1 {_LIMIT}=60"),
        (f"{_LIMIT}=7", None, False, f"{_LIMIT}=7"),
        ("--xla_a=1", "cpu", False, "--xla_a=1"),
        ("--xla_a=1", "cuda", True, "--xla_a=1"),
    ],
)
def test_launches_on_gpus_of_one_process_are_limited_unless_the_user_has_said(
    given, platforms, several_processes, expected, monkeypatch
):
    monkeypatch.setenv("XLA_FLAGS", given or "")
    if given is None:
        monkeypatch.delenv("XLA_FLAGS")
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: several_processes)
    with jax_settings({"jax_platforms": platforms}):
        limit_launches()
    assert os.environ["XLA_FLAGS"] == expected


def test_xla_knows_the_option_that_limits_launches():
    doubled = jax.jit(lambda x: 2 * x, compiler_options={_LIMIT.removeprefix("--"): 60})
    assert doubled(np.float32(3)) == 6
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option"):
        jax.jit(lambda x: 2 * x, compiler_options={"xla_gpu_no_such": 60})(np.float32(3))
