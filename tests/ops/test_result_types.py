"""All implementations of a computation return the same types, so that a program may hold all."""

import functools

import jax
import jax.numpy as jnp
import pytest

from jaxgnn.ops.core.dispatch import Kernel
from tests.ops._calls import EAGER, OUTPUTS, STREAMS

DTYPES = ("float32", "bfloat16", "float16", "float64")
ALL = [
    pytest.param(op, case, id=f"{op}-{case or 'plain'}")
    for op, cases in EAGER.items()
    for case in cases
]


def _types(tree):
    """The shapes and dtypes of arrays, without those that have no elements."""
    return [(a.shape, str(a.dtype)) for a in jax.tree.leaves(tree) if 0 not in a.shape]


def _dtype(op, array, dtype):
    """The dtype of an argument; coefficients of hyper-connections are float32 at least."""
    is_coefficient = op.startswith("mhc_") and array is not STREAMS and array is not OUTPUTS[0]
    is_short = dtype in ("bfloat16", "float16")
    return "float32" if is_short and is_coefficient and op != "mhc_expand" else dtype


def _total(tree):
    floats = [y for y in jax.tree.leaves(tree) if jnp.issubdtype(y.dtype, jnp.floating)]
    return sum(jnp.sum(y).astype(jnp.float32) for y in floats)


@pytest.fixture
def compared(monkeypatch):
    """Compares the implementations in each call of a kernel; names those that were compared."""
    found = set()
    call = Kernel.__call__

    def compare(kernel, request, *args, **options):
        expected = None
        for name, entry in kernel.implementations.items():
            for platform, run in entry.runs.items():
                if entry.unsupported(platform, *args, **options) is not None:
                    continue
                made = _types(jax.eval_shape(functools.partial(run, **options), *args))
                expected = made if expected is None else expected
                assert made == expected, f"{kernel.name}[{name}] on {platform}"
                found.add((kernel.name, name, platform))
        return call(kernel, request, *args, **options)

    monkeypatch.setattr(Kernel, "__call__", compare)
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op, case", ALL)
def test_every_implementation_returns_the_same_types(op, case, dtype, compared):
    function, tree = EAGER[op][case]
    with jax.enable_x64(dtype == "float64"):
        cast = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, _dtype(op, a, dtype)), tree)

        def slope(arrays):
            return _total(jax.grad(lambda a: _total(function(a, None)))(arrays))

        first = jax.eval_shape(jax.grad(lambda a: _total(function(a, None))), cast)
        assert _types(first) == _types(cast)
        if dtype == "bfloat16":  # the shortest, which sums have to leave and come back to
            assert _types(jax.eval_shape(jax.grad(slope), cast)) == _types(cast)
    assert compared
