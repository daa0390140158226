"""Shared parts of the benchmarks of linear layers: bytes, inputs, and layers without our ops."""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks._baselines import to_torch, torch_call, torch_here, wait_for_torch
from experiments.benchmarks._cases import (
    DIRECTIONS,
    Candidate,
    Case,
    Differentiable,
    implementations,
)
from experiments.benchmarks._workloads import Rows, input_sets
from jaxgnn import ops

# The backward passes need results of the forward passes, so they are timed together.
LAYER_DIRECTIONS = ("forward", "forward+backward")
# x and y; then x, dy and dx.
_PASSES = {"forward": 2, "forward+backward": 5}
# The product; then the products for dx and for the gradient of the kernel.
_PRODUCTS = {"forward": 1, "forward+backward": 3}
_JAX_ACTIVATIONS = {"relu": jax.nn.relu, "gelu": jax.nn.gelu}
_PARTS = "bf16x3"
_CUBLASLT = {"xla_gpu_enable_cublaslt": True}


def bytes_moved(direction: str, *, rows: int, dim: int, itemsize: int = 2) -> int:
    """Bytes of the rows, once for each pass that has to read or write them, without parameters.

    Args:
      direction: ``"forward"`` (x in, y out) or ``"forward+backward"`` (then x and dy in, dx out).
      rows: number of rows.
      dim: width of input and output.
      itemsize: bytes of a feature.

    Raises:
      KeyError: if there is no such direction.
    """
    return _PASSES[direction] * rows * dim * itemsize


def flops(direction: str, *, rows: int, features: Sequence[int]) -> int:
    """Multiplications and additions of the products; recomputation does not count.

    Args:
      direction: ``"forward"`` or ``"forward+backward"``.
      rows: number of rows.
      features: widths of the input, the hidden layers and the output.
    """
    return _PRODUCTS[direction] * sum(2 * rows * a * b for a, b in pairwise(features))


@dataclass(frozen=True)
class Layers:
    """One layer with its activation, or several with activations between them.

    Attributes:
      op: ``"fused_linear"`` or ``"fused_mlp"``.
      activation: ``"relu"``, or ``"gelu"`` in its tanh form.
    """

    op: str
    activation: str

    def inputs(self, rows: int, features: Sequence[int], dtype: str) -> list[tuple]:
        """Random sets of ``(None, (x, kernels, biases), dy)``, of order one except ``dy``."""
        # Behind a relu half of the products are zero; gradients of kernels are sums over the rows.
        scales = [(2 / a) ** 0.5 for a in features[:-1]]
        forms = [((rows, features[0]), 1.0), ((rows, features[-1]), rows**-0.5)]
        forms += list(zip(pairwise(features), scales, strict=True))
        forms += [((width,), 0.1) for width in features[1:]]
        ends = np.cumsum([math.prod(shape) for shape, _ in forms])

        def make(key):
            # One generator compiles several times faster than a separate one for each array.
            parts = jnp.split(jax.random.normal(key, (int(ends[-1]),)), ends[:-1])
            x, dy, *parameters = (
                (scale * part).reshape(shape).astype(dtype)
                for part, (shape, scale) in zip(parts, forms, strict=True)
            )
            count = len(features) - 1
            return (x, tuple(parameters[:count]), tuple(parameters[count:])), dy

        return [(None, *arrays) for arrays in input_sets(make)]

    def ours(self, implementation: ops.Name | None, precision: str | None = None) -> Differentiable:
        """Runs the fused op of this library."""
        options: dict[str, Any] = {"activation": self.activation, "precision": precision}
        options["implementation"] = implementation
        if self.op == "fused_mlp":
            return lambda _, arrays: (ops.fused_mlp(*arrays, **options), None)

        def linear(_, arrays):
            x, (kernel,), (bias,) = arrays
            return ops.fused_linear(x, kernel, bias, **options), None

        return linear

    def plain(self, _, arrays) -> tuple[jax.Array, None]:
        """Runs plain JAX code, in which every result is rounded to the dtype of the features."""
        x, kernels, biases = arrays
        for place, (kernel, bias) in enumerate(zip(kernels, biases, strict=True)):
            x = x @ kernel + bias
            if self.has_activation(place, len(kernels)):
                x = _JAX_ACTIVATIONS[self.activation](x)
        return x, None

    def has_activation(self, place: int, count: int) -> bool:
        """Whether an activation follows this one of ``count`` layers."""
        return self.op == "fused_linear" or place + 1 < count

    def torch(self, x, *parameters) -> Any:
        """Runs the same in torch: ``parameters`` are weights, [out, in] in torch, and biases."""
        functional = importlib.import_module("torch.nn.functional")
        activations = {
            "relu": functional.relu,
            "gelu": partial(functional.gelu, approximate="tanh"),
        }
        weights, biases = parameters[: len(parameters) // 2], parameters[len(parameters) // 2 :]
        for place, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            x = functional.linear(x, weight, bias)
            if self.has_activation(place, len(weights)):
                x = activations[self.activation](x)
        return x


def cases(layers: Layers, workload: Rows, count: int) -> Iterator[Case]:
    """Yields a case for every dtype and direction.

    Args:
      layers: the layers that are timed.
      workload: number of rows, and width.
      count: number of layers, each as wide as the rows.
    """
    features = (workload.dim,) * (count + 1)
    for dtype in workload.dtypes:
        inputs = layers.inputs(workload.nodes, features, dtype)
        for direction in LAYER_DIRECTIONS:
            sizes = {"rows": workload.nodes, "dim": workload.dim}
            yield Case(
                op=layers.op,
                workload=_named(workload, layers.activation),
                direction=direction,
                dtype=dtype,
                nbytes=bytes_moved(direction, **sizes, itemsize=jnp.dtype(dtype).itemsize),
                candidates=candidates(layers, direction, inputs),
                flops=flops(direction, rows=workload.nodes, features=features),
                kernels=True,
            )


def _named(workload: Rows, activation: str) -> Rows:
    """Returns the name of a row, which omits the activation relu."""
    suffix = "" if activation == "relu" else f" {activation}"
    return replace(workload, name=workload.name + suffix)


def candidates(layers: Layers, direction: str, inputs: list[tuple]) -> dict[str, Candidate]:
    """The implementations; ``None``, as ``auto``; the plain layers, compiled in two ways; torch.

    Forward also includes a copy of the rows, which no layer can beat. For float32 on a GPU each
    implementation is timed a second time with ``precision="bf16x3"``.
    """
    plain = DIRECTIONS[direction](layers.plain)
    return {
        **implementations(layers.ours, direction, inputs),
        **_with_parts(layers, direction, inputs),
        "auto": Candidate(DIRECTIONS[direction](layers.ours(None)), inputs),
        "plain": Candidate(plain, inputs),
        **{f"plain {name}": made for name, made in with_cublaslt(plain, inputs).items()},
        **torch_layers(layers, direction, inputs),
        **({"copy": Candidate(_copy, inputs)} if direction == "forward" else {}),
    }


def _copy(_, arrays, dy) -> jax.Array:
    """Copies the rows with a copy operation of the device."""
    del dy
    return jnp.copy(arrays[0])


def _with_parts(layers: Layers, direction: str, inputs: list[tuple]) -> dict[str, Candidate]:
    """The implementations with products of bfloat16 parts, for float32 on a GPU."""
    _, (x, _, _), _ = inputs[0]
    if jax.default_backend() == "cpu" or x.dtype != jnp.float32:
        return {}
    made = implementations(partial(layers.ours, precision=_PARTS), direction, inputs)
    return {f"{name} {_PARTS}": candidate for name, candidate in made.items()}


def with_cublaslt(plain: Callable, inputs: list[tuple]) -> dict[str, Candidate]:
    """``cublaslt``: plain layers on a GPU, compiled to fuse bias and activation into products."""
    if jax.default_backend() == "cpu" or not knows_cublaslt():
        return {}
    compiled = jax.jit(plain, compiler_options=_CUBLASLT)
    return {"cublaslt": Candidate(compiled, inputs, jit=False)}


@cache
def knows_cublaslt() -> bool:
    """Whether this release of XLA has the option; prints once if not."""
    try:
        jax.jit(jnp.negative, compiler_options=_CUBLASLT).lower(0.0).compile()
    except jax.errors.JaxRuntimeError as error:
        print(f"no rows of plain cublaslt: {error}", flush=True)
        return False
    return True


@contextlib.contextmanager
def with_plain_layers() -> Iterator[None]:
    """Context manager in which traced linear layers are plain JAX code."""

    def fused_linear(x, kernel, bias=None, *, activation=None, **options):
        del options
        z = x @ kernel if bias is None else x @ kernel + bias
        if isinstance(activation, ops.MaxK):
            return ops.maxk(z, activation.k, by=activation.by)
        return z if activation is None else _JAX_ACTIVATIONS[activation](z)

    def fused_mlp(x, kernels, biases, *, activation=None, **options):
        for kernel, bias in zip(kernels[:-1], biases[:-1], strict=True):
            x = fused_linear(x, kernel, bias, activation=activation)
        return fused_linear(x, kernels[-1], biases[-1])

    with (
        mock.patch.object(ops, "fused_linear", fused_linear),
        mock.patch.object(ops, "fused_mlp", fused_mlp),
    ):
        yield


def traced_with(context: Callable, function: Callable) -> Callable:
    """Returns the function, traced within a context manager."""

    @functools.wraps(function)
    def run(*arguments):
        with context():
            return function(*arguments)

    return run


def torch_layers(layers: Layers, direction: str, inputs: list[tuple]) -> dict[str, Candidate]:
    """Eager torch, one kernel at a time; no candidate where torch is not installed."""
    if torch_here() is None:
        return {}
    calls = []
    for _, (x, kernels, biases), dy in inputs:
        weights = [to_torch(kernel).T.contiguous() for kernel in kernels]
        leaves = [to_torch(x), *weights, *map(to_torch, biases)]
        calls.append((with_tf32(torch_call(direction, layers.torch, leaves, to_torch(dy))),))
    return {"torch": Candidate(lambda call: call(), calls, jit=False, wait=wait_for_torch)}


def torch_arrays(result: Any) -> list[np.ndarray]:
    """Converts the results of a ``torch_layers`` candidate to float32, in the order of ours."""
    y, (dx, *parameters) = result if isinstance(result, tuple) else (result, (None,))
    gradients = [dx, *(p.T if p.ndim == 2 else p for p in parameters)]
    return [array.float().cpu().numpy() for array in (y, *gradients) if array is not None]


def with_tf32(call: Callable[[], Any]) -> Callable[[], Any]:
    """Computes float32 products on a GPU in TF32, which is XLA's default."""
    if jax.default_backend() == "cpu" or jax.config.jax_default_matmul_precision == "highest":
        return call
    torch = importlib.import_module("torch")

    def with_tf32():
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            return call()
        finally:
            torch.set_float32_matmul_precision(before)

    return with_tf32
