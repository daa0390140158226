"""The mHC experiments, from the command line to the picture."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from experiments.mhc import __main__ as command_line
from experiments.mhc import train as train_module
from experiments.mhc.compare import compare
from experiments.mhc.config import DeepConfig, TrainConfig
from experiments.mhc.data import all_pieces, random_pieces
from experiments.mhc.deep import _print_table, deep
from experiments.mhc.train import train
from jaxgnn.datasets import TextDataset

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def text():
    def numbers(first, last):
        words = " ".join(f"{i} and {i + 1}" for i in range(first, last))
        return np.frombuffer(words.encode(), np.uint8)

    return TextDataset("numbers", train=numbers(0, 300), validation=numbers(300, 320))


def _config(folder: Path, **options) -> TrainConfig:
    defaults = {
        "hyper_connections": 2,
        "num_layers": 1,
        "features": 16,
        "num_heads": 2,
        "context": 12,
        "batch_size": 4,
        "steps": 40,
        "learning_rate": 1e-2,
        "eval_every": 20,
        "checkpoint_every": 10,
        "run": folder / "run",
        "progress": False,
    }
    return TrainConfig(**(defaults | options))


def test_pieces_cover_the_text_and_batches_depend_on_the_step_alone():
    text = np.arange(50, dtype=np.uint8)
    pieces = all_pieces(text, context=6, at_once=4)
    assert pieces.shape == (2, 4, 7)
    np.testing.assert_array_equal(pieces[..., 1:].ravel(), np.arange(1, 49))
    np.testing.assert_array_equal(pieces[..., :-1].ravel(), np.arange(48))
    batches = random_pieces(text, context=6, count=3, seed=0)
    np.testing.assert_array_equal(batches(5), batches(5))
    assert not np.array_equal(batches(5), batches(6))
    assert not np.array_equal(batches(5), random_pieces(text, 6, 3, seed=1)(5))
    assert (np.diff(batches(5), axis=1) == 1).all()
    starts = {int(start) for step in range(300) for start in batches(step)[:, 0]}
    assert starts == set(range(44)), "every piece may come, the first and the last included"


@pytest.fixture(scope="module")
def compared(text, tmp_path_factory):
    """The folder and the outcomes of a comparison."""
    config = _config(tmp_path_factory.mktemp("compared"))
    return config.run, compare(config, text)


@pytest.mark.long
def test_compare_learns_and_draws_both_runs(compared):
    folder, (plain, mhc) = compared
    for outcome in (plain, mhc):
        assert outcome.train < 0.7 * outcome.history[0]["loss"]
        assert outcome.curves.exists()
    assert (plain.label, mhc.label) == ("plain residuals", "mHC n = 2")
    assert mhc.parameters > plain.parameters
    assert (folder / "compare-lm-seed0.png").stat().st_size > 5000
    result = json.loads((folder / "lm-mhc2-seed0/result.json").read_text())
    assert result["validation"] == mhc.validation


@pytest.mark.long
def test_a_run_that_was_stopped_resumes_to_the_same_result(text, compared, tmp_path, monkeypatch):
    whole = compared[1][1]

    def stopping(*args):
        batch = random_pieces(*args)

        def stop(step):
            if step == 25:
                raise KeyboardInterrupt
            return batch(step)

        return stop

    config = _config(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(train_module, "random_pieces", stopping)
        train(config, text)
    resumed = train(config, text)
    assert resumed.history == whole.history
    assert resumed.validation == whole.validation
    again = train(config, text)
    assert again.history == whole.history and again.ms_per_step is None
    fresh = train(replace(config, fresh=True), text)
    assert fresh.history == whole.history and fresh.ms_per_step is not None


BAD = {
    "streams": ({"hyper_connections": -1}, "--hyper-connections must be at least 0, got -1"),
    "context": ({"context": 0}, "--context must be at least 1, got 0"),
    "long context": ({"context": 10**6}, "--context must be less than the text's"),
    "validation": ({"batch_size": 10**4}, "--context times the batch size must be at most"),
    "batch size": ({"batch_size": 0}, "--batch-size must be at least 1, got 0"),
    "heads": ({"num_heads": 3}, "num_heads must be a divisor of 16"),
    "steps": ({"steps": 0}, "steps: expected at least 1, got 0"),
    "recompute": (
        {"hyper_connections": 0, "recompute_every": 2},
        "recompute_every must be None without hyper_connections, got 2",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options_are_named(name, text, tmp_path):
    options, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        train(_config(tmp_path, **options), text)
    assert not (tmp_path / "run").exists(), "a bad option must not leave a run folder"


def test_compare_needs_streams(text, tmp_path):
    with pytest.raises(ValueError, match="--hyper-connections must be at least 1, got 0"):
        compare(_config(tmp_path, hyper_connections=0), text)


@pytest.mark.long
def test_deep_keeps_its_accuracy_with_streams_and_loses_it_without(tmp_path, capsys):
    config = DeepConfig(
        depths=(12,),
        streams=(0, 2),
        hidden_features=16,
        k=8,
        dropout=0.0,
        epochs=30,
        eval_every=10,
        run=tmp_path,
        progress=False,
    )
    outcomes = deep(config)
    assert outcomes[2][12].test > 0.85
    assert outcomes[2][12].test > outcomes[0][12].test + 0.2
    assert (tmp_path / "deep-digits-sage-seed97.png").stat().st_size > 5000
    assert "12 layers" in capsys.readouterr().out
    again = deep(config)
    assert again[2][12].history == outcomes[2][12].history
    assert again[2][12].ms_per_epoch is None, "complete runs are not trained again"


def test_a_depth_that_is_nan_does_not_count_for_less_than_the_others(capsys):
    tests = {2: 0.9, 8: math.nan, 32: 0.8}
    _print_table({0: {depth: SimpleNamespace(test=test) for depth, test in tests.items()}})
    assert "no residuals: 32 layers are nan points below its best" in capsys.readouterr().out


@pytest.mark.parametrize("options", [{"depths": ()}, {"depths": (0,)}, {"streams": (4, 4)}])
def test_deep_names_bad_lists(options, tmp_path):
    with pytest.raises(ValueError, match=r"deep: --(depths|streams) must be different numbers"):
        deep(DeepConfig(run=tmp_path, **options))


def test_the_command_line_trains_on_the_text_of_python(tmp_path):
    options = ["--run", str(tmp_path / "run"), "--hyper-connections", "0", "--steps", "1"]
    options += ["--num-layers", "1", "--features", "8", "--num-heads", "2", "--no-progress"]
    result = subprocess.run(
        [sys.executable, "-m", "experiments.mhc", "train", *options],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "validation loss: " in result.stdout


def test_the_command_line_ends_a_bad_option_with_one_line(tmp_path, monkeypatch):
    arguments = ["mhc", "train", "--run", str(tmp_path / "run"), "--context", "0"]
    monkeypatch.setattr(sys, "argv", arguments)
    # Python prints such a code on stderr, and exits with 1.
    with pytest.raises(SystemExit, match=r"^error: .*--context must be at least 1, got 0$"):
        command_line.main()
