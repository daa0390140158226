"""The tables of implementations of the fused linear layers, and what their GPU kernels take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jaxgnn.ops import _dispatch as dispatch

_DTYPES = ("bfloat16", "float16")
_LEAST_WIDTH, _MOST_WIDTH = 64, 256


def kernel(
    name: str,
    reference: Callable[..., Any],
    mosaic: Callable[..., Any],
    *,
    limits: Callable[..., str | None],
) -> dispatch.Kernel:
    """The reference and a Mosaic GPU kernel, which only its name chooses until it is measured."""
    return dispatch.Kernel(
        name,
        {
            "xla": dispatch.xla(reference, scatters=False),
            "pallas": dispatch.pallas(mosaic, dtypes=_DTYPES, limits=limits),
        },
        preference={"cpu": ("xla",), "cuda": ("xla", "pallas")},
    )


def layer_limits(x: Any, kernels: Any) -> str | None:
    """Why kernels do not take these layers here, or None."""
    if x.dtype.name not in _DTYPES:
        return f"needs {' or '.join(_DTYPES)} values, got {x.dtype.name}"
    for width in (x.shape[-1], *(k.shape[1] for k in kernels)):
        if width == 0 or width % _LEAST_WIDTH or width > _MOST_WIDTH:
            known = f"multiples of {_LEAST_WIDTH} up to {_MOST_WIDTH}"
            return f"needs widths that are {known}, got {width}"
    return _device_limits()


def _device_limits() -> str | None:
    """Other tensor cores than those of 9.0 have other instructions."""
    if jax.default_backend() != "gpu":
        return None
    found = str(getattr(jax.local_devices()[0], "compute_capability", "none"))
    return None if found == "9.0" else f"needs a GPU of compute capability 9.0, got {found}"
