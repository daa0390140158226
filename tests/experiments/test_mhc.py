"""The mHC experiments, from the command line to the picture."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments._seeds import paired
from experiments._text import all_pieces, ngram_loss, random_pieces
from experiments.mhc import __main__ as command_line
from experiments.mhc import deep as deep_module
from experiments.mhc.compare import _num_parameters, compare, variants_of
from experiments.mhc.config import DeepConfig, TrainConfig
from experiments.mhc.deep import deep
from experiments.mhc.train import train
from jaxgnn.datasets import TextDataset, pydoc_text

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
    return config.run, compare(config, time_ratio=1.5, dataset=text)


@pytest.mark.long
def test_compare_learns_and_draws_all_runs(compared):
    folder, comparison = compared
    plain, wide, longer, mhc = (runs[0] for runs in comparison.outcomes)
    for outcome in (plain, wide, longer, mhc):
        assert outcome.train < 0.7 * outcome.history[0]["loss"]
        assert outcome.curves.exists() and (outcome.curves.parent / "report.html").exists()
    assert plain.label == "plain residuals, width 16, 40 steps"
    assert mhc.label == "mHC n = 2, width 16, 40 steps"
    assert plain.parameters < mhc.parameters
    assert abs(wide.parameters - mhc.parameters) < abs(plain.parameters - mhc.parameters)
    assert len(longer.history) == 60 and longer.parameters == plain.parameters
    assert (folder / "compare-lm.png").stat().st_size > 5000
    result = json.loads((folder / "lm-mhc2-width16-steps40-seed0/result.json").read_text())
    assert result["validation"] == mhc.validation
    names = [row[0] for row in comparison.table.rows]
    assert names[:4] == [f"counts, {n} byte{'s' * (n != 1)} of context" for n in range(4)]
    assert names[4:] == [outcome.label for outcome in (plain, wide, longer, mhc)]


@pytest.mark.again("test_deep_compares_methods_seed_by_seed_and_goes_on_where_it_stopped")
def test_the_wide_plain_model_has_as_many_parameters_as_its_width_allows(tmp_path):
    config = TrainConfig(run=tmp_path)
    plain, wide, longer, mhc = map(_num_parameters, variants_of(config, 1.7))
    assert plain == longer < mhc
    # Heads are of even width, so widths are multiples of 8 with four heads.
    step = _num_parameters(replace(config, hyper_connections=0, features=72)) - plain
    assert abs(wide - mhc) <= step


def test_counts_of_bytes_predict_as_their_formula_says():
    train, validation = (np.frombuffer(text, np.uint8) for text in (b"aab", b"ab"))
    dataset = TextDataset("letters", train, validation)
    alone = [(count + 5 / 256) / (3 + 5) for count in (2, 1)]
    assert ngram_loss(dataset, 0) == pytest.approx(-np.mean(np.log(alone)))
    # "a" was seen twice with a byte behind it, once of them "b".
    after = (1 + 5 * alone[1]) / (2 + 5)
    assert ngram_loss(dataset, 1) == pytest.approx(-np.mean(np.log([alone[0], after])))
    losses = [ngram_loss(pydoc_text(), order) for order in (0, 2)]
    assert losses[1] < losses[0] < math.log(256)


BAD = {
    "streams": ({"hyper_connections": -1}, "--hyper-connections must be at least 0, got -1"),
    "context": ({"context": 0}, "--context must be at least 1, got 0"),
    "long context": ({"context": 10**6}, "--context must be less than the text's"),
    "validation": ({"batch_size": 10**4}, "--context times the batch size must be at most"),
    "batch size": ({"batch_size": 0}, "--batch-size must be at least 1, got 0"),
    "heads": ({"num_heads": 3}, "num_heads must be a divisor of 16"),
    "steps": ({"steps": 0}, "--steps must be at least 1, got 0"),
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
        compare(_config(tmp_path, hyper_connections=0), dataset=text)
    with pytest.raises(ValueError, match="--time-ratio must be finite and above 0, got 0"):
        compare(_config(tmp_path), time_ratio=0, dataset=text)


@pytest.fixture
def tiny_folder(tmp_path):
    """A graph of 80 nodes in two groups, in the files of one's own graph."""
    rng = np.random.default_rng(0)
    group = np.arange(80) % 2
    pairs = rng.integers(80, size=(600, 2))
    pairs = pairs[(group[pairs[:, 0]] == group[pairs[:, 1]]) & (pairs[:, 0] != pairs[:, 1])]
    folder = tmp_path / "groups"
    folder.mkdir()
    np.savetxt(folder / "edges.csv", np.concatenate([pairs, [[0, 2], [79, 1]]]), "%d", ",")
    np.savetxt(folder / "labels.csv", group, "%d")
    np.savetxt(folder / "features.csv", group[:, None] + rng.normal(size=(80, 4)), "%.4f", ",")
    return folder


def test_deep_compares_methods_seed_by_seed_and_goes_on_where_it_stopped(
    tiny_folder, tmp_path, monkeypatch, capsys
):
    config = DeepConfig(
        dataset=str(tiny_folder),
        depths=(2,),
        methods=("gcnii", "mhc"),
        seeds=(0, 1),
        streams=2,
        hidden_features=8,
        epochs=3,
        eval_every=1,
        run=tmp_path / "deep",
        progress=False,
    )
    outcomes = deep(config)
    assert [(o.depth, o.method) for o in outcomes] == [(2, "gcnii"), (2, "mhc")]
    assert all(len(o.test) == 2 and min(o.test) >= 0 for o in outcomes)
    text = capsys.readouterr().out
    ours, theirs = ([100 * t for t in outcomes[i].test] for i in (1, 0))
    assert str(paired(ours, theirs)) in text and "mHC n = 2 − GCNII" in text
    assert "majority class" in text
    assert (tmp_path / "deep/depth.png").stat().st_size > 5000
    # Of what was killed in the midst of a line, the rest is trained again.
    log = tmp_path / "deep/outcomes.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:-1]) + lines[-1][:20])
    trained = []
    original = deep_module.train_in_one_program
    monkeypatch.setattr(
        deep_module,
        "train_in_one_program",
        lambda config, *args, **options: (
            trained.append(config) or original(config, *args, **options)
        ),
    )
    again = deep(config)
    assert [o.test for o in again] == [o.test for o in outcomes] and len(trained) == 1


BAD_DEEP = {
    "no depth": ({"depths": ()}, "--depths must be one or more, all different, got none"),
    "depth": ({"depths": (2, 0)}, "--depths must be at least 1, got 2 0"),
    "method": ({"methods": ("mhc", "mhc")}, "--methods must be one or more, all different"),
    "streams": ({"streams": 0}, "--streams must be at least 1, got 0"),
    "seeds": ({"seeds": (1, 1)}, "--seeds must be each seed once"),
    "k": ({"activation": "maxk", "k": 65}, r"k must be in 1\.\.64"),
}


@pytest.mark.parametrize("name", BAD_DEEP)
def test_deep_names_bad_options(name, tmp_path):
    options, message = BAD_DEEP[name]
    with pytest.raises(ValueError, match=message):
        deep(DeepConfig(run=tmp_path / "deep", progress=False, **options))


@pytest.mark.again("test_deep_compares_methods_seed_by_seed_and_goes_on_where_it_stopped")
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
