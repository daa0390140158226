"""Reads the tables of faults.

A table is paragraphs. One of lines that begin with ``tests/`` names the tests of all faults up to
the next such one. Any other is a fault: its name, its place, the old code, the new code (none if
statements go), and, for a known hole, the reason. ::

    tests/ops/test_sums.py::test_sums_are_exact

    sums: the scale of the rows is dropped
      @ jaxgnn.ops: sum_rows
      - scale * total
      + total
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tools.seeded_faults.seeding import Fault, WrongFault

FOLDER = Path(__file__).parent


def faults() -> list[Fault]:
    """Those of all tables."""
    return [
        replace(fault, table=path.stem)
        for path in sorted(FOLDER.glob("*.txt"))
        for fault in read(path.read_text())
    ]


def read(table: str) -> Iterator[Fault]:
    """Those of one table.

    Raises:
      WrongFault: if a paragraph is neither tests nor a fault.
    """
    tests: tuple[str, ...] = ()
    for paragraph in table.strip().split("\n\n"):
        name, *lines = paragraph.splitlines()
        if name.startswith("tests/"):
            tests = (name, *lines)
            continue
        parts = {mark: [line[4:] for line in lines if line[:4] == f"  {mark} "] for mark in "@-+!"}
        count = sum(map(len, parts.values()))
        if count < len(lines) or len(parts["@"]) != 1 or not parts["-"] or not tests:
            raise WrongFault(f"not a fault with tests: {paragraph!r}")
        place, old, new, hole = ("\n".join(part) for part in parts.values())
        yield Fault(name, place, old, new, tests, hole)
