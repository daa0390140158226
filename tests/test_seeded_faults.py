"""The faults of ``tools/seeded_faults`` can be seeded: each place and the code in it stand once."""

import ast

import pytest

from tools.seeded_faults.__main__ import ROOT
from tools.seeded_faults.seeding import Fault, WrongFault, seeded
from tools.seeded_faults.table import faults, read

FAULTS = faults()
SOURCE = """
LIMIT = 3


class Graph:
    width = 1

    def rows(self):
        def sum_of(x):  # a comment
            x.sort()
            return x + \\
                1
        return sum_of

    def columns(self):
        if self: return "é", self.width + self.width


def rows(x):
    return x
"""
TWO_LINES = "x.sort()\n            return x + \\\n                1"


def test_each_fault_changes_code_that_stands_once_in_its_place():
    problems = []
    for fault in FAULTS:
        try:
            path, source = seeded(fault, ROOT)
            compile(source, path, "exec")
        except (WrongFault, SyntaxError) as error:
            problems.append(f"{fault.name}: {error}")
    assert not problems
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) > 100


@pytest.fixture
def package(tmp_path):
    folder = tmp_path / "package" / "room"
    folder.mkdir(parents=True)
    (folder / "module.py").write_text(SOURCE)
    (folder / "other.py").write_text("def rows(y):\n    pass\n")
    return tmp_path


def _fault(place, old, new):
    return Fault("it is wrong", place, old, new, ("tests/test_it.py",))


@pytest.mark.parametrize(
    "place, old, new, before, after",
    [
        ("package.room: Graph.rows.sum_of", "x+1", "x - 1", "x + \\\n                1", "(x - 1)"),
        ("package: Graph.rows", "x.sort()", "", "x.sort()", ""),
        ("package: Graph.rows", "x.sort()\nreturn x + 1", "return x", TWO_LINES, "return x"),
        ("package: LIMIT", "3", "4", "LIMIT = 3", "LIMIT = (4)"),
        ("package: Graph.width", "width = 1", "width = 1\nx = 2", "= 1", "= 1\n    x = 2"),
        (
            "package: Graph.columns",
            "'é', self.width + self.width",
            "''",
            '"é", self.width + self.width',
            "('')",
        ),
        ("package.room.module: rows", "return x", "pass", "    return x\n", "    pass\n"),
        ("package.room.module", "class Graph: ...", "", None, "found 0"),
        ("package.room", "LIMIT = 3", "", None, "found 2.*module.py.*other.py"),
        ("package: rows", "return x", "", None, "found 2.*module.py.*other.py"),
        ("package: Graph.row", "x", "y", None, "found 0"),
        ("other: Graph.rows", "x", "y", None, "found 0"),
        ("package: Graph.columns", "self.width", "self.height", None, "found 2"),
        ("package: Graph.columns", "x + 1", "x", None, "found 0"),
        ("package: Graph.rows", "x + 1", "(x + 1)", None, "the new code is the old code"),
        ("package: Graph.rows", "x.sort()", "x.sort(", None, "was never closed"),
    ],
)
def test_code_is_found_by_names_and_syntax_or_the_fault_is_refused(
    package, place, old, new, before, after
):
    fault = _fault(place, old, new)
    if before is None:
        with pytest.raises(WrongFault, match=f"(?s)it is wrong: .*{after}"):
            seeded(fault, package)
        return
    path, source = seeded(fault, package)
    assert path == package / "package" / "room" / "module.py"
    expected = SOURCE.replace(before, after)
    assert expected != SOURCE and ast.dump(ast.parse(source)) == ast.dump(ast.parse(expected))


def test_a_paragraph_that_is_no_fault_is_refused():
    fault = "it is wrong\n  @ room: f\n  - a\n  -   b\n  + c\n  ! no test"
    (read_fault,) = read(f"tests/a.py\ntests/b.py\n\n{fault}\n")
    assert read_fault == Fault(
        "it is wrong", "room: f", "a\n  b", "c", ("tests/a.py", "tests/b.py"), "no test"
    )
    for wrong in [fault, f"tests/a.py\n\n{fault}\n  ? a", "tests/a.py\n\nit\n  @ f\n  + a"]:
        with pytest.raises(WrongFault, match="not a fault with tests: 'it"):
            list(read(wrong))
