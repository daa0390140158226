"""The row schedule gives every edge to one unit, every row a unit, and no unit too much."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxgnn.graph import MAX_EDGES_PER_UNIT, CSRGraph, RowSchedule, edges_per_piece
from jaxgnn.graph.plan.schedule import long_piece
from tests.graph._oracles import assert_same_tree, prepare, random_edges

PROPERTY = settings(max_examples=25, deadline=None, derandomize=True)

# Degrees around the borders of a unit, beside small ones.
DEGREES = st.lists(
    st.sampled_from([0, 0, 1, 2, 7, 255, 256, 257, 511, 512, 513, 2000]), min_size=1, max_size=9
)


def schedule_of(degrees, padding=0) -> RowSchedule:
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int32)
    indices = np.zeros(indptr[-1] + padding, np.int32)
    plan = CSRGraph(jnp.asarray(indptr), jnp.asarray(indices)).prepared().plan
    assert plan is not None
    return plan.schedule


def check(schedule, degrees, num_edges):
    """All that the docstring of RowSchedule promises, edge by edge."""
    num_rows, indptr = len(degrees), np.concatenate([[0], np.cumsum(degrees)])
    rows, offsets = np.asarray(schedule.rows), np.asarray(schedule.offsets)
    assert len(rows) == num_rows + num_edges // MAX_EDGES_PER_UNIT
    assert len(offsets) == len(rows) + 1

    real = int(np.sum(rows < num_rows))
    assert (rows[real:] == num_rows).all(), "padding units come last"
    assert (offsets[real:] == indptr[-1]).all(), "padding units have no edges"
    assert sorted(set(rows[:real].tolist())) == list(range(num_rows)), "a unit for every row"
    assert (np.diff(rows[:real]) >= 0).all(), "rows in order"

    covered = [edge for u in range(real) for edge in range(offsets[u], offsets[u + 1])]
    assert covered == list(range(indptr[-1])), "each edge once, in order"
    owners = np.repeat(np.arange(num_rows), degrees)
    for unit in range(real):
        begin, end = offsets[unit], offsets[unit + 1]
        assert end - begin <= MAX_EDGES_PER_UNIT
        assert (owners[begin:end] == rows[unit]).all()


def check_pieces(schedule, degrees, num_edges=None):
    """Pieces cut each row at multiples of their size, longest first."""
    starts = np.concatenate([[0], np.cumsum(degrees)])
    num_edges = num_edges or sum(degrees)
    size = edges_per_piece(num_edges)
    wanted = {
        (start + at, row): min(size, degree - at)
        for row, (start, degree) in enumerate(zip(starts, degrees, strict=False))
        for at in range(0, max(degree, 1), size)
    }
    num_long, number = np.asarray(schedule.piece_counts).tolist()
    units = np.asarray(schedule.pieces)
    assert sorted(units.tolist()) == list(range(len(units))), "a permutation of the units"
    rows, offsets = np.asarray(schedule.rows), np.asarray(schedule.offsets)
    begun = [(int(offsets[unit]), int(rows[unit])) for unit in units[:number]]
    assert sorted(begun) == sorted(wanted)
    lengths = [wanted[piece] for piece in begun]
    assert lengths == sorted(lengths, reverse=True)
    assert num_long == sum(length >= long_piece(num_edges) for length in lengths)


@PROPERTY
@given(degrees=st.lists(st.sampled_from([0, 1, 63, 64, 255, 256, 257, 512, 900]), min_size=1))
def test_pieces_cover_every_row_longest_first(degrees):
    check_pieces(schedule_of(degrees), degrees)


def test_longer_rows_share_warps_where_there_are_many_edges():
    degrees, padding = [100, 2000, 4096, 4097, 0], 2**24
    schedule = schedule_of(degrees, padding)
    check_pieces(schedule, degrees, sum(degrees) + padding)
    assert schedule.piece_counts.tolist() == [3, 6]
    assert schedule_of(degrees).piece_counts.tolist() == [1 + 8 + 16 + 16, 1 + 8 + 16 + 17 + 1]


@PROPERTY
@given(degrees=DEGREES, padding=st.sampled_from([0, 1, 255, 600]))
def test_units_cover_every_edge_once_in_order_and_every_row(degrees, padding):
    check(schedule_of(degrees, padding), degrees, sum(degrees) + padding)


@pytest.mark.parametrize("degree", [1, 255, 256, 257, 512, 513, 10_000])
def test_a_row_of_all_the_edges_is_split_into_full_units(degree):
    degrees = [0, degree, 0]
    schedule = schedule_of(degrees)
    check(schedule, degrees, degree)
    sizes = np.diff(np.asarray(schedule.offsets))[np.asarray(schedule.rows) == 1]
    assert len(sizes) == -(-degree // MAX_EDGES_PER_UNIT)
    assert (sizes[:-1] == MAX_EDGES_PER_UNIT).all()


def test_the_bound_on_units_is_reached():
    """One edge more than full units in a row, and no padding unit is left."""
    degrees = [257, 255]
    schedule = schedule_of(degrees)
    check(schedule, degrees, 512)
    # 2 + 1 units of the three that three rows' worth of edges may need, and one of padding.
    assert schedule.rows.tolist() == [0, 0, 1, 2]
    degrees = [513, 511]
    check(schedule_of(degrees), degrees, 1024)
    assert schedule_of(degrees).rows.tolist() == [0, 0, 0, 1, 1, 2]
    assert schedule_of([256 * 3 + 1] + [0] * 4).rows.tolist() == [0, 0, 0, 0, 1, 2, 3, 4]


def test_the_number_of_units_depends_on_shapes_alone():
    sizes = set()
    for seed in range(5):
        plan = random_edges(seed, 7, 5, 900, hub=seed % 2 == 0).graph().plan
        assert plan is not None
        sizes.add((plan.schedule.rows.shape, plan.transposed_schedule.rows.shape))
    assert sizes == {((7 + 3,), (5 + 3,))}


@pytest.mark.parametrize("hub", [False, True])
@pytest.mark.parametrize(("num_rows", "num_edges"), [(1, 0), (6, 0), (1, 900), (6, 900)])
def test_the_transposed_rows_have_a_schedule_too(num_rows, num_edges, hub):
    edges = random_edges(3, num_rows, 4, num_edges, hub=hub)
    plan = edges.graph().plan
    assert plan is not None
    in_degrees = np.bincount(edges.receivers[edges.mask], minlength=num_rows)
    out_degrees = np.bincount(edges.senders[edges.mask], minlength=4)
    check(plan.schedule, in_degrees, num_edges)
    check(plan.transposed_schedule, out_degrees, num_edges)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_traced_schedule_has_the_bits_of_the_host_schedule(dtype):
    with jax.enable_x64(dtype == np.int64):
        for seed in range(4):
            edges = random_edges(seed, 6, 9, 900, hub=seed % 2 == 0)
            graph = edges.graph(weighted=False)
            graph = CSRGraph(np.asarray(graph.indptr, dtype), graph.indices, num_cols=9)
            host = graph.prepared()
            assert host.plan.schedule.offsets.dtype == dtype
            assert_same_tree(prepare(graph).plan, host.plan)


def test_a_graph_of_nothing_has_a_schedule_of_nothing():
    schedule = CSRGraph.from_edges([], [], 0).prepared().plan.schedule
    assert (schedule.rows.tolist(), schedule.offsets.tolist()) == ([], [0])


def test_padding_alone_gives_rows_empty_units():
    check(schedule_of([0, 0], padding=700), [0, 0], 700)
