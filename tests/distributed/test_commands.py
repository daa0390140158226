"""A command that two processes run together: what they train, and how it ends when one dies."""

import dataclasses
import json
import re

import pytest

from experiments._processes import ProcessOptions
from experiments.maxk.config import TrainConfig
from experiments.maxk.train import train
from tests.distributed._commands import run_beside_a_still_one, run_two

CONFIG = TrainConfig(
    dataset="synthetic",
    num_layers=1,
    hidden_features=8,
    k=(4,),
    epochs=60,
    eval_every=20,
    checkpoint_every=5,
    devices=2,
    progress=False,
)
_VALUES = {
    "--dataset": "synthetic",
    "--num-layers": 1,
    "--hidden-features": 8,
    "--k": 4,
    "--epochs": 60,
    "--eval-every": 20,
    "--checkpoint-every": 5,
    "--devices": 2,
    "--num-processes": 2,
}
OPTIONS = ["--no-progress", *(str(part) for pair in _VALUES.items() for part in pair)]


def _rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _killed(folder, process):
    """Standard error of the other process, after one of two was killed behind a checkpoint."""
    options = [*OPTIONS, "--run", str(folder)]
    texts, codes, seconds = run_two(options, kill=process, when=folder / "checkpoints" / "5")
    assert 0 not in codes
    assert seconds < 60
    assert 5 <= len(_rows(folder)) < 60
    return texts[1 - process][1]


@pytest.mark.long
def test_when_process_0_is_killed_the_other_ends_with_an_error_that_names_it(tmp_path):
    assert "slice 0 task 0" in _killed(tmp_path / "run", 0)


@pytest.mark.long
def test_when_process_1_is_killed_the_other_names_it_and_a_restart_ends_as_if_nothing_had_been(
    tmp_path, four_devices
):
    train(dataclasses.replace(CONFIG, run=tmp_path / "one"))
    folder = tmp_path / "two"
    assert "tasks are unhealthy (stopped sending heartbeats):\n1" in _killed(folder, 1)
    before = _rows(folder)
    texts, codes, _ = run_two([*OPTIONS, "--run", str(folder)])
    assert codes == [0, 0], texts
    expected = _rows(tmp_path / "one")
    assert before == _rows(folder)[: len(before)]
    for row, wanted in zip(_rows(folder), expected, strict=True):
        assert row == pytest.approx(wanted, rel=1e-5)
    assert "test accuracy" in texts[0][0]
    assert "test accuracy" not in texts[1][0]


@pytest.mark.long
@pytest.mark.parametrize(
    "module, message",
    [
        (None, "tasks are unhealthy \\(stopped sending heartbeats\\):\n1|for process 1, which has"),
        (
            "tests.distributed.still_process",
            r"error: fit: process 0 has waited 4\d s at .* for process 1, which has not left the "
            "batch of step 8",
        ),
    ],
    ids=["stopped", "still in Python"],
)
def test_when_a_process_stands_still_the_other_ends_within_a_minute_and_names_it(
    module, message, tmp_path
):
    folder = tmp_path / "run"
    options = [*OPTIONS, "--run", str(folder)]
    when = folder / "checkpoints" / "5"
    error, code, seconds = run_beside_a_still_one(options, when, module)
    assert code != 0 and re.search(message, error), error
    assert seconds < 60


@pytest.mark.long
def test_processes_with_other_options_end_before_they_write_and_name_option_and_process(tmp_path):
    folder = tmp_path / "run"
    options = [*OPTIONS, "--run", str(folder)]
    texts, codes, _ = run_two(options, others=((), ("--learning-rate", "0.5")))
    assert codes == [1, 1], texts
    for _, error in texts:
        assert "--learning-rate must be the same on all processes, as on process 0" in error
        assert "others on processes [1]" in error
    assert not folder.exists()


BAD = {
    "--process-id must be left out with --coordinator None, got 0": (None, 0, None),
    "--num-processes must be left out with --coordinator cluster, got 2": ("cluster", None, 2),
    "--process-id must be given with --coordinator, got None": ("host:1234", None, 2),
    "--coordinator must be an address HOST:PORT, or cluster, got host": ("host", 0, 2),
    "--num-processes must be at least 1, got 0": ("host:1234", 0, 0),
    r"--process-id must be in 0..1, got 2": ("host:1234", 2, 2),
}


@pytest.mark.parametrize("message", BAD)
def test_options_of_processes_that_do_not_fit_are_named(message):
    with pytest.raises(ValueError, match=f"train: {message}"):
        ProcessOptions(*BAD[message]).check("train")
