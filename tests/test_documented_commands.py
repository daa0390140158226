"""Every command that the README and the docs print is understood, and runs, as printed."""

import functools
import shlex
import sys

import pytest
import tyro

from jaxgnn import _command_line
from tests import _documented_commands as commands
from tests._documented_commands import ROOT, documented, shortening

COMMANDS = documented()
# Defaults that ``make test`` runs too: they have had faults that no other data showed.
SEVERAL_DEVICES = {
    "python -m experiments.maxk train --devices 4": "--epochs 2 --no-progress --num-layers 2",
    "python -m experiments.attention train --devices 2": "--epochs 2 --no-progress",
}
# Commands with an option for devices, with their default data on four.
ON_FOUR = (
    "python -m experiments.attention train --model gat",
    "python -m experiments.links train",
    "python -m experiments.graphs train",
    "python -m experiments.mhc train",
    "python -m experiments.hgnn lm",
    "python -m experiments.hgnn nodes",
    "python -m experiments.mlp validate",
    "python -m experiments.physics train",
    "python -m experiments.sudoku train",
)
# No run: they need other processes, a data set of gigabytes, or several GPUs.
ONLY_UNDERSTOOD = {
    "--coordinator": "reason: its processes run in tests of their own",
    "ogbg-molhiv": "reason: no small files of this data set are made up",
    "--scale reddit": "reason: a graph of a hundred million edges",
    "experiments.benchmarks": "reason: benchmarks have tests of their own",
}


@pytest.fixture
def only_parsed(monkeypatch):
    """Command lines are read and checked, but nothing is run."""
    of_commands = tyro.extras.subcommand_cli_from_dict

    def skip_running(function):
        return functools.wraps(function)(lambda *_, **__: None)

    def read(functions, **options):
        return of_commands({name: skip_running(f) for name, f in functions.items()}, **options)

    monkeypatch.setattr(tyro.extras, "subcommand_cli_from_dict", read)
    monkeypatch.setattr(_command_line, "_run", lambda options: 0)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None, raising=False)


def test_commands_are_found_in_blocks_sentences_and_several_lines():
    text = (
        "```\njaxgnn info     # versions\nX=1 python -m experiments.a b --c \\\n  'd e'\n```\n"
        "See `python -m experiments report x` or:\n\n    python -m experiments.f\n"
    )
    assert commands.commands_of(text) == [
        "jaxgnn info",
        "python -m experiments.a b --c 'd e'",
        "python -m experiments report x",
        "python -m experiments.f",
    ]
    assert len(COMMANDS) > 100


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_documented_command_is_in_the_table_and_understood(
    command, only_parsed, tmp_path, monkeypatch
):
    monkeypatch.setattr(commands, "FILES", {})
    commands.run(command, tmp_path, shortening(command))


def _runs(command, folder, monkeypatch, more):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None, raising=False)
    commands.run(command, folder, more)


@pytest.mark.again("tests/experiments/test_devices.py")
@pytest.mark.parametrize("command", SEVERAL_DEVICES)
def test_a_default_runs_on_several_devices(command, tmp_path, monkeypatch):
    _runs(command, tmp_path, monkeypatch, SEVERAL_DEVICES[command])


@pytest.mark.long
@pytest.mark.parametrize("command", ON_FOUR)
def test_every_default_runs_on_four_devices(command, tmp_path, monkeypatch):
    _runs(command, tmp_path, monkeypatch, f"{shortening(command)} --devices 4")


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_documented_command_runs(command, tmp_path, monkeypatch):
    reasons = [reason for part, reason in ONLY_UNDERSTOOD.items() if part in command]
    if reasons:
        pytest.skip(reasons[0])
    _runs(command, tmp_path, monkeypatch, shortening(command))


def test_every_experiment_with_devices_is_run_on_several():
    run = {shlex.split(command)[2] for command in (*SEVERAL_DEVICES, *ON_FOUR)}
    for page in sorted((ROOT / "experiments").glob("*/config.py")):
        if "Devices" in page.read_text():
            assert f"experiments.{page.parent.name}" in run
