"""Records of compressed rows: every entry in its place, and few lanes at the same bank."""

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels._records import RecordShape, make_records
from tests.pallas_kernels._emulator import emulated

pytestmark = pytest.mark.emulated

ROWS, DIM = 200, 256
SHAPES = [(k, itemsize) for k in (1, 5, 16, 32, 33, 64, 90) for itemsize in (2, 4)]


@pytest.mark.parametrize("k, dim, itemsize", [(1, 16, 4), (5, 64, 2), (33, 256, 4), (256, 256, 2)])
def test_records_have_a_place_for_each_entry(k, dim, itemsize):
    shape = RecordShape.choose(k, dim, itemsize)
    places = [(lane, slot) for lane in range(shape.lanes) for slot in range(shape.per_lane)]
    for place in (shape.value_place, shape.id_place):
        assert sorted(place(*at) for at in places) == list(range(shape.size))
    assert sum(shape.per_lane - shape.padding(lane) for lane in range(shape.lanes)) == k


def _columns(k):
    """Of random rows, and of rows whose columns are all at home in one lane, or two."""
    random = np.random.default_rng(k)
    columns = random.permuted(np.tile(np.arange(DIM), (ROWS, 1)), axis=1)
    columns[0] = np.arange(DIM).reshape(-1, 4).T.ravel()
    columns[1] = np.arange(DIM).reshape(-1, 2).T.ravel()
    return np.sort(columns[:, :k], axis=1)


def _by_lane(shape, k, itemsize, columns):
    """Columns and values of records, [rows, slots, lanes]."""
    dtype = "float32" if itemsize == 4 else "bfloat16"
    with emulated():
        values, ids = make_records(
            shape, jnp.asarray(columns + 1, dtype), jnp.asarray(columns, jnp.uint8), None
        )
    lanes, slots = np.arange(shape.lanes), np.arange(shape.per_lane)[:, None]
    values, ids = np.asarray(values, np.float32), np.asarray(ids, np.int32)
    return ids[:, shape.id_place(lanes, slots)], values[:, shape.value_place(lanes, slots)]


@pytest.mark.parametrize("k, itemsize", SHAPES)
def test_records_hold_the_entries_and_zeros_in_columns_of_their_own(k, itemsize):
    shape, columns = RecordShape.choose(k, DIM, itemsize), _columns(k)
    ids, values = _by_lane(shape, k, itemsize, columns)
    is_real = ids < DIM
    np.testing.assert_array_equal(values, np.where(is_real, ids + 1, 0).astype(np.float32))
    np.testing.assert_array_equal(
        np.where(is_real, 0, ids - DIM), np.where(is_real, 0, np.arange(shape.lanes))
    )
    np.testing.assert_array_equal(
        np.sort(ids[is_real].reshape(ROWS, k), axis=1), columns.astype(np.int32)
    )


@pytest.mark.parametrize("k, itemsize", SHAPES)
def test_lanes_meet_a_bank_in_twos_at_most_and_in_the_last_slots(k, itemsize):
    shape, columns = RecordShape.choose(k, DIM, itemsize), _columns(k)
    ids, _ = _by_lane(shape, k, itemsize, columns)
    at_home = (ids % 4)[..., None] == np.arange(4)
    together = at_home.sum(axis=2)  # [rows, slots, classes]
    spare = together.sum(axis=1) - shape.per_lane
    fewest = np.maximum(np.abs(spare).max(axis=1), -(-spare.clip(0).sum(axis=1) // 2))
    can_be = fewest <= shape.per_lane
    slots = np.arange(shape.per_lane)
    is_tail = slots >= shape.per_lane - fewest[:, None]
    assert can_be.mean() > 0.9
    np.testing.assert_array_equal(together.max(axis=2)[can_be], np.where(is_tail, 2, 1)[can_be])
