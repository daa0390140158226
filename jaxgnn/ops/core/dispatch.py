"""Chooses the implementation that runs: the only dispatch code of the library.

An op consists of kernels: one for the forward pass and those that the backward pass needs. Each
``Kernel`` is a table of implementations. A named implementation runs or raises. ``None`` chooses,
per platform, the first of the kernel's preference that supports the arguments, and always works.
The choice is a ``Plan``, made once and then called, or passed on to where it is called.
"""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxgnn import _ffi
from jaxgnn._arrays.arrays import empty_like
from jaxgnn._arrays.arrays import match_varying as match_varying
from jaxgnn._derivatives.call import with_derivative_of
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph
from jaxgnn.ops.core import verify as verification
from jaxgnn.ops.core.eager import runs_now
from jaxgnn.ops.core.kernel_programs import identity_of
from jaxgnn.ops.core.one_platform import on_a_gpu
from jaxgnn.ops.core.settings import ThreadSetting
from pallas_kernels.chip import Chip

Name = Literal["xla", "pallas", "ffi"]
"""Implementations: plain JAX, Pallas kernels, and compiled C++ or CUDA kernels."""
Platform = Literal["cpu", "cuda"]

_default_implementation = ThreadSetting[Name | None](None)
_deterministic = ThreadSetting(False)


def default_implementation(name: Name | None):
    """Context manager: the implementation that ops use when they are given ``None``.

    An implementation given by name never falls back to another one. The setting is part of
    ``jax.jit``'s cache key: a function traced under another setting is traced again.

    It holds for the thread: for all that it runs before the block ends, so also for other tasks of
    asyncio while the block awaits, and not for other threads.

    Args:
      name: ``"xla"``, ``"pallas"``, ``"ffi"``, or None for the fastest one that was measured.

    Raises:
      ValueError: if there is no such implementation.
    """
    _require_name("default_implementation", name)
    return _default_implementation.block(name)


def deterministic(enabled: bool = True):
    """Context manager: results and gradients are equal to the last bit from run to run.

    Without a name, an implementation that does not guarantee this on the current platform is
    skipped; with its name it raises. On a CPU every implementation is deterministic.

    It holds for the thread: for all that it runs before the block ends, so also for other tasks of
    asyncio while the block awaits, and not for other threads.
    """
    return _deterministic.block(bool(enabled))


class Request(NamedTuple):
    """The options of an op's call, passed from its forward to its backward pass.

    Attributes:
      name: name of the implementation, None for the fastest.
      deterministic: whether results have to be equal to the last bit.
      verify: how results are compared with the reference.
    """

    name: Name | None
    deterministic: bool
    verify: verification.Setting

    @contextlib.contextmanager
    def settings(self) -> Iterator[None]:
        """Sets the modes, for choosing and running a kernel."""
        with _deterministic.nested(self.deterministic), verification.using(self.verify):
            yield


def resolve(op: str, implementation: Name | None) -> Request:
    """The request of an op's call: its argument, else the session default, and the modes."""
    _require_name(op, implementation)
    name = requested_implementation(implementation)
    return Request(name, _deterministic.value, verification.setting())


def requested_implementation(implementation: Name | None) -> Name | None:
    """The implementation to use: the argument, else the session default."""
    return _default_implementation.value if implementation is None else implementation


def _require_name(where: str, name: str | None) -> None:
    if name is not None and name not in get_args(Name):
        expected = "None or one of " + ", ".join(get_args(Name))
        raise bad_input(where, "implementation", expected, repr(name))


def _always(*args: Any, **options: Any) -> None:
    """Returns None for any arguments: there is no limit."""


@dataclass(frozen=True, eq=False)
class Implementation:
    """One way to run a kernel.

    Attributes:
      runs: ``run(*args, **options)`` for each platform where it runs; args are pytrees of arrays,
        options are static.
      unsupported: ``unsupported(platform, *args, **options)``: the reason why it can not run these
        arguments, or None. Called before ``run`` is traced.
      deterministic_on: platforms where two runs give equal bits.
      missing: the reason why it can not run anything on a platform (not compiled, say), or None.
      not_worth: ``not_worth(*args, **options)``: the reason why ``None`` skips it although it
        could run these, or None.
      tolerance: ``tolerance(*args, **options)``: the difference that ``jaxgnn.verify`` allows,
        relative to the largest entry; None for the tolerance of the dtype.
    """

    runs: Mapping[Platform, Callable[..., Any]]
    unsupported: Callable[..., str | None] = _always
    deterministic_on: tuple[Platform, ...] = ("cpu", "cuda")
    missing: Callable[[Platform], str | None] = _always
    not_worth: Callable[..., str | None] = _always
    tolerance: Callable[..., float | None] = _always

    @property
    def platforms(self) -> tuple[Platform, ...]:
        """The platforms that this implementation runs on."""
        return tuple(self.runs)


def ffi(
    *,
    dtypes: tuple[str, ...],
    cpu: Callable[..., Any],
    cuda: Callable[..., Any] | None = None,
    limits: Callable[..., str | None] = _always,
    cuda_limits: Callable[..., str | None] = _always,
    tolerance: Callable[..., float | None] = _always,
) -> Implementation:
    """Compiled kernels for features of ``dtypes``, where their libraries were built.

    Those of a CPU were compiled at install time; CUDA kernels are compiled when first used.

    Args:
      dtypes: names of the dtypes of features.
      cpu: runs the kernel of the CPU library.
      cuda: runs the CUDA kernel, or None if there is none.
      limits: returns the reason why no kernel can run these arguments, or None.
      cuda_limits: returns the reason why the CUDA kernel can not run these arguments, or None.
      tolerance: returns the difference that ``jaxgnn.verify`` allows, relative to the largest
        entry; None for the tolerance of the dtype.
    """

    def unsupported(platform: Platform, *args: Any, **options: Any) -> str | None:
        # A library reads leading sizes at run time; sizes of graphs must be known before.
        reason = _other_dtype(dtypes, args) or unknown_size(args, leading=False)
        reason = limits(*args, **options) if reason is None else reason
        if reason is None and platform == "cuda":
            reason = cuda_limits(*args, **options)
        return reason

    runs: dict[Platform, Callable[..., Any]] = {"cpu": cpu}
    if cuda is not None:
        runs["cuda"] = cuda
    return Implementation(runs, unsupported, missing=_ffi.why_missing, tolerance=tolerance)


def pallas(
    run: Callable[..., Any],
    *,
    dtypes: tuple[str, ...],
    limits: Callable[..., str | None] = _always,
    not_worth: Callable[..., str | None] = _always,
    tolerance: Callable[..., float | None] = _always,
) -> Implementation:
    """Mosaic GPU kernels for features of ``dtypes``, which are not compiled at install time.

    Args:
      run: calls the kernel.
      dtypes: names of the dtypes of features.
      limits: returns the reason why the kernel can not run these arguments, or None.
      not_worth: returns the reason why the kernel is slower with these arguments than the next
        implementation, or None.
      tolerance: returns the difference that ``jaxgnn.verify`` allows, relative to the largest
        entry; None for the tolerance of the dtype.
    """

    def unsupported(platform: Platform, *args: Any, **options: Any) -> str | None:
        reason = _other_dtype(dtypes, args) or unknown_size(args)
        return limits(*args, **options) if reason is None else reason

    runs: dict[Platform, Callable[..., Any]] = {"cuda": run}
    return Implementation(
        runs, unsupported, missing=no_mosaic_gpu, not_worth=not_worth, tolerance=tolerance
    )


def _other_dtype(dtypes: tuple[str, ...], args: Any) -> str | None:
    """The reason if features are of none of these dtypes."""
    # Arrays of a graph are coefficients, which every implementation casts for its sums.
    features = [argument for argument in args if not isinstance(argument, CSRGraph)]
    for leaf in jax.tree.leaves(features):
        # float32 arrays may accompany shorter features, such as the weights of edges.
        name = _floating_name(leaf.dtype)
        if name not in (*dtypes, "float32", None):
            return f"needs {' or '.join(dtypes)} values, got {name}"
    return None


@functools.cache
def _floating_name(dtype: Any) -> str | None:
    """Returns the name of a floating dtype, and None for other dtypes."""
    return dtype.name if jnp.issubdtype(dtype, jnp.floating) else None


def unknown_size(args: Any, *, leading: bool = True) -> str | None:
    """The reason if a size is known only when an exported program is called, or None.

    Args:
      args: pytrees of arrays.
      leading: whether leading axes of arrays count, not only the sizes of graphs.
    """
    for argument in args:
        first = 0 if leading or isinstance(argument, CSRGraph) else -1
        for leaf in jax.tree.leaves(argument):
            types = set(map(type, leaf.shape[first:]))
            if types - {int} and any(map(jax.export.is_symbolic_dim, leaf.shape[first:])):
                return f"needs sizes that are known when it is traced, got {list(leaf.shape)}"
    return None


@functools.cache
def no_mosaic_gpu(platform: Platform) -> str | None:
    """The reason why Mosaic GPU kernels do not run here, except for a missing GPU; or None."""
    try:
        import pallas_kernels.simt  # noqa: F401
    except ImportError as error:
        return f"needs a jaxlib with Mosaic GPU: {error}"
    chip = Chip.current()
    if chip.generation >= 9:
        return None
    return f"needs a GPU of compute capability 9.0 or higher, got {chip.capability or 'none'}"


def no_warpgroup_products() -> str | None:
    """The reason why this GPU lacks the tensor cores of compute capability 9.0; None if it has."""
    capability = Chip.current().capability
    if capability == "9.0":
        return None
    return f"needs a GPU of compute capability 9.0, got {capability}"


def xla(
    run: Callable[..., Any], *, scatters: bool = True, cuda: Callable[..., Any] | None = None
) -> Implementation:
    """The reference as an implementation; a scatter has no fixed order of summation on a GPU.

    Args:
      run: the reference.
      scatters: whether the reference has scatters.
      cuda: the reference with the roundings of a GPU's libraries, or None to also use ``run`` on a
        GPU. Verification always compares with ``run``.
    """
    runs: dict[Platform, Callable[..., Any]] = {"cpu": run, "cuda": cuda or run}
    return Implementation(runs, deterministic_on=("cpu",) if scatters else ("cpu", "cuda"))


def is_deterministic() -> bool:
    """Whether the op that is being traced has to be deterministic."""
    return _deterministic.value


_PREFERENCE: Mapping[Platform, tuple[Name, ...]] = {
    "cpu": ("ffi", "xla"),
    "cuda": ("pallas", "ffi", "xla"),
}


@dataclass(frozen=True, eq=False)
class Kernel:
    """A named computation and the table of its implementations.

    Attributes:
      name: name of the kernel in error messages, for example ``"spmm"``.
      implementations: the implementations by name; ``"xla"`` is always present.
      preference: the order in which ``None`` tries them on each platform.
      formula: the reference, with which verification compares, where ``"xla"`` is plain JAX of
        another kind; None where ``"xla"`` is the reference itself.
    """

    name: str
    implementations: Mapping[Name, Implementation]
    preference: Mapping[Platform, tuple[Name, ...]] = field(default_factory=lambda: _PREFERENCE)
    formula: Callable[..., Any] | None = None

    def of_formula(self) -> Kernel:
        """The kernel with the reference as its only implementation, ``"xla"``."""
        assert self.formula is not None
        return Kernel(self.name, {"xla": xla(self.formula)})

    def plan(self, request: Request, *args: Any, **options: Any) -> Plan:
        """Chooses what runs these arguments, on each platform; the result may be passed on.

        Raises:
          NotImplementedError: if the named implementation, or without a name any, can not run them.
        """
        with request.settings():
            here = current_platform()
            if request.name is None:
                chosen = tuple((p, self.choose(p, *args, **options)) for p in get_args(Platform))
            else:
                reason = self.why_not(request.name, here, *args, **options)
                if reason is not None:
                    raise NotImplementedError(f"{self.name}[{request.name}]: {reason}")
                chosen = ((here, request.name),)
        return Plan(self, request, tuple(sorted(options.items())), chosen)

    def __call__(self, request: Request, *args: Any, **options: Any) -> Any:
        """Runs the named implementation, or for None the first supported one."""
        return self.plan(request, *args, **options)(*args)

    def choose(self, platform: Platform, *args: Any, **options: Any) -> Name:
        """The implementation that ``None`` chooses on ``platform`` for these arguments."""
        reasons = {}
        for name in self.preference[platform]:
            reason = self.why_not(name, platform, *args, **options)
            if reason is None:
                reason = self.implementations[name].not_worth(*args, **options)
            if reason is None:
                return name
            reasons[name] = reason
            # A missing library is an error of the install on a CPU; on a GPU there is Pallas too.
            if platform == current_platform() == "cpu" and name in self.implementations:
                _warn_if_not_installed(self.implementations[name])
        if platform == current_platform():
            listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
            raise NotImplementedError(f"{self.name}: no implementation applies: {listed}")
        return "xla"

    def unavailable(self, name: Name, platform: Platform) -> str | None:
        """Returns why ``name`` never runs on ``platform``; None if it depends on the arguments."""
        entry = self.implementations.get(name)
        if entry is None:
            return f"needs one of the implementations {', '.join(self.implementations)}, got {name}"
        if platform not in entry.platforms:
            return f"needs platform {' or '.join(entry.platforms)}, got {platform}"
        if _deterministic.value and not _is_deterministic(entry, platform):
            return (
                "needs a fixed order of summation under jaxgnn.deterministic(), got scatters on "
                "a GPU; XLA_FLAGS=--xla_gpu_deterministic_ops=true gives XLA one"
            )
        return entry.missing(platform)

    def why_not(self, name: Name, platform: Platform, *args: Any, **options: Any) -> str | None:
        """The reason why ``name`` can not run these arguments on ``platform``; None if it can."""
        reason = self.unavailable(name, platform)
        if reason is not None:
            return reason
        return self.implementations[name].unsupported(platform, *args, **options)


def sparse_kernel(
    name: str,
    dtypes: tuple[str, ...],
    plain: Callable[..., Any],
    mosaic: Callable[..., Any],
    native: Callable[..., Any],
    *,
    scatters: bool = True,
    native_limits: Callable[..., str | None] = _always,
) -> Kernel:
    """Returns a kernel in plain JAX, with Mosaic for GPUs and compiled for a CPU for ``dtypes``."""
    return Kernel(
        name,
        {
            "xla": xla(plain, scatters=scatters),
            "pallas": pallas(mosaic, dtypes=dtypes),
            "ffi": ffi(dtypes=dtypes, cpu=native, limits=native_limits),
        },
    )


class Plan(NamedTuple):
    """The implementations that a call of a kernel runs: chosen once, then called with arrays.

    Plans are equal for equal choices, and static: they hold no array. JAX compares them in each
    call of a gradient, which is fast for tuples.

    Attributes:
      kernel: the kernel.
      request: the options of the op's call.
      options: static options of the kernel, sorted by name.
      chosen: the implementation for each platform; for this one alone if it was named.
    """

    kernel: Kernel
    request: Request
    options: tuple[tuple[str, Any], ...]
    chosen: tuple[tuple[Platform, Name], ...]

    @property
    def here(self) -> Name:
        """The implementation for the current platform."""
        return dict(self.chosen)[current_platform()]

    @property
    def runs_kernels(self) -> bool:
        """Whether any platform has another implementation than ``"xla"``."""
        return any(name != "xla" for _, name in self.chosen)

    def __call__(self, *args: Any) -> Any:
        """Runs the chosen implementation on arguments of the shapes and dtypes of the plan."""
        with self.request.settings():
            if self.request.name is not None or runs_now():  # by the platform of the arrays
                return self._verified(self.here, _compiled_once(self._choice()))(*args)
            fallback = self._branch("xla", current_platform())
            branches = {p: self._branch(name, p) for p, name in self.chosen if name != "xla"}
            return _platform_dependent(fallback, branches, args)

    def _choice(self) -> _Choice:
        here = current_platform()
        if self.request.name is not None:
            of_kernel = self._call("xla", here) if self.request.name == "pallas" else None
            return _Choice(self._call(self.request.name, here), formula=of_kernel)
        kernels = ((p, name) for p, name in self.chosen if name != "xla")
        branches = tuple((p, name, self._call(name, p)) for p, name in kernels)
        return _Choice(self._call("xla", here), branches)

    def _branch(self, name: Name, platform: Platform) -> Callable[..., Any]:
        branch = _branch_of(name, self._call(name, platform), self._call("xla", platform))
        return self._verified(name, branch)

    def _call(self, name: Name, platform: Platform) -> _Call:
        run = self.kernel.implementations[name].runs[platform]
        return _Call(f"{self.kernel.name}[{name}]", run, self.options)

    def _verified(self, name: Name, run: Callable[..., Any]) -> Callable[..., Any]:
        kernel, options = self.kernel, dict(self.options)
        is_reference = name == "xla" and kernel.formula is None
        if is_reference or verification.setting().mode == "off":
            return run
        # The reference in full precision, on every platform.
        exact = options | {"precision": "highest"} if "precision" in options else options
        formula = kernel.formula or kernel.implementations["xla"].runs["cpu"]
        call = _Call(f"{kernel.name}[xla]", formula, tuple(sorted(exact.items())))
        reference = _compiled_once(_Choice(call))
        known = functools.partial(kernel.implementations[name].tolerance, **options)
        return verification.checked(f"{kernel.name}[{name}]", run, reference, known, _most_edges)


class _Call(NamedTuple):
    """The static part of a kernel's call, which holds no array and is equal for equal calls."""

    label: str
    run: Callable[..., Any]
    options: tuple[tuple[str, Any], ...]


class _Choice(NamedTuple):
    """The calls of a kernel: one call, or one for each platform that has a branch.

    Attributes:
      fallback: the call where there is no branch.
      branches: the calls of other implementations.
      formula: the same in plain JAX if ``fallback`` is a Pallas kernel, else None.
    """

    fallback: _Call
    branches: tuple[tuple[Platform, Name, _Call], ...] = ()
    formula: _Call | None = None


def _compiled_once(choice: _Choice) -> Callable[..., Any]:
    """A function that runs ``choice``; outside of ``jit`` equal choices share one program."""
    return functools.partial(_run_compiled if runs_now() else _run_choice, choice)


def _run_choice(choice: _Choice, *args: Any) -> Any:
    plain = choice.fallback
    branches = {platform: _branch_of(name, call, plain) for platform, name, call in choice.branches}
    fallback = functools.partial(_run, choice.fallback)
    if choice.formula is not None:
        fallback = _with_derivative_of(choice.formula, fallback, choice.fallback)
    return _platform_dependent(fallback, branches, args)


_run_compiled = jax.jit(_run_choice, static_argnums=0)


def _branch_of(name: Name, call: _Call, formula: _Call) -> Callable[..., Any]:
    """``call`` for the branch of one platform, in a program that may be lowered for others too.

    A Pallas kernel has the derivatives of ``formula``, which is the same in plain JAX.
    """
    run = functools.partial(_run, call)
    if name != "pallas":
        return run
    # What kernels read beside their arguments.
    settings = (
        is_deterministic(),
        jax.config.jax_default_matmul_precision,
        jax.config.jax_enable_x64,
    )
    kernel = on_a_gpu(
        run, functools.partial(identity_of, call.run, call.label, call.options, settings)
    )
    return _with_derivative_of(formula, kernel, call)


def _with_derivative_of(formula: _Call, run: Callable[..., Any], call: _Call) -> Callable[..., Any]:
    return with_derivative_of(functools.partial(_run, formula), run, call.label)


def _run(call: _Call, *args: Any) -> Any:
    with jax.named_scope(call.label):
        return call.run(*args, **dict(call.options))


def _platform_dependent(
    fallback: Callable[..., Any], branches: Mapping[Platform, Callable[..., Any]], args: Any
) -> Any:
    """Calls ``lax.platform_dependent`` with those arrays as operands that have elements.

    The results of all branches vary over the same mesh axes as the operands. Without this the
    reference's zeros for a graph without edges, which depend on no operand, would not.
    """
    leaves, structure = jax.tree.flatten(args)
    operands = [leaf for leaf in leaves if 0 not in leaf.shape]
    if not branches or not operands:
        return fallback(*args)
    kinds = [jax.typeof(leaf) for leaf in leaves]

    def of_operands(run):
        def whole(*operands):
            rest = iter(operands)
            made = [empty_like(k, operands[0]) if 0 in k.shape else next(rest) for k in kinds]
            results = run(*jax.tree.unflatten(structure, made))
            return jax.tree.map(lambda r: match_varying(r, *operands)[0], results)

        return whole

    of_platforms = {platform: of_operands(run) for platform, run in branches.items()}
    return lax.platform_dependent(*operands, default=of_operands(fallback), **of_platforms)


def _most_edges(*args: Any) -> jax.Array | None:
    """The largest number of edges of a node in the graphs among the arguments."""
    numbers = [jnp.int32(0)]
    for graph in args:
        if isinstance(graph, CSRGraph):
            rows = graph.receivers()
            real = (rows < graph.num_rows).astype(jnp.int32)
            numbers += [jnp.max(jnp.diff(graph.indptr), initial=0).astype(jnp.int32)]
            senders = jax.ops.segment_sum(real, graph.indices, graph.num_cols)
            numbers += [jnp.max(senders, initial=0)]
    return jnp.max(jnp.stack(numbers))


def _warn_if_not_installed(entry: Implementation) -> None:
    """Warns once that a fast path is not used because a compiled library is missing."""
    reason = entry.missing("cpu") if "cpu" in entry.platforms else None
    if reason is not None:
        _warn_once(reason)


@functools.cache
def _warn_once(reason: str) -> None:
    warnings.warn(f"jaxgnn: slow path: {reason}", stacklevel=2)


def _is_deterministic(entry: Implementation, platform: Platform) -> bool:
    flags = os.environ.get("XLA_FLAGS", "").lower().split()
    forced = "--xla_gpu_deterministic_ops=true" in flags or "--xla_gpu_deterministic_ops" in flags
    return platform in entry.deterministic_on or forced


def current_platform() -> Platform:
    """The platform on which an eager op or a ``jit`` runs by default."""
    device = jax.config.jax_default_device
    if device is None:
        name = jax.default_backend()
    else:
        name = device if isinstance(device, str) else device.platform
    return "cuda" if name in ("gpu", "cuda") else "cpu"


def mapped_with(x: jax.Array, other: jax.Array) -> jax.Array:
    """Returns ``x``, but mapped by ``jax.vmap`` wherever ``other`` is, which broadcasts to ``x``.

    ``jax.vmap`` sums the cotangents of each result of a ``custom_vjp`` that it does not map, and
    the backward pass of every member gets that sum instead of its own cotangent. So all results
    have to depend on all arguments. A compiler removes the dependence that is made here.
    """
    return lax.select(np.bool_(True), x, jnp.broadcast_to(other.astype(x.dtype), x.shape))


def vmap_leading(function: Callable[..., Any], batch_dims: int, in_axes: Any):
    """``function`` mapped over ``batch_dims`` leading axes of the arguments that have them."""
    for _ in range(batch_dims):
        function = jax.vmap(function, in_axes=in_axes)
    return function


def over_leading_axes(
    function: Callable[..., Any], axes: int, graph: CSRGraph, *arrays: Any, in_axes: Any = 0
) -> Any:
    """Maps ``function(graph, *arrays)`` over leading axes of the arrays, which share the graph.

    Inside ``shard_map`` the graph and the arrays vary over the same mesh axes.

    Args:
      function: what is computed without leading axes.
      axes: number of leading axes.
      graph: the checked graph.
      *arrays: pytrees of arrays.
      in_axes: 0 for the trees that have the leading axes and None for others, as in ``jax.vmap``.
    """
    shared, *varying = match_varying(graph, *arrays)
    return vmap_leading(functools.partial(function, shared), axes, in_axes)(*varying)
