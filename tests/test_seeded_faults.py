"""The faults of ``tools/seeded_faults.py`` can be seeded: their text stands in the code."""

import runpy
from pathlib import Path

TOOL = runpy.run_path(str(Path(__file__).parents[1] / "tools" / "seeded_faults.py"))


def test_the_text_of_each_fault_stands_once_in_its_file():
    problems = [TOOL["_problem"](fault) for fault in TOOL["FAULTS"]]
    assert len(problems) > 100 and not [*filter(None, problems)]
