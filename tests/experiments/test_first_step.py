"""The benchmark of first calls: its parts add up, and its rows are kept."""

import os
import time

import jax.numpy as jnp
import pytest

from experiments.benchmarks import _compilation, _first_step_cases, first_step
from experiments.benchmarks._compilation import Program, Stages, measure_stages
from experiments.benchmarks._origin import origin
from experiments.benchmarks._processes import in_new_process
from experiments.benchmarks._report import read_rows


def _here(function, *args, environment=None):
    return function(*args)


def test_a_row_has_the_parts_of_the_first_call_and_is_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(first_step, "in_new_process", _here)
    options = first_step.FirstStepOptions("tiny", ("fused_mlp",), out=tmp_path)
    (row,) = first_step.main(options)
    assert read_rows(tmp_path / "first_step.jsonl") == [origin() | row]
    parts = [row[f"{part}_s"] for part in ("trace", "lower", "xla", "run")]
    assert all(part >= 0 for part in parts)
    assert row["total_s"] == pytest.approx(sum(parts))
    assert row["another_s"] > 0
    assert row["cached_s"] > 0
    assert capsys.readouterr().out.count("fused_mlp") == 1


def test_on_a_gpu_the_compilation_is_divided_by_two_without_autotuning(monkeypatch):
    asked = {}

    def compilations(function, *args, environment):
        asked.update(environment)
        return 5.0, 2.0  # the first one compiles Mosaic's kernels too

    monkeypatch.setattr(first_step, "in_new_process", compilations)
    monkeypatch.setenv("XLA_FLAGS", "--xla_of_the_user")
    stages = Stages(trace=1.0, lower=2.0, mosaic=1.5, compile=9.0, run=0.5, kernels=4)
    parts = first_step._seconds(stages, True, "full", "fused_mlp")
    assert asked == {"XLA_FLAGS": "--xla_of_the_user --xla_gpu_autotune_level=0"}
    assert (parts["xla_s"], parts["kernels_s"], parts["autotune_s"]) == (2.0, 3.0, 4.0)
    assert parts["total_s"] == 12.5


def test_every_program_is_there_at_every_scale_and_has_another_size():
    for cases in _first_step_cases.CASES.values():
        assert len(cases) == 6
    program, other = (make() for make in _made("message_passing"))
    sizes = [p.args[2].num_edges for p in (program, other)]
    assert sizes[1] == sizes[0] + 400


def _made(name):
    case = _first_step_cases.CASES["tiny"][name]
    assert case.make_another is not None
    return case.make, case.make_another


def test_a_program_of_no_name_is_named():
    options = first_step.FirstStepOptions("tiny", ("mlp",))
    with pytest.raises(ValueError, match=r"first_step: --only must be of maxk_sage, .*, got mlp"):
        first_step.main(options)


def test_each_stage_is_timed():
    stages = measure_stages(Program(lambda x: x @ x, (jnp.ones((8, 8)),)))
    assert min(stages) >= 0
    assert stages.trace > 0
    assert stages.compile > 0
    assert stages.kernels == 0
    assert stages.total == pytest.approx(sum(stages[:2]) + stages.compile + stages.run)


def test_the_time_in_files_of_one_path_is_told_from_that_in_others():
    def wait(file):
        until = "from time import perf_counter as now\nend = now() + 0.1\nwhile now() < end: pass"
        exec(compile(until, file, "exec"), {})

    with _compilation._StackSamples("mosaic_gpu") as samples:
        started = time.perf_counter()
        wait("/mosaic_gpu/lowering.py")
        inside = time.perf_counter() - started
        wait("/other/lowering.py")
    assert 0 < samples.seconds < inside + 0.1


def test_a_new_process_has_the_variables_that_it_was_given():
    value = in_new_process(os.getenv, "JAXGNN_TEST", environment={"JAXGNN_TEST": "7"})
    assert value == "7"
    assert os.getenv("JAXGNN_TEST") is None
