"""Which implementation runs: the only dispatch code of the library.

An op consists of kernels (a forward, and what its backward needs). Each ``Kernel`` is a table of
implementations. A named implementation runs or raises; ``None`` takes, per platform, the first of
the kernel's preference that supports the arguments, and always works.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxgnn import _ffi
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph
from jaxgnn.ops import _verify

Name = Literal["xla", "pallas", "ffi"]
Platform = Literal["cpu", "cuda"]

_default_implementation = jax.make_user_context(default_value=None)
_deterministic = jax.make_user_context(default_value=False)


def default_implementation(name: Name | None):
    """Context manager: the implementation that ops use when they are given ``None``.

    As with the argument of an op, a name never falls back. The setting is part of ``jax.jit``'s
    cache key: a function traced under another setting is traced again.

    Args:
      name: ``"xla"``, ``"pallas"``, ``"ffi"``, or None for the fastest that was measured.

    Raises:
      ValueError: if there is no such implementation.
    """
    _require_name("default_implementation", name)
    return _default_implementation(name)


def deterministic(enabled: bool = True):
    """Context manager: results and gradients are equal to the last bit from run to run.

    An implementation that can not promise that on the platform at hand is passed over by
    ``None`` and refused by name. On CPU every implementation is deterministic.
    """
    return _deterministic(bool(enabled))


class Request(NamedTuple):
    """What an op was asked for; goes from its forward to its backward pass.

    Attributes:
      name: the implementation, None for the fastest.
      deterministic: whether results have to repeat to the bit.
      verify: how they are checked.
    """

    name: Name | None
    deterministic: bool
    verify: _verify.Setting


def resolve(op: str, implementation: Name | None) -> Request:
    """What an op was asked for: its argument, else the session default; and the modes."""
    _require_name(op, implementation)
    name = requested_implementation(implementation)
    return Request(name, _deterministic.value, _verify.setting())


def requested_implementation(implementation: Name | None) -> Name | None:
    """What an op with this argument is asked for: the argument, else the session default."""
    return _default_implementation.value if implementation is None else implementation


def _require_name(where: str, name: str | None) -> None:
    if name is not None and name not in get_args(Name):
        expected = "None or one of " + ", ".join(get_args(Name))
        raise bad_input(where, "implementation", expected, repr(name))


def _always(*args: Any, **options: Any) -> None:
    """Supports everything, and says nothing else of it."""


@dataclass(frozen=True)
class Implementation:
    """One way to run a kernel.

    Attributes:
      runs: ``run(*args, **options)`` for each platform where it runs; args are pytrees of arrays,
        options are static.
      unsupported: ``unsupported(platform, *args, **options)``: the reason why it can not run
        these, or None. Asked before tracing ``run``.
      deterministic_on: platforms where two runs give equal bits.
      missing: the reason why it can not run anything on a platform (not compiled, say), or None.
      not_worth: ``not_worth(*args, **options)``: the reason why ``None`` passes over it although it
        could run these, or None.
      tolerance: ``tolerance(*args, **options)``: what ``jaxgnn.verify`` is to allow, of the
        largest entry; None for what the dtype allows.
    """

    runs: Mapping[Platform, Callable[..., Any]]
    unsupported: Callable[..., str | None] = _always
    deterministic_on: tuple[Platform, ...] = ("cpu", "cuda")
    missing: Callable[[Platform], str | None] = _always
    not_worth: Callable[..., str | None] = _always
    tolerance: Callable[..., float | None] = _always

    @property
    def platforms(self) -> tuple[Platform, ...]:
        """Where it runs."""
        return tuple(self.runs)


def ffi(
    *,
    dtypes: tuple[str, ...],
    cpu: Callable[..., Any],
    cuda: Callable[..., Any] | None = None,
    cuda_limits: Callable[..., str | None] = _always,
) -> Implementation:
    """Compiled kernels for features of ``dtypes``, where their libraries were built.

    Args:
      dtypes: names of the dtypes of features.
      cpu: runs the kernel of the CPU library.
      cuda: runs that of the CUDA library, if it has one.
      cuda_limits: the reason why that one can not run these arguments, or None.
    """

    def unsupported(platform: Platform, *args: Any, **options: Any) -> str | None:
        # A library reads the number of rows when it is called; what it cuts them into, it is told.
        reason = _other_dtype(dtypes, args) or unknown_size(args, leading=False)
        if reason is None and platform == "cuda":
            reason = cuda_limits(*args, **options)
        return reason

    runs: dict[Platform, Callable[..., Any]] = {"cpu": cpu}
    if cuda is not None:
        runs["cuda"] = cuda
    return Implementation(runs, unsupported, missing=_ffi.why_missing)


def pallas(
    run: Callable[..., Any],
    *,
    dtypes: tuple[str, ...],
    limits: Callable[..., str | None] = _always,
    not_worth: Callable[..., str | None] = _always,
    tolerance: Callable[..., float | None] = _always,
) -> Implementation:
    """Mosaic GPU kernels for features of ``dtypes``, which need nothing compiled at install time.

    Args:
      run: calls the kernel.
      dtypes: names of the dtypes of features.
      limits: the reason why it can not run these arguments, or None.
      not_worth: the reason why it is slower with these arguments than what comes next, or None.
      tolerance: what ``jaxgnn.verify`` is to allow, None for what the dtype allows.
    """

    def unsupported(platform: Platform, *args: Any, **options: Any) -> str | None:
        reason = _other_dtype(dtypes, args) or unknown_size(args)
        return limits(*args, **options) if reason is None else reason

    runs: dict[Platform, Callable[..., Any]] = {"cuda": run}
    return Implementation(
        runs, unsupported, missing=_no_mosaic_gpu, not_worth=not_worth, tolerance=tolerance
    )


def _other_dtype(dtypes: tuple[str, ...], args: Any) -> str | None:
    """The reason if features are of none of these dtypes."""
    # Those of a graph are coefficients, which every implementation casts to what it sums in.
    features = [argument for argument in args if not isinstance(argument, CSRGraph)]
    for leaf in jax.tree.leaves(features):
        # float32 may stand beside shorter features, such as the weights of edges.
        known = leaf.dtype.name in (*dtypes, "float32")
        if jnp.issubdtype(leaf.dtype, jnp.floating) and not known:
            return f"needs {' or '.join(dtypes)} values, got {leaf.dtype.name}"
    return None


def unknown_size(args: Any, *, leading: bool = True) -> str | None:
    """The reason if a size is known only when an exported program is called, or None.

    Args:
      args: pytrees of arrays.
      leading: whether leading axes count, not only those of graphs.
    """
    for argument in args:
        first = 0 if leading or isinstance(argument, CSRGraph) else -1
        for leaf in jax.tree.leaves(argument):
            if any(jax.export.is_symbolic_dim(size) for size in leaf.shape[first:]):
                return f"needs sizes that are known when it is traced, got {list(leaf.shape)}"
    return None


@functools.cache
def _no_mosaic_gpu(platform: Platform) -> str | None:
    """Why Mosaic GPU kernels do not run here; None if they do, or would if there were a GPU."""
    try:
        import pallas_kernels._simt  # noqa: F401
    except ImportError as error:
        return f"needs a jaxlib with Mosaic GPU: {error}"
    if jax.default_backend() != "gpu":
        return None
    found = str(getattr(jax.local_devices()[0], "compute_capability", "none"))
    major = found.partition(".")[0]
    if major.isdigit() and int(major) >= 9:
        return None
    return f"needs a GPU of compute capability 9.0 or higher, got {found}"


def xla(
    run: Callable[..., Any], *, scatters: bool = True, cuda: Callable[..., Any] | None = None
) -> Implementation:
    """The reference as an implementation; a scatter has no fixed order of summation on a GPU.

    Args:
      run: the reference.
      scatters: whether it has any.
      cuda: the reference with roundings that a GPU's libraries have, if it has them; what is
        verified is compared with ``run``.
    """
    runs: dict[Platform, Callable[..., Any]] = {"cpu": run, "cuda": cuda or run}
    return Implementation(runs, deterministic_on=("cpu",) if scatters else ("cpu", "cuda"))


def is_deterministic() -> bool:
    """Whether the op that is being traced was asked to repeat to the bit."""
    return _deterministic.value


_PREFERENCE: Mapping[Platform, tuple[Name, ...]] = {
    "cpu": ("ffi", "xla"),
    "cuda": ("ffi", "pallas", "xla"),
}


@dataclass(frozen=True)
class Kernel:
    """A named computation and the table of its implementations.

    Attributes:
      name: as in error messages, for example ``"spmm"``.
      implementations: by name; ``"xla"`` is always there.
      preference: the order in which ``None`` tries them on each platform.
    """

    name: str
    implementations: Mapping[Name, Implementation]
    preference: Mapping[Platform, tuple[Name, ...]] = field(default_factory=lambda: _PREFERENCE)

    def __call__(self, request: Request, *args: Any, **options: Any) -> Any:
        """Runs the named implementation, or for None what suits platform and arguments."""
        with _deterministic(request.deterministic), _verify.using(request.verify):
            return self._run(request.name, *args, **options)

    def _run(self, implementation: Name | None, *args: Any, **options: Any) -> Any:
        here = current_platform()
        if implementation is not None:
            reason = self.why_not(implementation, here, *args, **options)
            if reason is not None:
                raise NotImplementedError(f"{self.name}[{implementation}]: {reason}")
            return self._bind(implementation, here, options)(*args)
        chosen = {p: self.choose(p, *args, **options) for p in get_args(Platform)}
        branches = {p: self._bind(n, p, options) for p, n in chosen.items() if n != "xla"}
        fallback = self._bind("xla", here, options)
        if not branches:
            return fallback(*args)
        return lax.platform_dependent(*args, default=fallback, **branches)

    def choose(self, platform: Platform, *args: Any, **options: Any) -> Name:
        """The implementation that ``None`` takes on ``platform`` for these arguments."""
        reasons = {}
        for name in self.preference[platform]:
            reason = self.why_not(name, platform, *args, **options)
            if reason is None:
                reason = self.implementations[name].not_worth(*args, **options)
            if reason is None:
                return name
            reasons[name] = reason
            # A CPU install without its library is a mishap; nvcc is optional on a GPU.
            if platform == current_platform() == "cpu" and name in self.implementations:
                _warn_if_not_installed(self.implementations[name])
        if platform == current_platform():
            listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
            raise NotImplementedError(f"{self.name}: no implementation applies: {listed}")
        return "xla"

    def unavailable(self, name: Name, platform: Platform) -> str | None:
        """Why ``name`` runs nothing at all on ``platform``; None if it depends on the arguments."""
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
        """Why ``name`` can not run these arguments on ``platform``; None if it can."""
        reason = self.unavailable(name, platform)
        if reason is not None:
            return reason
        return self.implementations[name].unsupported(platform, *args, **options)

    def _bind(
        self, name: Name, platform: Platform, options: Mapping[str, Any]
    ) -> Callable[..., Any]:
        label = f"{self.name}[{name}]"
        run = functools.partial(self.implementations[name].runs[platform], **options)
        if name != "xla" and _verify.setting().mode != "off":
            # The formula as it stands, on every platform.
            exact = {**options, "precision": "highest"} if "precision" in options else options
            reference = functools.partial(self.implementations["xla"].runs["cpu"], **exact)
            known = functools.partial(self.implementations[name].tolerance, **options)
            run = _verify.checked(label, run, reference, known, _most_edges)

        def bound(*args):
            with jax.named_scope(label):
                return run(*args)

        return bound


def _most_edges(*args: Any) -> jax.Array | None:
    """How many edges the node has that has most, of the graphs among the arguments."""
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
    """Tells, once, that a fast path is passed over for want of a compiled library."""
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
    """Where an eager op or a ``jit`` without further instructions would run."""
    device = jax.config.jax_default_device
    if device is None:
        name = jax.default_backend()
    else:
        name = device if isinstance(device, str) else device.platform
    return "cuda" if name in ("gpu", "cuda") else "cpu"


def match_varying(*trees: Any) -> tuple[Any, ...]:
    """Inside ``shard_map``, lets all arrays vary over the same mesh axes.

    A kernel needs that of its operands. Done outside of an op's ``custom_vjp``, so that
    differentiating the cast sums the gradients of shared operands over the mesh.
    """
    leaves, structure = jax.tree.flatten(trees)
    varying = [jax.typeof(leaf).mat.varying for leaf in leaves]
    union = frozenset().union(*varying)
    if union:
        leaves = [
            lax.pcast(leaf, tuple(union - own), to="varying") if union - own else leaf
            for leaf, own in zip(leaves, varying, strict=True)
        ]
    return jax.tree.unflatten(structure, leaves)


def mapped_with(x: jax.Array, other: jax.Array) -> jax.Array:
    """``x``, but such that ``jax.vmap`` maps it wherever it maps ``other``, which broadcasts to it.

    Of the results of a ``custom_vjp``, ``jax.vmap`` sums the cotangents of each that it does not
    map, and the backward pass of every member gets that sum for its own. So all results have to
    depend on all arguments. A compiler knows the choice made here, and leaves it out.
    """
    return lax.select(np.bool_(True), x, jnp.broadcast_to(other.astype(x.dtype), x.shape))


def vmap_leading(function: Callable[..., Any], batch_dims: int, in_axes: Any):
    """``function`` mapped over ``batch_dims`` leading axes of the arguments that have them."""
    for _ in range(batch_dims):
        function = jax.vmap(function, in_axes=in_axes)
    return function
