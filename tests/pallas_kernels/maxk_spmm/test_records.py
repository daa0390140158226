"""Records of compressed rows: every entry in its place, and few lanes at the same bank."""

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.maxk_spmm.bank_choice import other_place
from pallas_kernels.maxk_spmm.record_shape import RecordShape
from pallas_kernels.maxk_spmm.records import make_records
from tests.pallas_kernels._emulator import emulated

pytestmark = pytest.mark.emulated

ROWS, DIM = 200, 256
DTYPES = ("float32", "bfloat16")
SHAPES = [(k, dtype) for k in (1, 5, 16, 32, 33, 64, 90) for dtype in DTYPES]


@pytest.mark.parametrize("two_places", [False, True])
@pytest.mark.parametrize(
    "k, dim, dtype",
    [
        (1, 16, "float32"),
        (5, 64, "bfloat16"),
        (16, 300, "bfloat16"),
        (33, 256, "float32"),
        (256, 256, "bfloat16"),
        (5, 2000, "bfloat16"),
    ],
)
def test_records_have_a_place_for_each_entry(k, dim, dtype, two_places):
    shape = RecordShape.choose(k, dim, dtype, two_places)
    lanes, slots = np.arange(shape.lanes), np.arange(shape.per_lane)[:, None]
    taken = []
    for record in range(shape.records_per_group):
        for place, of in ((shape.value_place, shape.dtype), (shape.id_place, shape.id_dtype)):
            size = jnp.dtype(of).itemsize
            at = place(record, lanes, slots).ravel()
            taken.append((at[:, None] * size + np.arange(size)).ravel())
    taken = np.concatenate(taken)
    assert len(np.unique(taken)) == len(taken) and taken.min() >= 0
    assert taken.max() < shape.nbytes and shape.nbytes % 16 == 0
    halves = range(shape.halves)
    numbers = range(shape.per_lane // shape.halves)
    assert sorted(shape.slot(half, number) for half in halves for number in numbers) == [
        *slots[:, 0]
    ]
    assert sum(shape.per_lane - shape.padding(lane) for lane in range(shape.lanes)) == k


def _columns(k):
    """Of random rows, and of rows whose columns are all at home in one lane, or two."""
    random = np.random.default_rng(k)
    columns = random.permuted(np.tile(np.arange(DIM), (ROWS, 1)), axis=1)
    columns[0] = np.arange(DIM).reshape(-1, 4).T.ravel()
    columns[1] = np.arange(DIM).reshape(-1, 2).T.ravel()
    return np.sort(columns[:, :k], axis=1)


def _by_lane(shape, k, dtype, columns):
    """Columns and values of records, [rows, slots, lanes]."""
    with emulated():
        records = make_records(
            shape, jnp.asarray(columns + 1, dtype), jnp.asarray(columns, jnp.uint8), None
        )
    records = np.asarray(records)
    values, ids = records.view(jnp.dtype(dtype)), records.view(jnp.dtype(shape.id_dtype))
    lanes, slots = np.arange(shape.lanes), np.arange(shape.per_lane)[:, None]
    at = np.arange(shape.records_per_group)[:, None, None]
    ids, values = (
        ids[:, shape.id_place(at, lanes, slots)],
        values[:, shape.value_place(at, lanes, slots)],
    )
    places = ids.reshape(-1, *ids.shape[-2:])[: len(columns)].astype(np.int32)
    values = values.reshape(-1, *values.shape[-2:])[: len(columns)].astype(np.float32)
    half = slots // (shape.per_block // shape.halves) % shape.halves
    is_other = (half == 1) & (places < shape.places)
    return np.where(is_other, other_place(places), places), values, places


@pytest.mark.parametrize("two_places", [False, True])
@pytest.mark.parametrize("k, dtype", SHAPES)
def test_records_hold_the_entries_and_zeros_in_columns_of_their_own(k, dtype, two_places):
    shape, columns = RecordShape.choose(k, DIM, dtype, two_places), _columns(k)
    ids, values, _ = _by_lane(shape, k, dtype, columns)
    is_real = ids < DIM
    np.testing.assert_array_equal(values, np.where(is_real, ids + 1, 0).astype(np.float32))
    np.testing.assert_array_equal(
        np.where(is_real, 0, ids - DIM), np.where(is_real, 0, np.arange(shape.lanes))
    )
    np.testing.assert_array_equal(
        np.sort(ids[is_real].reshape(ROWS, k), axis=1), columns.astype(np.int32)
    )


@pytest.mark.parametrize("k, dtype", SHAPES)
def test_lanes_meet_a_bank_in_twos_at_most_and_in_the_last_slots(k, dtype):
    shape, columns = RecordShape.choose(k, DIM, dtype, two_places=False), _columns(k)
    ids, _, _ = _by_lane(shape, k, dtype, columns)
    at_home = (ids % 4)[..., None] == np.arange(4)
    together = at_home.sum(axis=2)  # [rows, slots, classes]
    spare = together.sum(axis=1) - shape.per_lane
    fewest = np.maximum(np.abs(spare).max(axis=1), -(-spare.clip(0).sum(axis=1) // 2))
    can_be = fewest <= shape.per_lane
    slots = np.arange(shape.per_lane)
    is_tail = slots >= shape.per_lane - fewest[:, None]
    assert can_be.mean() > 0.9
    np.testing.assert_array_equal(together.max(axis=2)[can_be], np.where(is_tail, 2, 1)[can_be])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k, most", [(16, 1.25), (32, 1.08), (33, 1.02), (64, 1.03)])
def test_with_two_places_few_lanes_meet_at_a_bank(k, most, dtype):
    shape, columns = RecordShape.choose(k, DIM, dtype, two_places=True), _columns(k)[2:]
    _, _, places = _by_lane(shape, k, dtype, columns)
    together = (places[..., None] % 4 == np.arange(4)).sum(axis=2).max(axis=2)
    assert together.mean() < most


@pytest.mark.parametrize("two_places", [False, True])
@pytest.mark.parametrize("k", [5, 64, 255])
def test_entries_of_columns_that_are_not_distinct_keep_within_their_records(k, two_places):
    shape = RecordShape.choose(k, DIM, "float32", two_places)
    columns = np.zeros((40, k), np.int64)
    columns[20:] = np.arange(k) % 3 * 16
    with emulated():
        records = make_records(
            shape, jnp.ones((40, k), "float32"), jnp.asarray(columns, jnp.uint8), None
        )
    values = np.asarray(records)[..., : shape.records_per_group * shape.size * 4].view(np.float32)
    np.testing.assert_array_equal(values.reshape(40, -1).sum(axis=1), k)
