"""Phases: what is done now is said before it is done, in order, and not at all if so wished."""

import dataclasses

import pytest

from jaxgnn.training import RunFolder, phase

from .tiny_run import LOOP, Config, train


def lines(capsys) -> list[str]:
    output = capsys.readouterr()
    assert output.out == ""
    return output.err.splitlines()


def test_a_phase_is_said_before_it_begins(capsys):
    with phase("reading Reddit"):
        assert lines(capsys) == ["reading Reddit …"]
    assert lines(capsys) == []


def test_a_long_phase_says_how_long_it_took(capsys, monkeypatch):
    clock = iter([10.0, 13.25])
    monkeypatch.setattr("jaxgnn.training.progress.time.monotonic", lambda: next(clock))
    with phase("reading Reddit"):
        pass
    assert lines(capsys) == ["reading Reddit …", "reading Reddit: 3.2 s"]


def test_a_phase_that_fails_is_not_said_to_be_done(capsys, monkeypatch):
    clock = iter([10.0, 13.25])
    monkeypatch.setattr("jaxgnn.training.progress.time.monotonic", lambda: next(clock))
    with pytest.raises(OSError, match="no such disk"), phase("reading Reddit"):
        raise OSError("no such disk")
    assert lines(capsys) == ["reading Reddit …"]


def test_phases_of_a_resumed_run_come_in_order(tmp_path, capsys):
    run = RunFolder(tmp_path / "run", Config(), may_change=["loop"])
    train(run, Config(loop=dataclasses.replace(LOOP, steps=12)))
    with phase("reading the points"):
        pass
    train(run, Config(), progress=True)
    said = [line.split(":")[0] for line in lines(capsys)]
    assert said == [
        "reading the points …",
        "resuming from step 12",
        "compiling …",
        "step 13/18",
        "compiling the evaluation …",
        "step 18/18",
    ]
    train(run, Config(), progress=True)
    assert lines(capsys) == ["complete at step 18"]


def test_nothing_is_said_without_progress(tmp_path, capsys):
    run = RunFolder(tmp_path / "run", Config())
    train(run, Config(), progress=False)
    train(run, Config(), progress=False)
    with phase("reading Reddit", progress=False):
        pass
    assert lines(capsys) == []
