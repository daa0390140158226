"""Functions that run in a process of their own, which hands the device back when it ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any
from unittest import mock

# JAX would else reserve most of the device.
_ON_DEMAND = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def in_new_process(
    function: Callable, *args: Any, environment: Mapping[str, str] | None = None
) -> Any:
    """The result of a call in a fresh process, in which no JAX has run before.

    Args:
      function: a function of a module, which the process imports.
      *args: its arguments, which are pickled, as is the result.
      environment: environment variables of the process, beside those of this one.
    """
    # JAX reads some of them when it is imported, which a new process does before anything else.
    with (
        mock.patch.dict(os.environ, {**_ON_DEMAND, **(environment or {})}),
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
    ):
        return pool.submit(function, *args).result()
