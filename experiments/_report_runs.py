"""One page that compares several runs: their options, results and times."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments._options import check_report
from experiments._runs import this_command
from experiments._seeds import summarize
from jaxgnn._errors import bad_input
from jaxgnn._html import writer
from jaxgnn.training import Table, plot_curves
from jaxgnn.training.files import Row, write_text
from jaxgnn.training.report import configuration, costs, option_text, picture_part, table_part
from jaxgnn.training.run import Record, flatten, read_record

# Runs that differ only in this option are repetitions of one another.
_SEED = "seed"

# Options of location and display, which do not change the result.
_NOT_COMPARED = ("run", "fresh", "progress", "report")

Cell = str | int | float


def report(folders: Sequence[Path], out: Path) -> list[Table]:
    """Writes a page about several runs, of any experiments.

    Args:
      folders: the folders of the runs.
      out: the HTML file; its folder is created if missing.

    Returns:
      The tables of the page: results, metrics, their means over seeds if runs repeat each other,
      time and memory, and options that differ.

    Raises:
      ValueError: if no folder is given, one is not a run, is empty, damaged or given twice, or
        the file does not end in .html.
    """
    check_report(folders, out)
    records = _read(folders)
    tables = [
        table
        for table in (
            _results(records),
            _metrics(records),
            _means(records),
            _side_by_side("Time and memory", {name: costs(r) for name, r in records.items()}),
            _differences(records),
        )
        if table.rows and len(table.columns) > 1
    ]
    with tempfile.TemporaryDirectory() as scratch:
        curves = Path(scratch) / "curves.png"
        _draw(records, curves)
        parts = [
            writer.command(this_command()),
            writer.section("Side by side", map(table_part, tables)),
            writer.section("Curves", [picture_part(curves)]),
            writer.section("Options that all have in common", configuration(_common(records))),
        ]
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, writer.page(f"{len(records)} runs: {', '.join(records)}", parts))
    return tables


def _read(folders: Sequence[Path]) -> dict[str, Record]:
    """Reads the runs; keys are names that distinguish them."""
    records = [read_record(folder) for folder in folders]
    for record in records:
        if not record.rows:
            expected = "a run of at least one step, with its metrics.jsonl"
            raise bad_input("report", "RUN", expected, record.folder)
    names = _names([folder.resolve() for folder in folders])
    return dict(zip(names, records, strict=True))


def _names(places: Sequence[Path]) -> list[str]:
    """The shortest suffixes of the paths that are all different."""
    longest = max(len(place.parts) for place in places)
    for length in range(1, longest + 1):
        names = ["/".join(place.parts[-length:]) for place in places]
        if len(set(names)) == len(names):
            return names
    raise AssertionError("different paths have different names")


def _side_by_side(
    title: str, runs: Mapping[str, Mapping[str, Cell]], note: str = "", *, named: str = "run"
) -> Table:
    """A row for each run, and a column for everything that any of them has."""
    names = list({name: None for values in runs.values() for name in values})
    return Table(
        title,
        (named, *names),
        tuple((run, *(values.get(name, "–") for name in names)) for run, values in runs.items()),
        note,
    )


def _results(records: Mapping[str, Record]) -> Table:
    """Table of the results that the experiments wrote for their runs."""
    return _side_by_side(
        "Results",
        {
            name: {
                key: _cell(value)
                for key, value in flatten(record.result).items()
                if key and value is not None
            }
            for name, record in records.items()
        },
    )


def _metrics(records: Mapping[str, Record]) -> Table:
    """The metrics at the best evaluation of each run, or at the last step."""
    found = {}
    for name, record in records.items():
        row = _chosen_row(record)
        is_best = row["step"] == record.best_step
        why = f"best {record.summary.get('select')}" if is_best else "the last"
        found[name] = {"step": int(row["step"]), "which is": why, **row}
    return _side_by_side("Metrics at one step of each run", found)


def _chosen_row(record: Record) -> Row:
    """The row of the best evaluation, or the last one."""
    return next((row for row in record.rows if row["step"] == record.best_step), record.rows[-1])


def _means(records: Mapping[str, Record]) -> Table:
    """Mean and spread of metrics over runs that differ only in their seed; empty if none do."""
    found = {}
    for label, group in _groups(records).items():
        rows = [_chosen_row(record) for record in group]
        shared = [n for n in rows[0] if n != "step" and all(n in row for row in rows)]
        found[label] = {n: str(summarize([row[n] for row in rows], digits=4)) for n in shared}
    note = "Mean, standard deviation and number of runs, each at the step above."
    repeated = len(found) < len(records)
    return _side_by_side("Metrics over seeds", found if repeated else {}, note, named="runs with")


def _groups(records: Mapping[str, Record]) -> dict[str, list[Record]]:
    """Groups of runs that differ only in their seed, by the options that distinguish the groups."""
    common = _common(records)
    found: dict[str, list[Record]] = {}
    for record in records.values():
        settings = [
            f"{key} {option_text(value)}"
            for key, value in _options(record).items()
            if key not in common and key.split(".")[-1] != _SEED
        ]
        label = ", ".join(settings) or "the same options"
        found.setdefault(label, []).append(record)
    if len(found) == len(records):  # nothing is repeated, and folder names are shorter
        return {name: [record] for name, record in records.items()}
    return found


def _options(record: Record) -> dict[str, object]:
    return {
        name: value
        for name, value in record.config.items()
        if name.split(".")[0] not in _NOT_COMPARED
    }


def _differences(records: Mapping[str, Record]) -> Table:
    """Options that differ between runs."""
    common = _common(records)
    return _side_by_side(
        "Options that differ",
        {
            name: {
                key: option_text(value)
                for key, value in _options(record).items()
                if key not in common
            }
            for name, record in records.items()
        },
    )


def _common(records: Mapping[str, Record]) -> dict[str, object]:
    """Options that all runs have with the same value."""
    first, *others = [_options(record) for record in records.values()]
    return {
        name: value
        for name, value in first.items()
        if all(name in other and other[name] == value for other in others)
    }


def _cell(value: object) -> Cell:
    """A value of ``result.json``; numbers stay numbers."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number else option_text(value)


def _draw(records: Mapping[str, Record], path: Path) -> None:
    groups = _groups(records)
    best = {label: [record.best_step for record in group] for label, group in groups.items()}
    known = {label: [s for s in steps if s is not None] for label, steps in best.items()}
    plot_curves(
        {label: [record.rows for record in group] for label, group in groups.items()},
        path,
        title=f"{len(records)} runs" if len(records) > 1 else next(iter(records)),
        best={label: steps for label, steps in known.items() if len(steps) == len(groups[label])},
    )
