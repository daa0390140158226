"""The tables of implementations of the ops of hyper-connections, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.custom_gradient import custom_vjp
from pallas_kernels.arguments.mhc import MHCParams, PostInputs
from pallas_kernels.chip import Chip

_STREAMS = (2, 4, 8)
_PROJECTED_STREAMS = 4
_LEAST_WIDTH, _MOST_WIDTH = 64, 8192
# The sizes that were timed: layers and boundaries, forward and backward, against XLA
# (``experiments/benchmarks/results``).
_MEASURED_CAPABILITY = "9.0"
_MEASURED_STREAMS, _LEAST_MEASURED_WIDTH = 4, 512
# An estimate: the layer was timed with 8,192 tokens and more. Under ``jax.vmap`` over tokens an op
# gets one token, for which a kernel would have its own block.
_LEAST_TOKENS = 1024


def plain(name: str, reference: Callable[..., Any]) -> dispatch.Kernel:
    """A table with the reference as its only implementation, ``"xla"``."""
    return dispatch.Kernel(name, {"xla": dispatch.xla(reference, scatters=False)})


def of_streams(
    name: str, reference: Callable[..., Any], mosaic: Callable[..., Any]
) -> dispatch.Kernel:
    """The reference and a Mosaic GPU kernel, for functions of streams without a projection."""
    dtypes = ("float32", "bfloat16")
    return _with_mosaic(name, reference, mosaic, dtypes, stream_limits, _unmeasured_streams)


def of_projections(
    name: str, reference: Callable[..., Any], mosaic: Callable[..., Any]
) -> dispatch.Kernel:
    """The reference and a Mosaic GPU kernel, for functions of streams and their projection."""
    dtypes = ("bfloat16",)
    return _with_mosaic(name, reference, mosaic, dtypes, projection_limits, _unmeasured_streams)


def of_matrices(
    name: str,
    reference: Callable[..., Any],
    mosaic: Callable[..., Any],
    most_iterations: Callable[[int], int] | None = None,
) -> dispatch.Kernel:
    """The reference and a Mosaic GPU kernel, for functions of matrices of float32.

    Args:
      name: name of the kernel in error messages.
      reference: the function in plain JAX.
      mosaic: the function that calls the kernel.
      most_iterations: the largest number of iterations for a number of streams, None for any.
    """
    limits = partial(_matrix_limits, most_iterations)
    return _with_mosaic(name, reference, mosaic, ("float32",), limits, _unmeasured_matrices)


def _with_mosaic(name, reference, mosaic, dtypes, limits, unmeasured) -> dispatch.Kernel:
    """A table of which ``None`` chooses the Mosaic GPU kernel where it was measured."""
    return dispatch.Kernel(
        name,
        {
            "xla": dispatch.xla(reference, scatters=False),
            "pallas": dispatch.pallas(mosaic, dtypes=dtypes, limits=limits, not_worth=unmeasured),
        },
        preference={"cpu": ("xla",), "cuda": ("pallas", "xla")},
    )


def with_backward(
    forward: dispatch.Kernel, backward: dispatch.Kernel, *, saves: bool = False
) -> Callable[..., Any]:
    """``forward`` with the gradients of ``backward``.

    Args:
      forward: the kernel of the value.
      backward: the kernel of the gradients to the inputs. It gets the inputs, what the forward pass
        saved, and the gradient of the result.
      saves: whether ``forward`` returns a pair, the result and what ``backward`` needs.

    Returns:
      ``run(request, options, *inputs)``, with the options as names and values.
    """

    @partial(custom_vjp, nondiff_argnums=(0, 1))
    def run(request, options, *inputs):
        results = forward(request, *inputs, **dict(options))
        return results[0] if saves else results

    def run_forward(request, options, *inputs):
        if not saves:
            return run(request, options, *inputs), inputs
        y, saved = forward(request, *inputs, **dict(options))
        return y, (*inputs, saved)

    def run_backward(request, options, residuals, dy):
        gradients = backward(request, *residuals, dy, **dict(options))
        return gradients if isinstance(gradients, tuple) else (gradients,)

    run.defvjp(run_forward, run_backward)
    return run


def stream_limits(x: Any, *arrays: Any, **options: Any) -> str | None:
    """The reason why kernels do not support the streams ``x``, or None."""
    del arrays, options
    n, dim = x.shape[-2:]
    return _count_limits(n) or _width_limits(dim)


def projection_limits(x: Any, *arrays: Any, **options: Any) -> str | None:
    """The reason why kernels do not support the streams ``x`` and their projection, or None."""
    del options
    x = x.x if isinstance(x, PostInputs) else x
    n, dim = x.shape[-2:]
    if n != _PROJECTED_STREAMS:
        return f"needs {_PROJECTED_STREAMS} streams, got {n}"
    if x.dtype.name != "bfloat16":
        return f"needs bfloat16 values, got {x.dtype.name}"
    reason = _width_limits(dim)
    if reason is None and arrays and isinstance(arrays[0], MHCParams):
        rows, actual = n * n + 2 * n, arrays[0].phi.shape[0]
        if actual != rows:
            reason = f"needs phi of {rows} rows for {n} streams, got {actual}"
    return reason or dispatch.no_warpgroup_products()


def _width_limits(dim: int) -> str | None:
    if dim % _LEAST_WIDTH == 0 and 0 < dim <= _MOST_WIDTH:
        return None
    return f"needs a width that is a multiple of {_LEAST_WIDTH} up to {_MOST_WIDTH}, got {dim}"


def _count_limits(n: int) -> str | None:
    return None if n in _STREAMS else f"needs 2, 4 or 8 streams, got {n}"


def _matrix_limits(most_iterations, logits: Any, *arrays: Any, **options: Any) -> str | None:
    del arrays
    n = logits.shape[-1]
    reason = _count_limits(n)
    if reason is None and most_iterations and options["iterations"] > most_iterations(n):
        most, actual = most_iterations(n), options["iterations"]
        reason = f"needs at most {most} iterations of {n} streams, got {actual}"
    return reason


def _unmeasured_streams(x: Any, *arrays: Any, **options: Any) -> str | None:
    """The reason if kernels were not timed with streams like ``x``, or None."""
    del arrays, options
    x = x.x if isinstance(x, PostInputs) else x
    n, dim = x.shape[-2:]
    if (n, x.dtype.name) == (_MEASURED_STREAMS, "bfloat16") and dim >= _LEAST_MEASURED_WIDTH:
        return _unmeasured_chip() or _few_tokens(x)
    measured = f"{_MEASURED_STREAMS} streams of bfloat16 from {_LEAST_MEASURED_WIDTH} wide on"
    return f"was measured with {measured}, got {n} of {x.dtype.name}, {dim} wide"


def _unmeasured_matrices(logits: Any, *arrays: Any, **options: Any) -> str | None:
    del arrays, options
    n = logits.shape[-1]
    if n == _MEASURED_STREAMS:
        return _unmeasured_chip() or _few_tokens(logits)
    return f"was measured with {_MEASURED_STREAMS} streams, got {n}"


def _unmeasured_chip() -> str | None:
    capability = Chip.current().capability
    if capability == _MEASURED_CAPABILITY:
        return None
    return f"was measured with compute capability {_MEASURED_CAPABILITY}, got {capability}"


def _few_tokens(x: Any) -> str | None:
    tokens = math.prod(x.shape[:-2])
    if tokens >= _LEAST_TOKENS:
        return None
    return f"is taken from {_LEAST_TOKENS} tokens on, got {tokens}"
