"""Readings of processors and GPUs: what others use is told from what this process does."""

import subprocess
import sys
import types

import pytest

from jaxgnn.testing import machine
from jaxgnn.testing.machine import CpuReading

STAT = """cpu  100 10 20 900 50 5 5 10 7 0
cpu0 60 10 10 400 30 5 5 10 7 0
cpu1 40 0 10 500 20 0 0 0 0 0
intr 1 2 3
"""


def test_ticks_of_the_cores_of_a_process_without_idle_ones_and_waits_for_disks():
    assert machine.busy_ticks(STAT, {0}) == 60 + 10 + 10 + 5 + 5 + 10
    assert machine.busy_ticks(STAT, {1}) == 50
    assert machine.busy_ticks(STAT, {0, 1}) == 150


@pytest.mark.parametrize(
    ("process", "everybody", "share"),
    [
        (2.0, 2.0, 0.0),
        (2.0, 11.0, 0.45),
        (0.0, 20.0, 1.0),
        (2.1, 2.0, 0.0),  # ticks are coarser than the time of a process
    ],
)
def test_others_have_what_this_process_has_not_used(process, everybody, share):
    before, after = (
        CpuReading(5.0, 1.0, 7.0, 2),
        CpuReading(15.0, 1.0 + process, 7.0 + everybody, 2),
    )
    assert machine.share_of_others(before, after) == pytest.approx(share)


def test_nothing_is_said_of_a_moment_or_of_a_system_that_does_not_tell():
    before = CpuReading(5.0, 1.0, 7.0, 2)
    assert machine.share_of_others(before, CpuReading(5.05, 1.0, 7.1, 2)) is None
    assert machine.share_of_others(before, CpuReading(15.0, 1.0, None, 2)) is None


@pytest.mark.skipif(sys.platform != "linux", reason="reason: only Linux tells")
def test_a_reading_of_this_machine_grows():
    before = machine.read_cpu()
    sum(range(10**6))
    after = machine.read_cpu()
    assert after.wall_s > before.wall_s and after.own_s > before.own_s
    assert after.all_s >= before.all_s > 0
    assert after.cores >= 1


def test_a_warning_counts_the_measurements_that_others_disturbed():
    assert machine.busy_warning([None, 0.0, 0.19]) is None
    assert machine.busy_warning([]) is None
    warning = machine.busy_warning([None, 0.1, 0.3, 0.62])
    assert "in 2 of 3 measurements" in warning and "62% at most" in warning


PROCESSES = "GPU-a, 11\nGPU-a, 12\nGPU-b, 13\nGPU-a, 14\n"


def test_processes_on_the_same_gpu_are_counted():
    assert machine.other_gpu_processes(PROCESSES, 11) == 2
    assert machine.other_gpu_processes(PROCESSES, 13) == 0
    assert machine.other_gpu_processes(PROCESSES, 99) == 0  # not listed: nothing is known
    assert machine.other_gpu_processes("", 11) == 0


def test_gpus_are_asked_where_they_can_be(monkeypatch):
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    assert machine.gpu_warning() is None
    monkeypatch.setattr(machine.shutil, "which", lambda name: name)
    monkeypatch.setattr(machine.os, "getpid", lambda: 11)
    answer = types.SimpleNamespace(returncode=0, stdout=PROCESSES)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    assert machine.gpu_warning().startswith("warning: 2 other processes compute on this GPU")
    answer.returncode = 9
    assert machine.gpu_warning() is None
