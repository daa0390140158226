"""A process that stands still is found by the places that all of a training write."""

import json

import jax
import pytest

from jaxgnn.training import LoopConfig
from jaxgnn.training.processes import Place, Watch


def _watch(folder, monkeypatch, *others):
    """The watch of process 0, and a clock that tests set; ``others`` are where the others are."""
    clock = [100.0]
    monkeypatch.setattr(jax, "process_count", lambda: 1 + len(others))
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    for process, place in enumerate(others, 1):
        _write(folder, process, place)
    return Watch(folder, longest_s=600.0, patience_s=40.0), clock


def _write(folder, process, place):
    (folder / f"process_{process}.json").write_text(json.dumps(place))


HERE = Place(7, "the losses up to step 3", False)


def test_a_process_behind_that_does_not_move_is_named_with_its_place(tmp_path, monkeypatch):
    behind = Place(5, "the batch of step 3", False)
    watch, clock = _watch(tmp_path, monkeypatch, Place(7, "there too", False), behind)
    assert watch.fault(HERE, 0) is None
    clock[0] += 41
    expected = (
        "process 0 has waited 41 s at the losses up to step 3 for process 2, which has not left "
        "the batch of step 3"
    )
    assert watch.fault(HERE, 41) == expected
    assert watch.fault(HERE, 39) is None  # this process has come there a moment ago


def test_a_process_that_moves_is_waited_for(tmp_path, monkeypatch):
    watch, clock = _watch(tmp_path, monkeypatch, Place(4, "step 2", False))
    watch.fault(HERE, 0)
    clock[0] += 39
    _write(tmp_path, 1, Place(5, "the batch of step 3", False))
    assert watch.fault(HERE, 39) is None
    clock[0] += 30
    assert watch.fault(HERE, 69) is None
    clock[0] += 11
    assert "which has not left the batch of step 3" in watch.fault(HERE, 80)


def test_a_compilation_may_take_longer(tmp_path, monkeypatch):
    watch, clock = _watch(tmp_path, monkeypatch, Place(5, "step 3", True))
    watch.fault(HERE, 0)
    clock[0] += 599
    assert watch.fault(HERE, 599) is None
    clock[0] += 2
    assert "for process 1, which has not left step 3" in watch.fault(HERE, 601)


def test_processes_ahead_are_not_behind_and_a_place_of_all_has_a_limit(tmp_path, monkeypatch):
    ahead = Place(9, "the batch of step 4", False)
    watch, clock = _watch(tmp_path, monkeypatch, ahead, Place(*HERE))
    watch.fault(HERE, 0)
    clock[0] += 500
    assert watch.fault(HERE, 500) is None
    assert watch.fault(HERE, 601).endswith("where all other processes are too, or beyond")


def test_files_that_are_missing_or_cut_off_name_nobody(tmp_path, monkeypatch):
    watch, clock = _watch(tmp_path, monkeypatch, Place(1, "step 1", False))
    (tmp_path / "process_1.json").write_text("[5, ")
    watch.fault(HERE, 0)
    clock[0] += 100
    assert watch.fault(HERE, 100) is None
    without = Watch(None, longest_s=600.0)
    assert without.fault(HERE, 100) is None and "601 s" in without.fault(HERE, 601)


def test_one_process_writes_nothing(tmp_path):
    with Watch(tmp_path / "places", longest_s=1.0) as watch:
        watch.at("step 1")
    assert not (tmp_path / "places").exists() and watch.place == Place(1, "step 1", False)


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_limit_that_is_none_is_refused(seconds):
    with pytest.raises(ValueError, match=r"LoopConfig.longest_wait_s: expected above 0, got"):
        LoopConfig(steps=1, longest_wait_s=seconds)
