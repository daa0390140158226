"""What seeds fix, and what several of them say together."""

import math

import numpy as np
import pytest
from scipy import stats

from experiments._seeds import Repeats, check_seeds, paired, run_all, streams, summarize


def test_the_streams_of_seeds_are_all_different_and_fixed():
    kinds = [streams(seed) for seed in range(200)]
    drawn = [number for kind in kinds for number in (kind.parameters, kind.training)]
    assert len(set(drawn)) == 400 and min(drawn) >= 0 and max(drawn) < 2**31
    assert [kind.split for kind in kinds] == list(range(200))
    assert streams(7) == streams(7)


def test_the_summary_is_the_mean_and_the_deviation_of_a_run():
    values = np.random.default_rng(0).normal(80, 2, size=10)
    summary = summarize(values)
    assert summary.mean == pytest.approx(np.mean(values))
    assert summary.std == pytest.approx(np.std(values, ddof=1))
    assert str(summary) == f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f} (10)"
    assert str(summarize([81.5])) == "81.50 (1)"


def test_the_interval_of_a_paired_difference_is_that_of_the_t_test():
    rng = np.random.default_rng(1)
    baseline = rng.normal(80, 2, size=8)
    values = baseline + rng.normal(0.5, 0.3, size=8)
    found = paired(values, baseline)
    expected = stats.ttest_rel(values, baseline).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.decided == (expected.low > 0)


def test_a_difference_of_one_seed_is_never_decided():
    found = paired([1.0], [0.0])
    assert math.isnan(found.low) and not found.decided and str(found) == "+1.00 (1)"


@pytest.mark.parametrize("fault", [((), "none"), ((1, 2, 1), "1 twice"), ((0, -3), "-3")])
def test_a_list_of_seeds_that_is_none_is_refused_by_name(fault):
    seeds, got = fault
    with pytest.raises(ValueError, match=f"compare: --seeds must be .*{got}"):
        check_seeds("compare", seeds)


def test_lengths_that_differ_are_not_paired():
    with pytest.raises(ValueError, match="one for each of 3 seeds"):
        paired([1.0, 2.0], [1.0, 2.0, 3.0])


def test_processes_return_the_same_results_in_the_same_order():
    values = [3.0, -1.0, 2.0]
    assert run_all(math.exp, values, processes=2) == run_all(math.exp, values)
    with pytest.raises(ValueError, match="sweep: --processes must be at least 1"):
        Repeats(processes=0).check("sweep")
