"""Command-line options that experiments share, checked with messages that name what was typed.

They are read and checked before JAX, which takes seconds, is imported: by functions that need it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from jaxgnn._errors import bad_input

if TYPE_CHECKING:
    from jax.sharding import Mesh

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
    import jax

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
    import jax

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
        import jax
        import numpy as np
        from jax.sharding import Mesh

        return Mesh(np.array(jax.devices()[: self.devices]), ("batch",))


PartitionMethod = Literal["degree", "contiguous", "random", "metis"]
"""Partitions of nodes over devices, as described in ``jaxgnn.distributed.partition``."""


@dataclass(frozen=True)
class GraphDevices:
    """Options of trainings on one graph that devices may share.

    Attributes:
      devices: number of devices that share the graph; a run may be resumed with another number.
      partition: assignment of nodes to devices: degree balances the work of the devices, contiguous
        keeps nodes in their order, metis (with pymetis) cuts few edges.
    """

    devices: int = 1
    partition: PartitionMethod = "degree"

    def check_devices(self, command: str) -> None:
        """Raises unless there are enough devices, and several of them if a partition is set.

        Raises:
          ValueError: naming the command and the option.
        """
        if self.devices != 1:  # else JAX need not start
            check_devices(command, self.devices)
        elif self.partition != "degree":
            raise bad_input(command, "--partition", "left out with --devices 1", self.partition)


@dataclass(frozen=True)
class SampleOptions:
    """Options of trainings in batches of nodes with sampled neighbours.

    Attributes:
      sample: neighbours to draw of each node, a number for each layer from the last one on, for
        example 15 10 5; by default each step uses the whole graph.
      batch_size: training nodes of a step with --sample.
    """

    sample: tuple[int, ...] = ()
    batch_size: int = 1024

    def sample_name(self) -> str:
        """Part of a folder name that distinguishes sampled runs; empty for the whole graph."""
        numbers = "".join(f"-{fanout}" for fanout in self.sample)
        return numbers and f"-sample{numbers}-of{self.batch_size}"

    def check_sample(self, command: str, num_layers: int, not_with: Mapping[str, bool]) -> None:
        """Raises unless there is a number for each layer, and no option that excludes sampling.

        Args:
          command: the command, which messages begin with.
          num_layers: layers of the network.
          not_with: whether each option that excludes sampling was given.

        Raises:
          ValueError: naming the option.
        """
        if not self.sample:
            return
        shown = " ".join(map(str, self.sample))
        if any(fanout == 0 or fanout < -1 for fanout in self.sample):
            raise bad_input(command, "--sample", "positive numbers, or -1 for all", shown)
        if len(self.sample) != num_layers:
            expected = f"a number for each of the {num_layers} layers"
            raise bad_input(command, "--sample", expected, shown)
        if self.batch_size < 1:
            raise bad_input(command, "--batch-size", "at least 1", self.batch_size)
        for name, is_given in not_with.items():
            if is_given:
                raise bad_input(command, name, f"left out with --sample {shown}", "it")


@dataclass(frozen=True)
class ReportOptions:
    """Options for files written besides ``report.html``.

    Attributes:
      csv: also write the metrics of each step to metrics.csv in the run folder.
      tensorboard: also write them for TensorBoard, to the folder tensorboard in the run folder.
    """

    csv: bool = False
    tensorboard: bool = False


# Writes only the page.
PAGE_ALONE = ReportOptions()

# Type of a field of a configuration: ``report: Reporting = PAGE_ALONE`` adds ``--csv`` and
# ``--tensorboard`` to the command line. A resumed run may change them if ``may_change`` of its
# ``RunFolder`` contains ``"report"``.
Reporting = Annotated[ReportOptions, tyro.conf.arg(name="")]


def check_report(folders: Sequence[Path], out: Path) -> None:
    """Raises an error unless a page about runs can be written: ``experiments report``.

    Args:
      folders: the folders of the runs.
      out: the HTML file.

    Raises:
      ValueError: if no folder is given, one is not a run or given twice, or the file does not end
        in .html.
    """
    if out.suffix != ".html":
        raise bad_input("report", "--out", "a file that ends in .html", out)
    if not folders:
        raise bad_input("report", "RUN", "the folders of one run or more", "none")
    places = [folder.resolve() for folder in folders]
    for number, (folder, place) in enumerate(zip(folders, places, strict=True)):
        if place in places[:number]:
            raise bad_input("report", "RUN", "folders that differ", f"{folder} twice")
        if not (folder / "config.json").is_file():
            raise bad_input("report", "RUN", "a folder of a run, with its config.json", folder)


CLUSTER = "cluster"
"""A coordinator that stands for the environment of Slurm, Open MPI or Kubernetes."""


@dataclass(frozen=True)
class ProcessOptions:
    """Options by which the processes of one command connect to each other.

    Attributes:
      coordinator: HOST:PORT of process 0, to run the command in several processes; cluster asks
        Slurm, Open MPI or Kubernetes for this and the following two.
      process_id: number of this process, from 0.
      num_processes: number of all processes.
    """

    coordinator: str | None = None
    process_id: int | None = None
    num_processes: int | None = None

    def check(self, command: str) -> None:
        """Raises an error for options that do not fit together.

        Raises:
          ValueError: naming the command and the option.
        """
        alone = self.coordinator in (None, CLUSTER)
        for name in ("process_id", "num_processes"):
            value = getattr(self, name)
            if alone and value is not None:
                expected = f"left out with --coordinator {self.coordinator}"
                raise bad_input(command, option(name), expected, value)
            if not alone and value is None:
                raise bad_input(command, option(name), "given with --coordinator", None)
        if alone:
            return
        host, _, port = str(self.coordinator).rpartition(":")
        if not host or not port.isdigit():
            raise bad_input(
                command, "--coordinator", "an address HOST:PORT, or cluster", self.coordinator
            )
        assert self.num_processes is not None and self.process_id is not None
        if self.num_processes < 1:
            raise bad_input(command, "--num-processes", "at least 1", self.num_processes)
        if not 0 <= self.process_id < self.num_processes:
            expected = f"in 0..{self.num_processes - 1}"
            raise bad_input(command, "--process-id", expected, self.process_id)


# A command that runs in a single process.
ALONE = ProcessOptions()
