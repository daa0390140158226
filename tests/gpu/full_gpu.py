"""A training on two GPUs, of which the last has no memory left at a step.

``python -m tests.gpu.full_gpu STEP``, or as one of two processes with a GPU each
``python -m tests.gpu.full_gpu STEP ADDRESS PROCESS FOLDER``. Before STEP, arrays that stay take all
but 256 MiB of the last device, and the step needs a GiB on each. STEP 0 leaves the memory as it is.

``fit`` waits less long for a launch than for users, and XLA, who knows nothing of memory, longer.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh

from experiments._options import limit_launches
from experiments._processes import ProcessOptions, connected
from jaxgnn.training import LoopConfig, RunFolder, _device_errors, fit

MIB = 2**20
LAUNCH_S = 15
# Hidden units of 8,192 examples a device have a GiB.
EXAMPLES, HIDDEN = 8192, 32_768


def fill(device):
    """Arrays that leave less than 256 MiB of a device's memory."""
    ballast = []
    while _free(device) > 256 * MIB:
        ballast.append(jnp.zeros(128 * MIB, jnp.uint8, device=device).block_until_ready())
    return ballast


def _free(device):
    stats = device.memory_stats()
    return stats["bytes_limit"] - stats["bytes_in_use"]


class _Network(nnx.Module):
    def __init__(self, hidden, rngs):
        self.first, self.second = nnx.Linear(8, hidden, rngs=rngs), nnx.Linear(hidden, 8, rngs=rngs)

    def __call__(self, x):
        return self.second(jnp.sin(self.first(x)))


def train(full_at, folder=None, examples=EXAMPLES, hidden=HIDDEN):
    """Trains for four steps.

    Args:
      full_at: the step before which the last device is filled; 0 for none.
      folder: of the run; None for none.
      examples: of each device.
      hidden: width of the hidden layer.
    """
    devices, kept = jax.devices(), []
    x = np.random.default_rng(0).standard_normal((len(devices) * examples, 8)).astype(np.float32)

    def batches(step):
        last = devices[-1]
        if step == full_at and last.process_index == jax.process_index():
            kept.extend(fill(last))
            print(f"{last} has {_free(last) // MIB} MiB left", file=sys.stderr, flush=True)
        return x

    def loss(model, batch, rngs):
        return jnp.mean((model(batch) - batch) ** 2), {}

    model = _Network(hidden, nnx.Rngs(0))
    mesh = Mesh(np.array(devices), ("devices",))
    config = LoopConfig(steps=4, log_every=1)
    run = None if folder is None else RunFolder(folder, config)
    optimizer, options = optax.sgd(0.1), {"config": config, "run": run, "mesh": mesh}
    return fit(model, optimizer, loss, batches, progress=False, **options)


if __name__ == "__main__":
    full_at, *processes = sys.argv[1:]
    options, folder = ProcessOptions(), None
    if processes:
        address, process, folder = processes
        options, folder = ProcessOptions(address, int(process), 2), Path(folder)
    _device_errors.LAUNCH_S, _device_errors.STEPS_A_LAUNCH = LAUNCH_S, 1
    with connected("full_gpu", options):
        limit_launches(3 * LAUNCH_S)
        train(int(full_at), folder)
