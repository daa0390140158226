"""Costs of equations on the current device: bytes and products, at speeds measured once."""

from __future__ import annotations

import functools
import timeit
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxgnn.fusion.program import Equation, Program
from jaxgnn.fusion.rewrite import flops_of, nbytes

# Bytes of the array that is copied, and rows of the matrices that are multiplied: larger than the
# caches of a CPU, and enough work for a GPU.
_COPIED = {"cpu": 1 << 25, "gpu": 1 << 28}
_ROWS = {"cpu": 768, "gpu": 4096}


@dataclass(frozen=True)
class Speeds:
    """Speeds of a device.

    Attributes:
      bytes_per_second: speed of reads and writes of a long copy.
      flops_per_second: speed of a product of large float32 matrices, in the session's precision.
      launch_seconds: time of the smallest program.
    """

    bytes_per_second: float
    flops_per_second: float
    launch_seconds: float

    def seconds(self, num_bytes: float, flops: float = 0.0, launches: int = 1) -> float:
        """The time of a kernel that the slower of memory and arithmetic limits."""
        work = max(num_bytes / self.bytes_per_second, flops / self.flops_per_second)
        return work + launches * self.launch_seconds


def measured_speeds() -> Speeds:
    """The speeds of the default device, measured at the first call, in some tenths of a second."""
    return _measured(jax.devices()[0])


@functools.lru_cache(maxsize=16)
def _measured(device: Any) -> Speeds:
    kind = device.platform if device.platform in _COPIED else "gpu"
    with jax.ensure_compile_time_eval(), jax.default_device(device):
        array = jnp.ones(_COPIED[kind] // 4, jnp.float32)
        matrix = jnp.ones((_ROWS[kind], _ROWS[kind]), jnp.float32)
        launch = _least_seconds(lambda x: x + 1, array[:1])
        copy = _least_seconds(lambda x: x + 1, array)
        product = _least_seconds(jnp.dot, matrix, matrix)
    return Speeds(
        bytes_per_second=2 * array.nbytes / max(copy - launch, 1e-9),
        flops_per_second=2 * _ROWS[kind] ** 3 / max(product - launch, 1e-9),
        launch_seconds=launch,
    )


def _least_seconds(function: Callable[..., Any], *arrays: Any) -> float:
    compiled = jax.jit(function)
    jax.block_until_ready(compiled(*arrays))
    times = timeit.repeat(lambda: jax.block_until_ready(compiled(*arrays)), number=1, repeat=5)
    return min(times)


# Primitives that XLA fuses with the operations that read them: no launch, no reads of their own.
# fmt: off
_JOINS_OTHERS = frozenset((
    "abs", "add", "add_any", "and", "broadcast_in_dim", "clamp", "convert_element_type", "copy",
    "cos", "custom_jvp_call", "div", "eq", "erf", "exp", "exp2", "expand_dims", "expm1", "ge", "gt",
    "integer_pow", "iota", "is_finite", "le", "log", "log1p", "logistic", "lt", "max", "min", "mul",
    "ne", "neg", "not", "or", "pow", "reshape", "rsqrt", "select_n", "sign", "sin", "slice",
    "sqrt", "square", "squeeze", "stop_gradient", "sub", "tanh", "transpose", "xor",
))
# fmt: on


def seconds_of(equation: Equation, speeds: Speeds) -> float:
    """The time that an equation takes, estimated from its bytes and products."""
    written = nbytes(*equation.outvars)
    if not has_own_kernel(equation):
        return speeds.seconds(written, launches=0)
    return speeds.seconds(written + nbytes(*equation.invars), flops_of(equation))


def has_own_kernel(equation: Equation) -> bool:
    """Whether XLA computes an equation in its own kernel, not fused with later equations."""
    return equation.primitive.name not in _JOINS_OTHERS


def seconds_of_program(program: Program, speeds: Speeds) -> float:
    """The time that all equations of a program take."""
    return sum(seconds_of(e, speeds) for e in program.equations)
