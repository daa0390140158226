"""The two tiers of the tests hold all cases together, and the first shows every file."""

import json

import pytest

from tests import _tiers, conftest


class _Case:
    """Stands for a collected case, of which the tiers read the node id and the marks."""

    def __init__(self, nodeid, *marks):
        self.nodeid = nodeid
        self.marks = {mark: getattr(pytest.mark, mark).mark for mark in marks}

    def get_closest_marker(self, name):
        return self.marks.get(name)


CASES = [
    _Case("tests/a.py::test_quick[1]"),
    _Case("tests/a.py::test_quick[2]"),
    _Case("tests/a.py::test_each_op[maxk]", "every"),
    _Case("tests/a.py::test_each_op[spmm]", "every"),
    _Case("tests/a.py::test_slow"),
    _Case("tests/a.py::test_costly[1]", "costly"),
    _Case("tests/b.py::test_slower"),
    _Case("tests/b.py::test_slow"),
    _Case("tests/b.py::test_repeats[1]", "again"),
    _Case("tests/b.py::test_repeats[2]", "again"),
    _Case("tests/experiments/c.py::test_slow"),
]
SECONDS = {
    "tests/a.py::test_slow": 1.5,
    "tests/b.py::test_slower": 3.0,
    "tests/b.py::test_slow": 2.0,
    "tests/experiments/c.py::test_slow": 2.0,
}
FIRST_TIER = {
    "tests/a.py::test_quick[1]",
    "tests/a.py::test_each_op[maxk]",
    "tests/a.py::test_each_op[spmm]",
    "tests/b.py::test_slow",
}


def test_the_first_tier_has_quick_cases_every_op_and_a_case_of_each_file():
    chosen = _tiers.first_tier(CASES, SECONDS)
    assert {case.nodeid for case in chosen} == FIRST_TIER


def test_the_second_tier_is_the_rest(monkeypatch):
    monkeypatch.setattr(_tiers, "recorded_seconds", lambda: SECONDS)
    more = {case.nodeid for case in conftest.chosen("more", CASES)}
    left_out = {"tests/b.py::test_repeats[2]"}  # of tests that are marked again the first case
    assert more == {case.nodeid for case in CASES} - FIRST_TIER - left_out


def test_times_of_tests_that_did_not_run_are_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(_tiers, "DURATIONS", tmp_path / "durations.json")
    _tiers.record({"tests/a.py::test_one[1]": 2.0, "tests/a.py::test_one[2]": 9.0})
    _tiers.record({"tests/a.py::test_other": 1.0, "tests/b.py::test_short": 0.01})
    assert json.loads(_tiers.DURATIONS.read_text()) == {
        "tests/a.py": {"test_one": 2.0, "test_other": 1.0}
    }
    assert _tiers.recorded_seconds()["tests/a.py::test_one"] == 2.0


def test_recorded_tests_exist(request):
    files = json.loads(_tiers.DURATIONS.read_text())
    root = request.config.rootpath
    missing = [
        f"{file}::{test}"
        for file, tests in files.items()
        for test in tests
        if not (root / file).is_file()
        or f"def {test.split('::')[-1]}(" not in (root / file).read_text()
    ]
    assert not missing, "run make test CASES=some ARGS=--record-durations"
