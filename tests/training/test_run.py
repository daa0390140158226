"""The run folder: what it records, and which configurations may share it."""

import dataclasses
import enum
import errno
import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import pytest

from experiments._runs import discard
from jaxgnn.training import LoopConfig, RunFolder

ROOT = Path(__file__).parents[2]


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


NO_JSON = {
    "empty": ("", r"not JSON: an empty file"),
    "cut": ('{"loop": {"st', r"not JSON: '.\"loop\": .\"st'"),
    "no text": (b"\xff\xfe\x00", "not JSON: "),
    "deep": ("[" * 100_000, r"not JSON: '\[\["),
    "a number of 5000 digits": ("1" * 5000, "not JSON: '111"),
    "another type": ("3", "expected an? (object|list), .*, got '3'"),
}


@pytest.mark.parametrize("name", ["config.json", "versions.json"])
@pytest.mark.parametrize("broken", NO_JSON)
def test_a_broken_file_is_named(tmp_path, name, broken):
    content, message = NO_JSON[broken]
    run = RunFolder(tmp_path, Config())
    kept = {file: (tmp_path / file).read_bytes() for file in ("config.json", "versions.json")}
    kept[name] = content.encode() if isinstance(content, str) else content
    (tmp_path / name).write_bytes(kept[name])
    with pytest.raises(ValueError, match=rf"{name}: {message}"):
        RunFolder(run.path, Config())
    assert {file: (tmp_path / file).read_bytes() for file in kept} == kept


def test_a_folder_whose_name_is_no_utf8_is_refused_before_the_run(tmp_path):
    with pytest.raises(ValueError, match=r"RunFolder: path must be text in UTF-8, got .*r\\xff"):
        RunFolder(os.fsencode(tmp_path).decode() + "/r\udcff", Config())
    assert not list(tmp_path.iterdir())


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


HOLDER = """
import os, sys, warnings
from jaxgnn.training.lock import lock_folder
from pathlib import Path
lock = lock_folder(Path(sys.argv[1]))
# A worker that outlives its parent.
warnings.simplefilter("ignore")
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that has `tmp_path / "run"` open, and a child that does not."""
    folder = tmp_path / "run"
    RunFolder(folder, Config()).close()
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
    )
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == "open\n"
    yield process
    process.stdin.close()
    process.stdout.close()
    process.wait(60)


def test_a_second_process_is_refused_by_name_and_a_killed_one_has_let_go(tmp_path, holder):
    folder = tmp_path / "run"
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    refused = rf"{folder} is in use by process {holder.pid} on {platform.node()} since 20.*"
    with pytest.raises(ValueError, match=refused + "one process at a time"):
        RunFolder(folder, Config())
    with pytest.raises(ValueError, match=refused):
        discard(folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    holder.kill()
    holder.wait(60)
    RunFolder(folder, Config())
    discard(folder)
    assert not folder.exists()


def test_the_child_of_a_killed_process_has_time_to_let_go(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    run = RunFolder(folder, Config())
    file = folder / ".lock"
    holder = json.loads(file.read_text())
    # As in a child that has been forked and has not yet run, when its parent is killed.
    kept = os.open(file, os.O_RDWR)
    run.close()
    fcntl.flock(kept, fcntl.LOCK_EX)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait(60)
    file.write_text(json.dumps(holder | {"process": dead.pid}))
    later = threading.Timer(0.1, os.close, [kept])
    later.start()
    RunFolder(folder, Config())
    later.join()
    # One that never lets go is named after a while.
    kept = os.open(file, os.O_RDWR)
    monkeypatch.setattr("jaxgnn.training.lock._SECONDS_FOR_CHILDREN", 0.05)
    fcntl.flock(kept, fcntl.LOCK_EX)
    file.write_text(json.dumps(holder | {"process": dead.pid}))
    with pytest.raises(ValueError, match=f"in use by process {dead.pid}"):
        RunFolder(folder, Config())
    os.close(kept)


def test_a_process_opens_its_own_folder_as_often_as_it_likes(tmp_path):
    file = tmp_path / ".lock"

    def is_free() -> bool:
        with file.open() as opened:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    first, second = RunFolder(tmp_path, Config()), RunFolder(tmp_path, Config())
    assert not is_free()
    del first
    assert not is_free()
    del second
    assert is_free()
    third = RunFolder(tmp_path, Config())
    assert not is_free()
    third.close()
    assert is_free()
    # One that was closed, or whose folder was removed, does not stand for a new one.
    fourth = RunFolder(tmp_path, Config())
    assert not is_free()
    shutil.rmtree(tmp_path)
    fifth = RunFolder(tmp_path, Config())
    assert not is_free()
    del fourth, fifth


def test_a_folder_that_can_not_be_locked_is_opened_with_a_warning(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.warns(UserWarning, match=r"can not be locked against other processes \(.*No locks"):
        RunFolder(tmp_path, Config())
