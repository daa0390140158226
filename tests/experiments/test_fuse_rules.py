"""The benchmark that times each rule of fuse alone."""

import json

import numpy as np
import pytest

from experiments.benchmarks import fuse_rules
from experiments.benchmarks.fuse_rules import CASES, IN_STEP, RuleOptions, Size, both
from jaxgnn.fusion.rules.table import RULES

SMALL = Size(12, 60, 16)


@pytest.mark.costly(6)
@pytest.mark.parametrize("name", CASES)
def test_the_rule_of_a_case_applies_and_keeps_its_results(name):
    made = both(name, SMALL)
    for new, old in zip(made.rewritten(*made.arrays), made.written(*made.arrays), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-4, atol=1e-5)


@pytest.mark.costly(4)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.rule in IN_STEP])
def test_the_rule_of_a_case_applies_where_lists_are_known_only_when_it_runs(name):
    made = both(name, SMALL, in_step=True)
    args = *made.arrays, *made.ids
    for new, old in zip(made.rewritten(*args), made.written(*args), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-4, atol=1e-5)


def test_every_case_names_a_rule():
    assert {case.rule for case in CASES.values()} <= {rule.name for rule in RULES}


def test_a_row_has_both_times_of_both_directions(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(fuse_rules, "SIZES", {"cpu": (SMALL,), "gpu": (SMALL,)})
    fuse_rules.main(RuleOptions(out=tmp_path, cases=("sum of features",), budget=1.0))
    (row,) = map(json.loads, (tmp_path / "fuse_rules.jsonl").read_text().splitlines())
    times = [row[f"{d}_{w}_ms"] for d in ("forward", "gradient") for w in ("written", "rewritten")]
    assert min(times) > 0
    assert "sum of features" in capsys.readouterr().out


def test_an_unknown_case_is_named():
    with pytest.raises(ValueError, match=r"fuse_rules: --cases must be part of one of .*'nothing'"):
        RuleOptions(cases=("nothing",)).check()
