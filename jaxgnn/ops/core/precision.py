"""Precision of products of float32 numbers: names of the options, and JAX's own setting."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import jax
from jax import lax

Precision = Literal["highest", "tf32", "bf16x3"]
"""Products of float32 numbers in float32, in TF32, or as three products of bfloat16 parts."""

# JAX's names of the precisions. HIGH is its "tensorfloat32": unlike the algorithm of that name it
# exists on every backend. The last is float32 where a backend has nothing faster, as on CPU.
PRECISIONS: Mapping[Precision | None, lax.Precision | lax.DotAlgorithmPreset | None] = (
    MappingProxyType(
        {
            None: None,
            "highest": lax.Precision.HIGHEST,
            "tf32": lax.Precision.HIGH,
            "bf16x3": lax.DotAlgorithmPreset.BF16_BF16_F32_X3,
        }
    )
)

# JAX's settings under which a GPU multiplies float32 numbers in one of these precisions. Not every
# version of JAX accepts all of them. The kernels support no other settings.
_BY_SETTING: Mapping[str | None, Precision] = MappingProxyType(
    {
        None: "tf32",
        "default": "tf32",
        "high": "tf32",
        "bfloat16": "tf32",
        "bfloat16_3x": "tf32",
        "tensorfloat32": "tf32",
        "TF32_TF32_F32": "tf32",
        "BF16_BF16_F32_X3": "bf16x3",
        "highest": "highest",
        "float32": "highest",
        "F32_F32_F32": "highest",
    }
)


def precision_on_gpu(precision: Precision | None) -> Precision | None:
    """Returns the precision of float32 products on a GPU; for None it is JAX's setting.

    The result is None if JAX's setting is none of these precisions.
    """
    if precision is not None:
        return precision
    return _BY_SETTING.get(jax.config.jax_default_matmul_precision)
