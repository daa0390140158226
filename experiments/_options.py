"""Checks of options of the command line, which speak of what the user typed."""

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

# One call launches a step on all GPUs of a process, in milliseconds.
_LAUNCH_S = 60
_LAUNCH_FLAG = "--xla_gpu_nccl_termination_timeout_seconds"


def option(name: str) -> str:
    """The option of a field: ``hidden_features`` is typed ``--hidden-features``."""
    return "--" + name.replace("_", "-")


def check_options(command: str, config: Any, lowest: Mapping[str, float]) -> None:
    """Raises for the first option that is infinite or below its least value.

    One that is left out passes.

    Args:
      command: the command, which the message begins with.
      config: a dataclass with a field for each option: a number, several, or None.
      lowest: the least value of each option by the name of its field.

    Raises:
      ValueError: naming the option as it is typed.
    """
    for name, bound in lowest.items():
        value = getattr(config, name)
        values = value if isinstance(value, tuple) else (value,)
        # A NaN is not at least anything.
        if any(v is not None and not v >= bound for v in values):
            shown = " ".join(map(str, values))
            raise bad_input(command, option(name), f"at least {bound}", shown)
        if any(v is not None and math.isinf(v) for v in values):
            raise bad_input(command, option(name), "finite", " ".join(map(str, values)))


def check_devices(command: str, devices: int) -> None:
    """Raises ValueError unless there are as many devices, and all processes have some of them.

    JAX begins here, if it has not: so that is where XLA is told to end waits that have no end.
    """
    limit_launches()
    there, processes = jax.device_count(), jax.process_count()
    if processes > 1 and devices != there:
        expected = f"{there}, the devices of all {processes} processes"
        raise bad_input(command, "--devices", expected, devices)
    if not 1 <= devices <= there:
        raise bad_input(command, "--devices", f"in 1..{there}, the devices that there are", devices)


def limit_launches(seconds: int = _LAUNCH_S) -> None:
    """Has XLA end the process when a GPU waits so long for the launch on another one.

    XLA reads that from the environment when JAX begins, and not from the options of a program. What
    the user has set stays. In several processes a GPU may rightly wait for another process that
    still compiles; these are watched by JAX and by ``fit``.

    Args:
      seconds: how long.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    on_cpu = jax.config.jax_platforms == "cpu"
    if not (_LAUNCH_FLAG in flags or on_cpu or jax.distributed.is_initialized()):
        os.environ["XLA_FLAGS"] = f"{flags} {_LAUNCH_FLAG}={seconds}".strip()


def check_alone(config: Any, command: str, given: Mapping[str, bool]) -> None:
    """Raises ValueError for an option that is only for one device, if there are several.

    Args:
      config: options, with ``devices`` among them.
      command: the command, which the message begins with.
      given: whether each of these options was given.
    """
    for name, is_given in given.items():
        if is_given and config.devices > 1:
            raise bad_input(command, name, f"left out with --devices {config.devices}", "it")


@dataclass(frozen=True)
class BatchDevices:
    """Options of trainings in batches that devices may share.

    Attributes:
      devices: number of devices that the examples of a step are divided over; a run may go on with
        another number.
    """

    devices: int = 1

    def check_devices(self, command: str, batch_size: int) -> None:
        """Raises unless there are as many devices, and each gets as many examples.

        Raises:
          ValueError: naming the command, the option and both numbers.
        """
        if self.devices == 1:  # and JAX need not begin for it
            return
        check_devices(command, self.devices)
        if batch_size % self.devices:
            expected = f"divisible by --devices {self.devices}"
            raise bad_input(command, "--batch-size", expected, batch_size)

    def mesh(self) -> Mesh | None:
        """The devices for ``fit``; None for one."""
        if self.devices == 1:
            return None
        return Mesh(np.array(jax.devices()[: self.devices]), ("batch",))
