"""A training that is killed, and one that is resumed, sees the batches of an undisturbed one."""

import dataclasses
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgnn import CSRGraph, nn
from jaxgnn.sampling import NeighborLoader, masked_mean
from jaxgnn.training import LoopConfig, RunFolder, fit

ROOT = Path(__file__).parents[2]


def make_loader(num_threads, x=None):
    """The loader of all processes of these tests."""
    rng = np.random.default_rng(0)
    graph = CSRGraph.from_edges(*rng.integers(0, 500, (2, 4000)), 500)
    x = rng.normal(size=(500, 4)).astype(np.float32) if x is None else x
    options = {"method": "labor", "batch_dependency": 4, "seed": 9, "num_threads": num_threads}
    return NeighborLoader(graph, range(200), (4, 3), 30, x, np.arange(500) % 3, **options)


def digest(batch):
    """Short text that differs for different batches."""
    bytes_of = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(batch))
    return hashlib.sha256(bytes_of).hexdigest()[:16]


def print_digests():
    """What the killed process does."""
    batches = make_loader(num_threads=3).steps()
    for step in range(1, 10**9):
        print(digest(batches(step)), flush=True)


def test_batches_after_a_kill_go_on_where_they_were():
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-W", "error", "-m", "tests.sampling.test_resume"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, env=environment, cwd=ROOT, text=True, **pipes)
    before = [process.stdout.readline().strip() for _ in range(11)]
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    loader = make_loader(num_threads=1)
    assert len(loader) == 7  # so that the kill was in the second epoch
    assert before == [digest(loader.batch(*divmod(i, 7))) for i in range(11)]
    resumed = loader.steps(8)
    assert [digest(resumed(step)) for step in range(8, 12)] == before[7:]


class _Network(nnx.Module):
    def __init__(self):
        self.layers = nnx.List([nn.SAGEConv(4, 4, rngs=nnx.Rngs(0)) for _ in range(2)])

    def __call__(self, batch):
        h = batch.x
        for layer, block in zip(self.layers, batch.blocks, strict=True):
            h = layer(block, (h[: block.num_rows], h))
        return h[batch.seed_ids]


def _loss(model, batch, rngs):
    losses = optax.softmax_cross_entropy_with_integer_labels(model(batch), batch.y)
    return masked_mean(losses, batch.seed_mask), {}


def test_fit_takes_a_loader_and_resumes_within_an_epoch(tmp_path):
    config = LoopConfig(steps=10)

    def run(name, config, make=make_loader):
        folder = RunFolder(tmp_path / name, config, may_change=("steps",))
        loader = make(num_threads=2)
        result = fit(
            _Network(), optax.sgd(0.1), _loss, loader, config=config, run=folder, progress=False
        )
        folder.close()
        return [row["loss"] for row in result.history]

    before = run("resumed", dataclasses.replace(config, steps=4))
    losses = run("resumed", config)
    assert losses[:4] == before and losses == run("whole", config)
    for thread in threading.enumerate():
        if thread.name.startswith("jaxgnn-loader"):
            thread.join(5)
            assert not thread.is_alive()


def test_fit_reports_an_error_of_a_loader_thread():
    class Broken:
        num_rows, shape, dtype = 500, (500, 4), np.dtype(np.float32)

        def gather(self, ids, out=None):
            time.sleep(0.001)
            raise ConnectionError("the disk of the features is gone")

    loader = make_loader(num_threads=2, x=Broken())
    with pytest.raises(ConnectionError, match="the disk of the features is gone"):
        fit(_Network(), optax.sgd(0.1), _loss, loader, config=LoopConfig(steps=2), progress=False)


if __name__ == "__main__":
    print_digests()
