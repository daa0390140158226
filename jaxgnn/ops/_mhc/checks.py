"""Checks of the arguments of the ops of hyper-connections at trace time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.ops._mhc.reference.sinkhorn import STREAMS
from jaxgnn.ops.core.checks import check_float


def check_streams(op: str, x: Any) -> tuple[int, int]:
    """The number of streams and their width.

    Raises:
      ValueError: unless ``x`` is a floating array [..., n, dim] where both are positive.
    """
    check_float(op, "x", x, 2)
    if x.shape[-2] == 0:
        raise bad_input(op, "x", "[..., n, dim] of at least one stream", f"shape {x.shape}")
    return x.shape[-2], x.shape[-1]


def check_coefficients(op: str, argument: str, array: Any, *shapes: tuple[int, ...]) -> None:
    """Raises ValueError unless ``array`` is float32 or float64 and of one of these shapes."""
    if not hasattr(array, "dtype"):
        raise bad_input(op, argument, "an array", type(array).__name__)
    if array.dtype.name not in ("float32", "float64"):
        raise bad_input(op, argument, "of dtype float32", array.dtype)
    if array.shape not in shapes:
        expected = " or ".join(str(shape) for shape in dict.fromkeys(shapes))
        raise bad_input(op, argument, f"of shape {expected}", f"shape {array.shape}")


def check_pre(op: str, x: Any, phi: Any, alpha: Any, bias: Any, gamma: Any) -> None:
    """Raises ValueError unless these are arguments of ``mhc_pre``."""
    n, dim = check_streams(op, x)
    lite = [count + 2 * n for count, streams in STREAMS.items() if streams == n]
    rows = [n * n + 2 * n, *lite]
    if (phi is None) != (alpha is None):
        expected = "None exactly if phi is None, for coefficients that do not depend on x"
        raise bad_input(op, "alpha", expected, "None" if alpha is None else "an array")
    if phi is None:
        if gamma is not None:
            raise bad_input(op, "gamma", "None if phi is None", "an array")
        check_coefficients(op, "bias", bias, *((r,) for r in rows))
        return
    # The number of rows follows from phi; bias has to agree.
    check_coefficients(op, "phi", phi, *((r, n * dim) for r in rows))
    check_coefficients(op, "alpha", alpha, (3,))
    check_coefficients(op, "bias", bias, phi.shape[:1])
    if gamma is not None:
        check_coefficients(op, "gamma", gamma, (n, dim))


def check_post(op: str, x: Any, f: Any, h_post: Any, h_res: Any) -> None:
    """Raises ValueError unless these are arguments of ``mhc_post``."""
    n, _ = check_streams(op, x)
    batch = x.shape[:-2]
    check_output(op, "f", f, x)
    check_coefficients(op, "h_post", h_post, (*batch, n), (n,))
    check_coefficients(op, "h_res", h_res, (*batch, n, n), (n, n))


def check_output(op: str, argument: str, f: Any, x: Any) -> None:
    """Raises ValueError unless ``f`` has the shape and dtype of one of the streams ``x``."""
    check_float(op, argument, f, 1)
    shape = *x.shape[:-2], x.shape[-1]
    if f.shape != shape or f.dtype != x.dtype:
        expected = f"{x.dtype} of shape {shape}, as one stream of x"
        raise bad_input(op, argument, expected, f"{f.dtype} of shape {f.shape}")


def check_count(op: str, argument: str, count: Any) -> int:
    """Raises ValueError unless ``count`` is an int of at least 1."""
    is_integer = isinstance(count, int | np.integer) and not isinstance(count, bool)
    if not is_integer or count < 1:
        raise bad_input(op, argument, "an int of at least 1", repr(count))
    return int(count)


def check_number(op: str, argument: str, value: Any) -> float:
    """Raises ValueError unless ``value`` is a finite number that is not negative."""
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0:
        raise bad_input(op, argument, "a finite number, not negative", repr(value))
    return float(value)
