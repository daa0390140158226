"""Pages about runs of experiments, and runs side by side."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tyro

from experiments import _runs
from experiments.__main__ import main
from experiments._options import Reporting, ReportOptions
from experiments._report_runs import report
from experiments._runs import finish
from jaxgnn.training import Table


def make_run(folder: Path, *, best: int | None = 2, loss: float = 2.0, **config) -> Path:
    """A folder as an experiment leaves it; its loss halves with each of three steps."""
    folder.mkdir(parents=True)
    options = {"dataset": "digits", "seed": 0, "k": [16, 16], "dropout": None, "run": str(folder)}
    rows = [{"step": step, "loss": loss / 2**step} for step in (1, 2, 3)]
    rows[1]["test accuracy"] = 0.5 + 0.1 * loss
    files = {"config.json": options | config, "result.json": {"metric": "accuracy", "test": 0.75}}
    if best is not None:
        summary = {"select": "validation accuracy", "best": {"step": best, "metrics": {}}}
        files["summary.json"] = summary | {"peak_host_bytes": 1 << 30}
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "timing.jsonl").write_text('{"step": 3, "ms_per_step": 4.0}\n')
    return folder


def by_title(tables: list[Table]) -> dict[str, list[list[str]]]:
    return {table.title: [list(table.columns), *table.cells()] for table in tables}


def test_runs_side_by_side_have_their_results_costs_and_differences(tmp_path):
    first = make_run(tmp_path / "relu", activation="relu", k=None)
    second = make_run(tmp_path / "maxk", activation="maxk", loss=1.0, best=None, width=8)
    page = tmp_path / "new" / "page.html"
    tables = by_title(report([first, second], page))
    assert tables == {
        "Results": [
            ["run", "metric", "test"],
            ["relu", "accuracy", "0.75"],
            ["maxk", "accuracy", "0.75"],
        ],
        "Metrics at one step of each run": [
            ["run", "step", "which is", "loss", "test accuracy"],
            ["relu", "2", "best validation accuracy", "0.5", "0.7"],
            ["maxk", "3", "the last", "0.125", "–"],
        ],
        "Time and memory": [
            [
                "run",
                "step, median",
                "step, 10 % to 90 %",
                "steps that were timed",
                "peak memory, host",
            ],
            ["relu", "4 ms", "4 to 4 ms", "3", "1,024 MiB"],
            ["maxk", "4 ms", "4 to 4 ms", "3", "–"],
        ],
        "Options that differ": [
            ["run", "k", "activation", "width"],
            ["relu", "–", "relu", "–"],
            ["maxk", "16 16", "maxk", "8"],
        ],
    }
    text = page.read_text()
    assert all(cell in text for rows in tables.values() for row in rows for cell in row)
    assert text.count("data:image/png;base64,") == 1


def test_runs_that_differ_in_their_seed_alone_are_one_curve_and_one_mean(tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(
        "experiments._report_runs.plot_curves",
        lambda histories, path, **options: (
            drawn.update(histories=histories, **options) or path.write_bytes(b"")
        ),
    )
    folders = [
        make_run(tmp_path / f"{k}-{seed}", k=[k], seed=seed, loss=1.0 + seed)
        for k in (8, 16)
        for seed in (0, 1)
    ]
    tables = by_title(report(folders, tmp_path / "page.html"))
    assert tables["Metrics over seeds"] == [
        ["runs with", "loss", "test accuracy"],
        ["k 8", "0.3750 ± 0.1768 (2)", "0.6500 ± 0.0707 (2)"],
        ["k 16", "0.3750 ± 0.1768 (2)", "0.6500 ± 0.0707 (2)"],
    ]
    assert {label: len(seeds) for label, seeds in drawn["histories"].items()} == {
        "k 8": 2,
        "k 16": 2,
    }
    assert drawn["best"] == {"k 8": [2, 2], "k 16": [2, 2]}


def test_runs_of_one_name_are_told_apart_by_the_folder_above(tmp_path):
    folders = [make_run(tmp_path / name / "run", seed=index) for index, name in enumerate("ab")]
    tables = by_title(report(folders, tmp_path / "page.html"))
    assert [row[0] for row in tables["Results"]] == ["run", "a/run", "b/run"]


def test_one_run_alone_has_a_page_too(tmp_path):
    tables = by_title(report([make_run(tmp_path / "run")], tmp_path / "page.html"))
    assert list(tables) == ["Results", "Metrics at one step of each run", "Time and memory"]


def bad_folders(tmp_path) -> dict[str, tuple[list[Path], str]]:
    run, empty = make_run(tmp_path / "run"), make_run(tmp_path / "empty")
    (empty / "metrics.jsonl").write_text("")
    damaged = make_run(tmp_path / "damaged")
    (damaged / "result.json").write_text("[")
    return {
        "none": ([], "RUN must be the folders of one run or more, got none"),
        "no run": ([run, tmp_path], f"RUN must be a folder of a run, .*, got {tmp_path}"),
        "missing": ([tmp_path / "gone"], "RUN must be a folder of a run, .*gone"),
        "a file": ([run / "config.json"], "RUN must be a folder of a run, .*config.json"),
        "empty": ([run, empty], "RUN must be a run of at least one step, .*empty"),
        "twice": ([run, run / ".." / "run"], "RUN must be folders that differ, got .* twice"),
        "damaged": ([damaged], r"result\.json: not JSON"),
    }


@pytest.mark.parametrize(
    "case", ["none", "no run", "missing", "a file", "empty", "twice", "damaged"]
)
def test_what_is_no_run_is_one_clear_error(tmp_path, case):
    folders, message = bad_folders(tmp_path)[case]
    with pytest.raises(ValueError, match=message):
        report(folders, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_a_page_of_another_ending_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"report: --out must be a file that ends in \.html"):
        report([make_run(tmp_path / "run")], tmp_path / "run" / "metrics.jsonl")


def test_the_command_prints_the_tables_and_where_the_page_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "run")
    monkeypatch.setattr(sys, "argv", ["experiments", "report", "run"])
    main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Results" and lines[-1] == "report: runs/report.html"
    assert (tmp_path / "runs" / "report.html").is_file()
    monkeypatch.setattr(sys, "argv", ["experiments", "report", "gone"])
    with pytest.raises(SystemExit, match=r"^error: report: RUN must be a folder .*, got gone$"):
        main()


def test_an_experiment_ends_with_its_page_and_what_was_asked_for(tmp_path, capsys):
    run = make_run(tmp_path / "run")
    page = finish(run, ReportOptions(), title="digits", command="python -m x train")
    assert page == run / "report.html" and "python -m x train" in page.read_text()
    assert not (run / "metrics.csv").exists() and not (run / "tensorboard").exists()
    finish(run, ReportOptions(csv=True, tensorboard=True), title="digits", command="x")
    assert (run / "metrics.csv").read_text().startswith("step,loss,test accuracy\n1,1.0,\n")
    (events,) = (run / "tensorboard").iterdir()
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"report: {page}",
        f"csv: {run / 'metrics.csv'}",
        f"tensorboard --logdir {events.parent}",
    ]


def test_options_of_the_report_are_flags_of_the_command_line():
    options = tyro.cli(Reporting, args=["--csv"])
    assert options == ReportOptions(csv=True, tensorboard=False)


def test_bytes_of_a_command_that_are_no_utf8_are_quoted_for_a_shell(monkeypatch):
    words = [b"caf\xe9", b"it's \\ \xff", "café €".encode(), b"-"]
    monkeypatch.setattr(sys, "argv", ["main.py", *map(os.fsdecode, words)])
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    command = _runs.this_command()
    assert command == r"python main.py $'caf\xe9' $'it\'s \\ \xff' 'café €' -"
    bash = shutil.which("bash")
    if bash is not None:
        line = command.removeprefix("python main.py")
        shell = [bash, "-c", f"printf '%s\\0' {line}"]
        assert subprocess.run(shell, capture_output=True).stdout.split(b"\0")[:-1] == words


def test_the_command_of_a_page_is_that_of_its_process(monkeypatch):
    line = ["/x/experiments/maxk/__main__.py", "train", "--run", "my run", "--k", "8"]
    monkeypatch.setattr(sys, "argv", line)
    spec = type("Spec", (), {"name": "experiments.maxk.__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec, raising=False)
    expected = "python -m experiments.maxk train --run 'my run' --k 8"
    assert _runs.this_command() == expected
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    assert (
        _runs.this_command() == "python /x/experiments/maxk/__main__.py train --run 'my run' --k 8"
    )
