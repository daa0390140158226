"""All ops take NumPy arrays in either byte order."""

import jax
import numpy as np
import pytest

from jaxgnn import ops
from tests.ops._calls import EAGER, SQUARE

ALL = [pytest.param(op, case, id=f"{op}-{case or 'plain'}") for op in EAGER for case in EAGER[op]]


def swapped(array):
    """The array in NumPy, in the other byte order than this machine's."""
    array = np.asarray(array)
    return array.astype(array.dtype.newbyteorder())


@pytest.mark.every
@pytest.mark.parametrize("op, case", ALL)
def test_arrays_in_the_other_byte_order_are_traced_as_those_in_this_one(op, case):
    function, tree = EAGER[op][case]
    given = jax.tree.map(swapped, tree)
    results = (jax.eval_shape(lambda t=t: function(t, "xla")) for t in (given, tree))
    made, expected = ([(a.shape, a.dtype) for a in jax.tree.leaves(r)] for r in results)
    assert made == expected


def test_their_values_are_the_same():
    for run in (ops.sinkhorn, lambda x: ops.mhc_expand(x, 2), lambda x: ops.maxk(x, 2).values):
        np.testing.assert_array_equal(run(swapped(SQUARE)), run(SQUARE))
