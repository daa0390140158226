"""Costs of equations on the current device: bytes and products, at speeds measured once."""

from __future__ import annotations

import functools
import math
import timeit
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxgnn.fusion.graphs.preparations import in_order
from jaxgnn.fusion.program.program import Equation, Program, flops_of, nbytes
from jaxgnn.fusion.rules.rule import Rewrite

# Bytes that the replaced code reads and writes, from which a case was faster by platform, forward
# and with gradients; math.inf if it was slower at any size. A case that is not listed is always
# faster. `python -m experiments.benchmarks.fuse_rules` measures each rule alone: the CPU's numbers
# are those of two cores, the GPU's those of an H200, on which calls of less than 0.1 ms cost their
# launches.
_MIB = 1 << 20


_FASTER_FROM: Mapping[str, Mapping[str, float]] = {
    "cpu": {
        "neighbour_sum of narrow weighted rows": math.inf,
        "lists of narrow rows": math.inf,
        "narrow products of a known matrix": math.inf,
        "sums of segments": math.inf,
        "sums of products": math.inf,
        "sums of sorted products": math.inf,
        "neighbour_sum": 4 * _MIB,
        "filtered_sum": 3 * _MIB,
        "filtered_sum by a kernel": 16 * _MIB,
        "gat_attention of narrow rows": math.inf,
        "inner products of narrow rows": 16 * _MIB,
        "neighbour_extreme": 3 * _MIB,
        "sums of sorted segments": math.inf,
        "sums of short floats": math.inf,
        "sums of sorted short floats": math.inf,
        "extremes of segments": math.inf,
        "extremes of sorted segments": math.inf,
        "segment_softmax": math.inf,
        "edge_mlp": _MIB,
        "interaction": _MIB,
        "edge_mlp at both ends": _MIB,
        "edge_projection": _MIB,
        "edge_sum": _MIB,
        "tensor_product_sum": 0.25 * _MIB,  # where the op has a kernel
        "maxk": 0.25 * _MIB,
    },
    "gpu": {
        "neighbour_sum of narrow weighted rows": math.inf,
        "lists of narrow rows": math.inf,
        "sums of segments": math.inf,
        "sums of products": math.inf,
        "sums of sorted products": math.inf,
        "neighbour_sum": 256 * _MIB,
        "filtered_sum": math.inf,
        "filtered_sum by a kernel": math.inf,
        "neighbour_extreme": 256 * _MIB,
        "sums of sorted segments": 512 * _MIB,
        "sums of short floats": 256 * _MIB,
        "sums of sorted short floats": 256 * _MIB,
        "extremes of segments": 256 * _MIB,
        "extremes of sorted segments": 256 * _MIB,
        "segment_softmax": 128 * _MIB,
        "edge_mlp": 64 * _MIB,
        "interaction": 512 * _MIB,
        "edge_mlp at both ends": math.inf,
        "edge_projection": 64 * _MIB,
        "edge_sum": 512 * _MIB,
        "fused_linear": 16 * _MIB,
        "fused_mlp": 32 * _MIB,
        "maxk": _MIB,
    },
}


# Bytes that the reductions over one list of ids, or the gathers by it, read of an edge and in all,
# from which rewrites were faster with a plan of the list made in the step, forward and with
# gradients, by platform. `python -m experiments.benchmarks.fuse_rules --in-step` measures it.
_NEVER = (math.inf, math.inf)


_PLANNED_FROM: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "cpu": {"sort": (256, 8 * _MIB), "mark": (64, _MIB)},
    "gpu": {"sort": _NEVER, "mark": (512, 128 * _MIB)},
}


@dataclass(frozen=True)
class Policy:
    """Decides which sound rewrites are applied."""

    only_if_faster: bool = True  # whether rewrites are refused that were not measured to be faster

    def refuses(self, rewrite: Rewrite, case: str) -> str | None:
        """Returns the reason for refusing a rewrite of a measured case, or None."""
        platform = jax.default_backend()
        least = _FASTER_FROM.get(platform, {}).get(case, 0)
        if not self.only_if_faster:
            return None
        if rewrite.is_what_runs:
            return "the op has no kernel for it that it would choose here"
        if (reason := _refuses_plans(rewrite, platform)) is not None:
            return reason
        if rewrite.bytes_before >= least:
            return None
        if least == math.inf:
            return f"{case} was not measured to be faster on a {platform.upper()}"
        return f"it is faster from {least / 1e6:.3g} MB on"


def _refuses_plans(rewrite: Rewrite, platform: str) -> str | None:
    """The reason why no plan is made of ids when the function runs, or None."""
    table = _PLANNED_FROM.get(platform, {})
    for cost in (plan.cost for plan in in_order(rewrite.plans)):
        if cost is None:
            continue
        reason = f"the ids are known only when it runs; to {cost.kind} them there "
        each, total = table.get(cost.kind, _NEVER)
        if each == math.inf:  # also where the caller wants the plan
            return f"{reason}took longer than it saved on a {platform.upper()}"
        if cost.bytes_per_edge == math.inf:
            continue
        if cost.bytes_per_edge < each:
            got = f"and they are read for {cost.bytes_per_edge:.3g}"
            return f"{reason}pays from {each:.3g} bytes an edge on, {got}"
        if cost.bytes_per_edge * cost.edges < total:
            return f"{reason}pays from {total / 1e6:.3g} MB of rows on"
    return None


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
