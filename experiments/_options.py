"""Checks of command-line options, with messages that name what the user typed."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxgnn._errors import bad_input

# A launch of a step on all GPUs of a process takes milliseconds.
_LAUNCH_S = 60
_LAUNCH_FLAG = "--xla_gpu_nccl_termination_timeout_seconds"


def option(name: str) -> str:
    """The option of a field: ``hidden_features`` is typed ``--hidden-features``."""
    return "--" + name.replace("_", "-")


def check_options(command: str, config: Any, lowest: Mapping[str, float]) -> None:
    """Raises an error for the first option that is infinite or below its minimum.

    None is accepted.

    Args:
      command: the command, which the message begins with.
      config: a dataclass with a field for each option: a number, several, or None.
      lowest: minimum of each option by the name of its field.

    Raises:
      ValueError: naming the option as it is typed.
    """
    for name, bound in lowest.items():
        value = getattr(config, name)
        values = value if isinstance(value, tuple) else (value,)
        # Written so that NaN fails.
        if any(v is not None and not v >= bound for v in values):
            shown = " ".join(map(str, values))
            raise bad_input(command, option(name), f"at least {bound}", shown)
        if any(v is not None and math.isinf(v) for v in values):
            raise bad_input(command, option(name), "finite", " ".join(map(str, values)))


def check_devices(command: str, devices: int) -> None:
    """Raises ValueError unless enough devices exist and every process has some of them.

    Starts JAX if it has not started; XLA is therefore told here to end endless waits.
    """
    limit_launches()
    there, processes = jax.device_count(), jax.process_count()
    if processes > 1 and devices != there:
        expected = f"{there}, the devices of all {processes} processes"
        raise bad_input(command, "--devices", expected, devices)
    if not 1 <= devices <= there:
        raise bad_input(command, "--devices", f"in 1..{there}, the devices that there are", devices)


def limit_launches(seconds: int = _LAUNCH_S) -> None:
    """Makes XLA end the process when a GPU waits too long for a launch on another GPU.

    XLA reads this limit from the environment when JAX starts, not from a program's options. A value
    set by the user is kept. With several processes there is no limit, because a GPU may have to
    wait for another process that still compiles; JAX and ``fit`` watch these.

    Args:
      seconds: longest wait.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    on_cpu = jax.config.jax_platforms == "cpu"
    if not (_LAUNCH_FLAG in flags or on_cpu or jax.distributed.is_initialized()):
        os.environ["XLA_FLAGS"] = f"{flags} {_LAUNCH_FLAG}={seconds}".strip()


def check_alone(config: Any, command: str, given: Mapping[str, bool]) -> None:
    """Raises ValueError for a single-device option that is given with several devices.

    Args:
      config: options, including ``devices``.
      command: the command, which the message begins with.
      given: whether each single-device option was given.
    """
    for name, is_given in given.items():
        if is_given and config.devices > 1:
            raise bad_input(command, name, f"left out with --devices {config.devices}", "it")


@dataclass(frozen=True)
class BatchDevices:
    """Options of trainings in batches that devices may share.

    Attributes:
      devices: number of devices that share the examples of a step; a run may be resumed with
        another number.
    """

    devices: int = 1

    def check_devices(self, command: str, batch_size: int) -> None:
        """Raises unless there are enough devices and the batch size is a multiple of their number.

        Raises:
          ValueError: naming the command, the option and both numbers.
        """
        if self.devices == 1:  # so that JAX need not start
            return
        check_devices(command, self.devices)
        if batch_size % self.devices:
            expected = f"divisible by --devices {self.devices}"
            raise bad_input(command, "--batch-size", expected, batch_size)

    def mesh(self) -> Mesh | None:
        """The devices for ``fit``; None for a single device."""
        if self.devices == 1:
            return None
        return Mesh(np.array(jax.devices()[: self.devices]), ("batch",))
