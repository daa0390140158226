"""Families of ops read JAX's setting of the precision alike, from one table."""

from types import SimpleNamespace

import jax
import pytest

from jaxgnn.ops._dense import pallas as dense
from jaxgnn.ops._equivariant import tensor_product_sum as equivariant
from jaxgnn.ops.core import precision

# Each setting, how a GPU multiplies under it, and how kernels of dense layers and of tensor
# products do: None where there is none, and at least as precisely as the setting.
SETTINGS = {
    "default": ("tf32", "tf32", "tf32"),
    "high": ("tf32", "tf32", "tf32"),
    "bfloat16": ("tf32", "tf32", "tf32"),
    "bfloat16_3x": ("tf32", "tf32", "tf32"),
    "tensorfloat32": ("tf32", "tf32", "tf32"),
    "TF32_TF32_F32": ("tf32", "tf32", "tf32"),
    "BF16_BF16_F32_X3": ("bf16x3", "bf16x3", "highest"),
    "BF16_BF16_F32": (None, None, "highest"),
    "highest": ("highest", None, "highest"),
    "float32": ("highest", None, "highest"),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_without_a_precision_all_kernels_follow_the_setting_of_jax(setting, monkeypatch):
    # Set by name, as this version of JAX may not accept all settings.
    config = SimpleNamespace(jax_default_matmul_precision=setting)
    monkeypatch.setattr(precision, "jax", SimpleNamespace(config=config))
    kernels = dense.products("float32", None), equivariant._products(None)
    assert (precision.precision_on_gpu(None), *kernels) == SETTINGS[setting]


def test_the_setting_is_read_at_each_call():
    assert precision.precision_on_gpu(None) == "highest"  # of all tests
    with jax.default_matmul_precision("BF16_BF16_F32_X3"):
        assert precision.precision_on_gpu(None) == "bf16x3"


def test_a_precision_that_is_given_is_kept():
    assert [precision.precision_on_gpu(name) for name in precision.PRECISIONS if name] == [
        "highest",
        "tf32",
        "bf16x3",
    ]
    assert dense.products("bfloat16", "tf32") is None
    assert [equivariant._products(name) for name in ("tf32", "bf16x3")] == ["tf32", "highest"]
