"""Several processes train one graph as one process does, and find out what differs."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from jaxgnn import distributed
from tests.distributed.two_processes import train

ROOT = Path(__file__).parents[2]


def _free_port():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def _run(options):
    """The standard output and error of each of two processes, and whether all ended well."""
    address = f"localhost:{_free_port()}"
    command = [sys.executable, "-m", "tests.distributed.two_processes", address]
    processes = [
        subprocess.Popen(
            [*command, str(process), option],
            cwd=ROOT,
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process, option in enumerate(options)
    ]
    try:
        texts = [process.communicate(timeout=200) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return texts, [process.returncode for process in processes]


@pytest.mark.long
@pytest.mark.parametrize("option", ["same", "mapped"])
def test_two_processes_have_the_losses_of_one(option, four_devices):
    texts, codes = _run([option, option])
    assert codes == [0, 0], texts
    losses = json.loads(texts[0][0].splitlines()[-1])  # behind what gloo says
    assert losses == pytest.approx(train(jax.devices()[:1]), rel=1e-5)


@pytest.mark.long
def test_processes_with_other_options_all_end_and_name_the_process(four_devices):
    texts, codes = _run(["same", "other"])
    assert 0 not in codes
    for _, error in texts:
        assert "the options must be the same on all processes, as on process 0" in error
        assert "others on processes [1]" in error


@pytest.mark.long
@pytest.mark.parametrize("argument", ["graph", "partition"])
def test_another_graph_or_partition_in_one_process_is_named_in_both(argument, four_devices):
    texts, codes = _run([argument, argument])
    assert 0 not in codes
    expected = f"shard: {argument} must be the same on all processes, as on process 0, got others"
    for _, error in texts:
        assert f"{expected} on processes [1]" in error


@pytest.mark.long
@pytest.mark.parametrize("option", ["alone", "together"])
def test_processes_that_fit_a_model_each_are_warned(option):
    texts, codes = _run([option, option])
    assert codes == [0, 0], texts
    for output, _ in texts:
        messages = json.loads(output.splitlines()[-1])
        expected = "fit: each of 2 processes trains a model of its own"
        assert [expected in message for message in messages] == [True] * (option == "alone")


@pytest.mark.long
def test_a_process_whose_others_do_not_come_ends_and_says_for_what_it_waited():
    code = (
        "from jaxgnn import distributed; distributed.initialize('localhost:{}', 2, 0, timeout_s=1)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code.format(_free_port())],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode != 0
    assert re.search(
        r"process 0 has waited 1 s at localhost:\d+ for all of 2 processes", ended.stderr
    )


def test_data_that_differ_on_a_process_are_named_with_the_process(monkeypatch):
    def allgather(own):
        return np.stack([own, own, ~own])

    monkeypatch.setattr(jax, "process_count", lambda: 3)
    monkeypatch.setattr(multihost_utils, "process_allgather", allgather)
    message = r"the labels of the data must be the same on all .* got others on processes \[2\]"
    with pytest.raises(ValueError, match=message):
        distributed.check_same("the labels of the data", np.arange(3))


def test_one_process_has_nothing_to_compare():
    distributed.check_same("the options", object())


BAD = {
    "process_id must be in 0..1, got 2": ("localhost:1234", 2, 2),
    "coordinator must be an address host:port, got 'localhost'": ("localhost", 2, 0),
    "num_processes must be an integer, got 0.5": ("localhost:1234", 0.5, 0),
    "num_processes must be an integer, got True": ("localhost:1234", True, 0),
    "process_id must be an integer, got '0'": ("localhost:1234", 2, "0"),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_named(message):
    with pytest.raises(ValueError, match=f"distributed.initialize: {message}"):
        distributed.initialize(*BAD[message])
