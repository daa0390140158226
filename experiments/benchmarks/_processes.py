"""Calls in a separate process, which frees the device when it ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any
from unittest import mock

# By default JAX would reserve most of the device.
_ON_DEMAND = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def in_new_process(
    function: Callable, *args: Any, environment: Mapping[str, str] | None = None
) -> Any:
    """The result of a call in a fresh process.

    Args:
      function: function of a module that the process imports.
      *args: its arguments; they and the result are pickled.
      environment: environment variables of the process, added to those of this one.
    """
    # JAX reads some of them on import, the first thing that a new process does.
    with (
        mock.patch.dict(os.environ, {**_ON_DEMAND, **(environment or {})}),
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
    ):
        return pool.submit(function, *args).result()
