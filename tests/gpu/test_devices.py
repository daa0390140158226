"""One graph on two GPUs: every layer and model gives what it gives on one, by the table of CPUs."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest

import jaxgnn
from tests.distributed._commands import free_port
from tests.distributed._graphs import sharded_graph
from tests.distributed._layers import (
    CASES,
    UNCUT,
    assert_as_on_one_device,
    assert_uncut_as_on_one_device,
    on_devices,
)

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def needs_two():
    if jax.device_count() < 2:
        pytest.skip(f"reason: needs 2 GPUs, got {jax.device_count()}")


@pytest.mark.costly(4)
@pytest.mark.parametrize("exchange", ["all_gather", "all_to_all"])
@pytest.mark.parametrize("name", CASES)
def test_on_two_gpus_values_and_gradients_are_those_of_one(name, exchange):
    assert_as_on_one_device(name, 2, exchange)


@pytest.mark.parametrize("options", UNCUT)
def test_where_no_edge_is_cut_values_and_gradients_are_those_of_one_gpu(options):
    assert_uncut_as_on_one_device(2, options)


@pytest.mark.costly(2)
@pytest.mark.parametrize("exchange", ["all_gather", "all_to_all"])
@pytest.mark.parametrize("name", ["MaxKGNN", "DropEdge, both directions", "GraphTransformer"])
def test_bits_repeat_on_two_gpus(name, exchange):
    sharded = sharded_graph(2, exchange)
    with jaxgnn.deterministic():
        first, second = (on_devices(name, sharded) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, second)


# A part of each GPU, on which other tests run too: a step of ``full_gpu`` has arrays of a GiB.
_PART_OF_A_GPU = {"XLA_PYTHON_CLIENT_PREALLOCATE": "true", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.08"}


class _Ended(NamedTuple):
    """How a process has ended: its exit status and its standard error."""

    code: int
    errors: str


def _run(*arguments):
    """Runs processes of ``full_gpu``, each with its arguments: one on two GPUs, or two on one each.

    Standard error goes to files, since what XLA writes of a full memory does not fit into a pipe.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in arguments]
        processes = []
        for place, (file, given) in enumerate(zip(files, arguments, strict=True)):
            gpus = visible[:2] if len(arguments) == 1 else visible[place : place + 1]
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.gpu.full_gpu", *given],
                cwd=Path(__file__).parents[2],
                env=os.environ | _PART_OF_A_GPU | {"CUDA_VISIBLE_DEVICES": ",".join(gpus)},
                stderr=file,
            )
            stack.callback(process.kill)
            processes.append(process)
        codes = [process.wait(timeout=150) for process in processes]
        for file in files:
            file.seek(0)
        return [_Ended(code, file.read()) for code, file in zip(codes, files, strict=True)]


def test_a_training_that_gets_the_memory_it_needs_ends_well_on_two_gpus():
    (ended,) = _run(["0"])
    assert ended.code == 0, ended.errors


@pytest.mark.parametrize("step", [1, 3])
def test_a_gpu_without_memory_is_named_and_nobody_waits_for_it(step):
    ((code, errors),) = _run([str(step)])
    by_name = r"fit: device cuda:1 failed at "
    memory = r".*, cuda:1 0\.\d+ GiB\)"
    by_memory = rf"fit: one of the devices cuda:0, cuda:1 failed at {memory}"
    if re.search(f"{by_name}|{by_memory}", errors):
        assert "RESOURCE_EXHAUSTED" in errors and code == 1, errors
        return
    # The launch on the other GPU waits for this one, so that nothing can be raised: ``fit`` ends
    # the process, or XLA does by a signal if the step may still be compiled.
    late = rf"fit: step {step} has not been launched on the devices cuda:0, cuda:1 after {memory}"
    assert re.search(late, errors), errors
    by_xla = "Acquire clique" in errors and code == -signal.SIGABRT
    assert (f"error: fit: step {step} has" in errors and code == 1) or by_xla, errors


def test_a_process_whose_gpu_has_no_memory_is_named_by_itself_and_by_the_other_one(tmp_path):
    address = f"localhost:{free_port()}"
    first, last = _run(*(["3", address, i, str(tmp_path / "run")] for i in "01"))
    assert first.code and last.code, first.errors + last.errors
    named_by_itself = r"error: process 1: fit: .* failed at .*RESOURCE_EXHAUSTED"
    assert re.search(named_by_itself, last.errors), last.errors
    assert re.search(r"(process |task:)1\b", first.errors), first.errors
