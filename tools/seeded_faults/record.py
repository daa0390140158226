"""The record of a whole run of all tables, which a release demands.

A run takes longer than CI has, so it is recorded in a file that is committed: which commit was
tested, when, and how many faults of each table were found. ``tools/release.sh`` reads the lines of
``commit`` and ``missed``, and refuses a record of other code.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import NamedTuple

from tools.seeded_faults.seeding import Fault

FILE = Path("tools") / "seeded_faults" / "record.toml"
# Changes of these make a record old; tools/release.sh lists them too. Release numbers do not.
RECORDED = ("jaxgnn", "pallas_kernels", "ffi", "tests", "tools/seeded_faults/*.txt")
_NOT_RECORDED = ":(exclude)ffi/*pyproject.toml"


class NoRecord(Exception):
    """A run can not be recorded."""


class Verdict(NamedTuple):
    """The outcome of a fault: ``"found"``, ``"MISSED"`` or ``"hole"``."""

    fault: Fault
    outcome: str


def recordable_commit(root: Path) -> str:
    """The commit that is checked out.

    Raises:
      NoRecord: if this is no checkout, or recorded files differ from the commit.
    """
    changes = _git(
        root, "status", "--porcelain", "--untracked-files=all", "--", *RECORDED, _NOT_RECORDED
    )
    if changes:
        raise NoRecord(f"a record is of a commit, but these files differ; commit them:\n{changes}")
    return _git(root, "rev-parse", "HEAD")


def write(root: Path, commit: str, verdicts: Sequence[Verdict], cases: str, seconds: float) -> None:
    """Writes the record of a whole run."""
    tables: dict[str, list[str]] = {}
    for verdict in verdicts:
        tables.setdefault(verdict.fault.table, []).append(verdict.outcome)
    missed = [verdict.fault.name for verdict in verdicts if verdict.outcome == "MISSED"]
    lines = [
        "# Written by `make seeded-faults`, and demanded by `make release`.",
        f'commit = "{commit}"',
        f"date = {date.today().isoformat()}",
        f'cases = "{cases}"',
        f"minutes = {round(seconds / 60)}",
        f"missed = {json.dumps(missed, ensure_ascii=False)}",
    ]
    for table, outcomes in sorted(tables.items()):
        counts = {name: outcomes.count(name) for name in ("found", "MISSED", "hole")}
        lines += ["", f"[tables.{table}]"]
        lines += [f"{name.lower()} = {count}" for name, count in counts.items()]
    (root / FILE).write_text("\n".join(lines) + "\n")


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise NoRecord(f"git {arguments[0]}: {' '.join(done.stderr.split())}")
    return done.stdout.strip()
