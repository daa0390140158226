"""Start-up of a command that several processes run together."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Collection, Iterator
from dataclasses import fields
from typing import Any

import jax

from experiments._command import EXPECTED, INTERRUPTED
from experiments._options import CLUSTER, ProcessOptions, option
from jaxgnn import distributed
from jaxgnn.datasets import NodeDataset

# Seconds a failing process waits for the others to fail too. JAX needs up to 30 s to notice that a
# process has ended, and then names it.
_SECONDS_TO_PART = 40.0


@contextlib.contextmanager
def connected(command: str, options: ProcessOptions) -> Iterator[None]:
    """Connects this process with the others of the command; only process 0 prints results.

    An error in one process ends all of them. The failing process prints its error, gives the others
    time to print theirs, and exits with status 1, or 130 after Ctrl-C, without waiting for their
    work.

    Args:
      command: the command, which messages begin with.
      options: the addresses of the processes.

    Raises:
      ValueError: if the options do not go together.
    """
    options.check(command)
    if options.coordinator is None:
        yield
        return
    cluster = options.coordinator == CLUSTER
    coordinator = None if cluster else options.coordinator
    distributed.initialize(coordinator, options.num_processes, options.process_id)
    with contextlib.ExitStack() as stack:
        if jax.process_index() > 0:
            nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
        try:
            yield
        except BaseException as error:
            _part(error)


def _part(error: BaseException) -> None:
    """Ends this process after an error, once the others know of it."""
    is_interrupt = isinstance(error, KeyboardInterrupt)
    if not isinstance(error, EXPECTED) and not is_interrupt:
        traceback.print_exception(error)
    text = "interrupted; files that were written before are kept" if is_interrupt else error
    print(f"error: process {jax.process_index()}: {text}", file=sys.stderr, flush=True)
    # If all have failed, they shut down together at once. Otherwise JAX ends this process when it
    # has noticed the failed one, or this process exits and JAX informs the others.
    parting = threading.Thread(target=jax.distributed.shutdown, daemon=True)
    parting.start()
    parting.join(_SECONDS_TO_PART)
    os._exit(INTERRUPTED if is_interrupt else 1)


def check_same_run(config: Any, dataset: NodeDataset) -> None:
    """Checks that all processes have the same options and data of nodes, whatever files they read.

    Memory-mapped features, which no process reads completely, are compared only by shape.

    Args:
      config: a dataclass with a field for each option.
      dataset: the data.

    Raises:
      ValueError: on all processes, naming the option or the part of the data.
    """
    check_same_options(config, besides=("progress", "data", "labels", "features", "splits"))
    for name in ("senders", "receivers", "features", "labels", "train", "validation", "test"):
        value = getattr(dataset, name)
        if name == "features" and dataset.features_on_disk:
            value = value.shape
        distributed.check_same(f"the {name} of the data", value)


def check_same_options(config: Any, besides: Collection[str]) -> None:
    """Checks that all processes have the same options.

    Args:
      config: a dataclass with a field for each option.
      besides: the fields that may differ.

    Raises:
      ValueError: on all processes, naming the option, and the processes whose value is not that of
        process 0.
    """
    for field in fields(config):
        if field.name not in besides:
            distributed.check_same(option(field.name), getattr(config, field.name))
