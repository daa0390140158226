"""Costs of equations on the current device: bytes and products, at speeds measured once."""

from __future__ import annotations

import functools
import timeit
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxgnn.fusion.program import Equation, Program
from jaxgnn.fusion.rewrite import Applied, flops_of, nbytes

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
      platform: the kind of device, ``"cpu"`` or ``"gpu"``.
    """

    bytes_per_second: float
    flops_per_second: float
    launch_seconds: float
    platform: str = "cpu"

    def seconds(self, num_bytes: float, flops: float = 0.0, launches: int = 1) -> float:
        """The time of a kernel that the slower of memory and arithmetic limits."""
        work = max(num_bytes / self.bytes_per_second, flops / self.flops_per_second)
        return work + launches * self.launch_seconds


# Times of the replaced and of the new code of a rewrite, as multiples of the time that a copy of
# the bytes takes that its rule counts; products of matrices take their own time. XLA's gathers and
# scatters are slower than a copy, and what it computes within a loop is not read at all.
# `python -m experiments.benchmarks.fuse_rules` measures them: the CPU's are those of two cores,
# where gathers of neighbours far apart take up to twice as long as of those nearby. A kind that is
# not listed has the factor one.
_FACTORS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "cpu": {
        "neighbour_sum: spmm": (0.65, 0.3),
        "neighbour_sum: maxk_spmm": (1.3, 1.3),
        "neighbour_sum: segment_softmax and spmm": (1.2, 1.0),
        "neighbour_sum: gat_attention": (1.65, 0.4),
        "neighbour_sum: dot_attention": (1.7, 1.0),
        "neighbour_sum: gatv2_attention": (1.7, 1.0),
        "neighbour_list: spmm": (0.6, 0.3),
        "neighbour_list: neighbour_reduce": (0.4, 0.6),
        "neighbour_extreme: neighbour_reduce": (0.55, 0.6),
        "sparse_product: spmm": (0.65, 0.3),
        "known_matrix: spmm": (1.0, 0.3),
        "segments: aggregate": (0.6, 1.5),
        "segment_softmax: segment_softmax": (1.0, 4.0),
        "edge_mlp: edge_mlp_aggregate": (0.4, 1.0),
        "edge_projection: products": (1.0, 1.1),
        "edge_sum: sums by nodes": (0.5, 1.0),
    },
    "gpu": {},
}


def predicted_seconds(one: Applied, speeds: Speeds) -> tuple[float, float]:
    """The times of the replaced and of the new code of a rewrite, forward.

    Args:
      one: an applied rewrite.
      speeds: speeds of the device.
    """
    before, after = _FACTORS.get(speeds.platform, {}).get(one.kind, (1.0, 1.0))
    return (
        _seconds(before * one.bytes_before, one.flops_before, speeds),
        _seconds(after * one.bytes_after, one.flops_after, speeds),
    )


def _seconds(num_bytes: float, flops: float, speeds: Speeds) -> float:
    """The time of several kernels, of which some move bytes and others multiply matrices."""
    moved = num_bytes / speeds.bytes_per_second + flops / speeds.flops_per_second
    return moved + speeds.launch_seconds


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
        platform=kind,
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
