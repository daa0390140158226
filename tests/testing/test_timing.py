"""Timing calls of a function, and candidates in turns; what a measurement carries."""

import re
import time
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn.testing import timing
from jaxgnn.testing.timing import Candidate

DEVICE_KEYS = {"device", "platform", "jax", "jaxlib", "jaxgnn", "cpus", "date"}


def test_measure_tells_how_long_a_call_takes():
    short = timing.measure(lambda: time.sleep(0.001), jit=False, repeats=3)
    long = timing.measure(lambda: time.sleep(0.01), jit=False, repeats=3)
    assert short.median_ms >= short.min_ms >= 1
    assert long.min_ms >= 10
    assert short.launches > long.launches >= 1
    assert short.repeats == long.repeats == 3


def test_measure_takes_turns_over_all_inputs():
    seen = []
    timing.measure(seen.append, 0, rotate=[(1,), (2,)], jit=False, repeats=4, batch_ms=0.0)
    assert seen[:6] == [0, 1, 2, 0, 1, 2]


def test_measure_stops_at_its_budget():
    slow = timing.measure(lambda: time.sleep(0.01), jit=False, repeats=50, budget_ms=5.0)
    assert slow.repeats == 3


def test_measure_compiles_once():
    traced = []

    def double(x):
        traced.append(x.shape)
        return 2 * x

    result = timing.measure(double, jnp.ones(8), repeats=3, batch_ms=0.1)
    assert traced == [(8,)]
    assert result.median_ms > 0


@pytest.mark.parametrize("wrong", [{"repeats": 0}, {"batch_ms": -1.0}])
def test_measure_refuses_nonsense(wrong):
    with pytest.raises(ValueError, match=r"timing\.measure"):
        timing.measure(jnp.sin, jnp.ones(2), **wrong)
    with pytest.raises(ValueError, match=r"timing\.measure"):
        timing.measure_in_turns({"sin": Candidate(jnp.sin, [(jnp.ones(2),)])}, **wrong)


def test_candidates_take_turns_batch_by_batch():
    seen = []
    candidates = {
        name: Candidate(seen.append, [(name + "0",), (name + "1",)], jit=False) for name in "abc"
    }
    times = timing.measure_in_turns(candidates, repeats=4, batch_ms=0.0)
    warm_up, batches = seen[:6], seen[6:]
    assert warm_up == ["c0", "c1", "b0", "b1", "a0", "a1"]
    # To and fro, and every candidate goes through its own inputs.
    assert batches == ["a0", "b0", "c0", "c1", "b1", "a1"] * 2
    assert list(times) == ["a", "b", "c"]
    assert {one.repeats for one in times.values()} == {4}


def test_candidates_have_launches_of_their_own():
    candidates = {
        str(seconds): Candidate(time.sleep, [(seconds,)], jit=False) for seconds in (0.001, 0.01)
    }
    short, long = timing.measure_in_turns(candidates, repeats=3).values()
    assert short.launches > long.launches
    assert long.min_ms >= 10
    assert short.min_ms >= 1


@pytest.mark.parametrize("calls", [0, 1, 3])  # when compiled, in the warm-up, in the second batch
def test_a_candidate_without_memory_has_no_time_and_the_others_go_on(calls):
    left = iter(range(calls))

    def run(name):
        if name == "large" and next(left, None) is None:
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory")
        seen.append(name)

    seen = []
    names = ("first", "large", "last")
    candidates = {name: Candidate(run, [(name,)], jit=False) for name in names}
    times = timing.measure_in_turns(candidates, repeats=4, batch_ms=0.0)
    assert times["large"] is None
    assert times["first"].repeats == times["last"].repeats == 4
    assert seen.count("large") == calls
    assert seen.count("first") == seen.count("last") == 6


def test_another_error_of_a_candidate_ends_the_run():
    candidates = {"wrong": Candidate(raise_else, [(1,)], jit=False)}
    with pytest.raises(RuntimeError, match="else"):
        timing.measure_in_turns(candidates)


def test_candidates_share_a_budget():
    candidates = {name: Candidate(time.sleep, [(0.01,)], jit=False) for name in "ab"}
    times = timing.measure_in_turns(candidates, repeats=50, batch_ms=0.0, budget_ms=75.0)
    # Three rounds are 60 ms at least, four are 80.
    assert times["a"].repeats == times["b"].repeats <= 4


def test_results_of_a_candidate_are_gone_when_another_has_its_turn():
    alive = weakref.WeakSet()

    class Result:
        """Can be seen to die, unlike an array."""

    def run():
        assert len(alive) <= 1, "more than the result of the call before"
        result = Result()
        alive.add(result)
        return result

    def other():
        assert not alive

    candidates = {
        "keeps": Candidate(run, [()], jit=False),
        "other": Candidate(other, [()], jit=False),
    }
    times = timing.measure_in_turns(candidates, repeats=3, batch_ms=0.0)
    assert {one.repeats for one in times.values()} == {3}


def test_a_timing_has_its_quartiles():
    assert timing.quartiles([5.0]) == (5.0, 5.0, 5.0)
    assert timing.quartiles([4.0, 1.0, 3.0, 2.0, 5.0]) == (2.0, 3.0, 4.0)
    one = timing.measure(lambda: time.sleep(0.001), jit=False, repeats=5, batch_ms=0.0)
    assert one.min_ms <= one.low_ms <= one.median_ms <= one.high_ms


def test_equal_programs_of_equal_inputs_are_timed_once():
    traced = []

    def double(x):
        traced.append("double")
        return x + x

    one, two = jnp.ones(8), jnp.ones(8)
    candidates = {
        "double": Candidate(double, [(one,)]),
        "twin": Candidate(lambda renamed: renamed + renamed, [(one,)]),
        "jitted twin": Candidate(jax.jit(lambda a: a + a), [(one,)], jit=False),
        "compiled twin": Candidate(jax.jit(double).lower(one).compile(), [(one,)], jit=False),
        "other inputs": Candidate(lambda x: x + x, [(two,)]),
        "another": Candidate(lambda x: x * x, [(one,)]),
        "python": Candidate(lambda x: x, [(one,)], jit=False),
    }
    traced.clear()
    times = timing.measure_in_turns(candidates, repeats=3, batch_ms=0.0)
    assert list(times) == list(candidates)
    assert traced == []  # the twin that was compiled before has left its trace
    twins = [times[name] for name in ("twin", "jitted twin", "compiled twin")]
    assert all(twin == times["double"] for twin in twins)
    assert times["other inputs"].program == times["double"].program
    assert times["other inputs"].median_ms != times["double"].median_ms
    assert times["another"].program not in (None, times["double"].program)
    assert times["python"].program is None


def _timing(low, median, high, program=None):
    return timing.Timing(median, low, 5, 1, low, high, program=program)


@pytest.mark.parametrize(
    ("baseline", "ours", "text"),
    [
        (_timing(9, 10, 11), _timing(4, 5, 6), "2.00"),
        (_timing(4, 5, 6), _timing(9, 10, 11), "0.50"),
        (_timing(9, 10, 11), _timing(8, 9, 9.5), "≈ same"),
        (_timing(9, 10, 11, "a"), _timing(4, 5, 6, "b"), "2.00"),
        (_timing(9, 10, 11, "a"), _timing(4, 5, 6, "a"), "same program"),
    ],
)
def test_a_ratio_says_whether_it_is_more_than_noise(baseline, ours, text):
    ratio = timing.speed_ratio(baseline, ours)
    assert str(ratio) == text
    assert ratio.low <= ratio.ratio <= ratio.high
    assert ratio.ratio == baseline.median_ms / ours.median_ms


def test_copy_bandwidth_is_positive():
    assert 0 < timing.copy_bandwidth(2**16, repeats=3) < np.inf


def test_device_description_names_device_and_versions():
    description = timing.device_description()
    assert set(description) == DEVICE_KEYS
    assert description["jax"] == jax.__version__
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", str(description["date"]))


def raise_else(x):
    raise RuntimeError("something else")


def test_kernels_of_all_streams_of_a_device_are_added_up():
    def record(**attributes):
        return types.SimpleNamespace(**attributes)

    def line(name, *durations):
        return record(name=name, events=[record(duration_ns=d) for d in durations])

    gpu = line("Stream #1(Compute)", 3.0, 4.0), line("Stream #2(Memcpy)", 5.0), line("Steps", 99.0)
    planes = [
        record(name="/device:GPU:0", lines=gpu),
        record(name="/host:CPU", lines=[line("Stream", 7)]),
    ]
    assert timing.busy_ns(record(planes=planes)) == 12.0


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="reason: tests/gpu has that of a GPU")
def test_a_cpu_has_no_kernels_to_time():
    assert timing.kernel_time(Candidate(lambda x: x, [(jnp.ones(3),)])) is None
