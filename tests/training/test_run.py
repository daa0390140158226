"""The run folder: what it records, and which configurations may share it."""

import dataclasses
import enum
import json
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxgnn.training import LoopConfig, RunFolder


class Colour(enum.StrEnum):
    RED = "r"


@dataclasses.dataclass(frozen=True)
class Config:
    loop: LoopConfig = dataclasses.field(default_factory=lambda: LoopConfig(steps=10))
    widths: tuple[int, ...] = (64, 32)
    data: Path = Path("data/reddit")
    colour: Colour = Colour.RED
    dropout: float | None = None
    extra: Any = None


def read(run: RunFolder, name: str) -> Any:
    return json.loads((run.path / name).read_text())


def test_config_is_written_as_nested_json(tmp_path):
    run = RunFolder(tmp_path / "runs" / "first", Config())
    config = read(run, "config.json")
    assert config["loop"]["steps"] == 10
    assert config["widths"] == [64, 32]
    assert config["data"] == "data/reddit"
    assert config["colour"] == "RED"
    assert config["dropout"] is None


def test_each_start_records_versions_devices_and_time(tmp_path):
    for _ in range(2):
        run = RunFolder(tmp_path, Config())
    starts = read(run, "versions.json")
    assert len(starts) == 2
    assert starts[0]["python"] == platform.python_version()
    assert starts[0]["packages"]["jax"] == jax.__version__
    assert starts[0]["packages"].keys() >= {"jaxlib", "flax", "optax", "jaxgnn"}
    assert starts[0]["devices"][0]["platform"] == jax.devices()[0].platform
    assert starts[0]["time"].endswith("+00:00")


@pytest.mark.parametrize("dirty", [False, True])
def test_git_commit_and_dirt_are_recorded_inside_a_checkout(tmp_path, monkeypatch, dirty):
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        command = ["git", *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    checkout = tmp_path / "checkout"
    checkout.mkdir()
    monkeypatch.chdir(checkout)
    git("init")
    (checkout / "file").write_text("one")
    git("add", "file")
    git("commit", "-m", "one")
    if dirty:
        (checkout / "file").write_text("two")
    run = RunFolder(tmp_path / "run", Config())
    expected = {"commit": git("rev-parse", "HEAD"), "dirty": dirty}
    assert read(run, "versions.json")[0]["git"] == expected


def test_git_is_none_outside_a_checkout_and_without_git(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read(RunFolder(tmp_path / "outside", Config()), "versions.json")[0]["git"] is None
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert read(RunFolder(tmp_path / "without", Config()), "versions.json")[0]["git"] is None


def test_another_configuration_is_refused_and_its_fields_are_named(tmp_path):
    RunFolder(tmp_path, Config())
    other = Config(loop=LoopConfig(steps=10, seed=3), widths=(64,))
    with pytest.raises(ValueError, match="another configuration") as error:
        RunFolder(tmp_path, other)
    assert "loop.seed: 0 before, 3 now" in str(error.value)
    assert "widths: [64, 32] before, [64] now" in str(error.value)
    assert "loop.steps" not in str(error.value)
    assert read(RunFolder(tmp_path, Config()), "config.json")["loop"]["seed"] == 0


def test_a_field_that_came_or_went_is_named(tmp_path):
    RunFolder(tmp_path, Config(extra={"a": 1}))
    with pytest.raises(
        ValueError, match=r"extra\.a: 1 before, absent now.*extra\.b: absent before"
    ):
        RunFolder(tmp_path, Config(extra={"b": 1}))


@pytest.mark.parametrize("may_change", [["loop.steps"], ["loop"]])
def test_fields_that_may_change_are_updated(tmp_path, may_change):
    RunFolder(tmp_path, Config())
    run = RunFolder(tmp_path, Config(loop=LoopConfig(steps=20)), may_change=may_change)
    assert read(run, "config.json")["loop"]["steps"] == 20
    with pytest.raises(ValueError, match="widths"):
        RunFolder(tmp_path, Config(widths=()), may_change=may_change)


def test_may_change_covers_whole_names_only(tmp_path):
    RunFolder(tmp_path, Config())
    with pytest.raises(ValueError, match=r"loop\.steps"):
        RunFolder(tmp_path, Config(loop=LoopConfig(steps=20)), may_change=["loop.step", "lo"])


def test_checkpoints_without_a_configuration_are_refused(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ValueError, match=r"no config\.json"):
        RunFolder(tmp_path, Config())


def test_what_json_cannot_hold_is_refused_by_name(tmp_path):
    with pytest.raises(TypeError, match=r"config\.extra\.0: cannot write a set"):
        RunFolder(tmp_path, Config(extra=[{1}]))
    with pytest.raises(TypeError, match="expected a dataclass instance, got dict"):
        RunFolder(tmp_path, {})
    assert not (tmp_path / "config.json").exists()


def test_files_of_the_experiment_are_written_whole(tmp_path):
    run = RunFolder(tmp_path, Config())
    run.write_json("result.json", {"test accuracy": 0.5})
    assert read(run, "result.json") == {"test accuracy": 0.5}
    assert not list(tmp_path.glob("*.tmp"))
