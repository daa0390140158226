"""The faults of ``tools/seeded_faults.py`` can be seeded: their text stands in the code."""

import runpy
from pathlib import Path

import pytest

TOOL = runpy.run_path(str(Path(__file__).parents[1] / "tools" / "seeded_faults.py"))


@pytest.mark.parametrize("fault", TOOL["FAULTS"], ids=lambda fault: fault.name)
def test_the_text_of_a_fault_stands_once_in_its_file(fault):
    assert TOOL["_problem"](fault) is None
