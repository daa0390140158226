"""Typed calls of the Sudoku generator and solver, plain C functions that run without JAX.

A signal, such as that of Ctrl-C, ends any of them within milliseconds.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from jaxgnn._ffi._library import open_library, why_not_open

CELLS = 81

# Guesses without a solution after which guesses that have none are skipped: hundreds of times as
# many as published puzzles need, and some milliseconds.
PATIENCE = 2048
PLAIN = 2**63 - 1
"""Patience of the plain search, which skips no guess."""

_INTS = np.ctypeslib.ndpointer(np.int32, flags="C")
_BYTES = np.ctypeslib.ndpointer(np.int8, flags="C")
_LONGS = np.ctypeslib.ndpointer(np.int64, flags="C")
_int32, _int64, _uint64 = ctypes.c_int32, ctypes.c_int64, ctypes.c_uint64
_ARGUMENTS = {
    "generate": (_uint64, _int64, _int64, _BYTES, _int32, _int32, _INTS, _BYTES, _BYTES),
    "solve": (_int64, _BYTES, _int32, _int64, _int64, _int32, _INTS, _INTS, _BYTES, _LONGS),
    "singles": (_int64, _BYTES, _int32, _INTS, _INTS, _INTS),
}


def why_missing() -> str | None:
    """The reason why the functions below can not be called; None if they can."""
    return None if _functions() else why_not_open("cpu")


def generate(
    most: np.ndarray, *, exactly: bool, seed: int, first: int, threads: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Generates minimal puzzles, each from its own stream of random numbers.

    Args:
      most: the largest number of givens of each puzzle, [count] int8.
      exactly: whether each puzzle has to have exactly that many givens.
      seed: seed of all streams of random numbers, taken modulo 2^64.
      first: index of the first puzzle's stream.
      threads: number of threads; None for as many as the process may use.

    Returns:
      Puzzles and solutions, [count, 81] int8, 0 where a puzzle's cell is empty.
    """
    count = most.shape[0]
    puzzles, solutions = np.empty((2, count, CELLS), np.int8)
    streams = (seed % 2**64, first, count)
    _call("generate", (*streams, most, exactly, _threads(threads)), (puzzles, solutions))
    return puzzles, solutions


def solve(
    boards: np.ndarray,
    *,
    limit: int,
    most: int,
    threads: int | None,
    patience: int = PATIENCE,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Looks for up to ``limit`` solutions of each board.

    The order of the solutions does not depend on ``patience``.

    Args:
      boards: boards of 81 cells, [count, 81] int8 of 0 (empty) to 9.
      limit: the largest number of solutions to look for, at least 1.
      most: the largest number of guesses without a solution; with more a board is given up.
      threads: number of threads; None for as many as the process may use.
      patience: number of guesses without a solution after which those that have none are skipped.

    Returns:
      The number of solutions found, [count] int32, -1 where a board was given up; the solutions,
      [count, limit, 81] int8, zeros beyond that number; and the number of guesses, [count] int64,
      which are those of the plain search if ``patience`` is ``PLAIN``.
    """
    count = boards.shape[0]
    found, guesses = np.zeros(count, np.int32), np.zeros(count, np.int64)
    solutions = np.zeros((count, limit, CELLS), np.int8)
    boards = np.ascontiguousarray(boards)
    options = (limit, patience, most, _threads(threads))
    _call("solve", (count, boards, *options), (found, solutions, guesses))
    return found, solutions, guesses


def singles(boards: np.ndarray, *, threads: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Counts the rounds in which naked and hidden singles fill cells of each board.

    Args:
      boards: boards of 81 cells, [count, 81] int8 of 0 (empty) to 9.
      threads: number of threads; None for as many as the process may use.

    Returns:
      The number of rounds, and the number of cells that are empty after them, each [count] int32.
    """
    rounds, still_open = np.zeros((2, boards.shape[0]), np.int32)
    boards = np.ascontiguousarray(boards)
    _call("singles", (boards.shape[0], boards, _threads(threads)), (rounds, still_open))
    return rounds, still_open


def _call(name: str, arguments: tuple[Any, ...], results: tuple[np.ndarray, ...]) -> None:
    """Calls a function, which any exception of the main thread ends, such as KeyboardInterrupt."""
    functions = _functions()
    if not functions:
        raise NotImplementedError(f"sudoku.{name}: {why_not_open('cpu')}")
    stop = np.zeros(1, np.int32)
    if threading.current_thread() is not threading.main_thread():  # signals never arrive there
        functions[name](*arguments, stop, *results)
        return
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(functions[name], *arguments, stop, *results)
        try:
            call.result()  # waits in Python, so that handlers of signals run
        except BaseException:
            stop[0] = 1
            raise


@functools.cache
def _functions() -> dict[str, Any]:
    library = open_library("cpu")
    if library is None:
        return {}
    functions = {name: library[f"jaxgnn_sudoku_{name}"] for name in _ARGUMENTS}
    for name, function in functions.items():
        function.argtypes, function.restype = _ARGUMENTS[name], None
    return functions


def _threads(threads: int | None) -> int:
    if threads is not None:
        return threads
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(affinity(0)) if affinity else os.cpu_count() or 1
