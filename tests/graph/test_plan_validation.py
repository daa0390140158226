"""A plan that is not its graph's is found by ``validate()``, before a kernel follows it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.graph._oracles import check_message, random_edges

PLANNED = jax.tree.map(np.asarray, random_edges(0, 6, 9, 600).graph())
HUB = random_edges(0, 1, 9, 600).graph(masked=False)
PLAN = PLANNED.plan
SCHEDULE = PLAN.schedule
REAL = int(PLANNED.indptr[-1])


def planned(**changes):
    """A sound graph whose plan is not."""
    return dataclasses.replace(PLANNED, plan=dataclasses.replace(PLAN, **changes))


def hub_plan(first_offset):
    """The plan of one row of 600 edges, the first unit of which ends where told."""
    schedule = HUB.plan.schedule
    offsets = changed(np.asarray(schedule.offsets), 1, first_offset)
    return dataclasses.replace(HUB.plan, schedule=dataclasses.replace(schedule, offsets=offsets))


def changed(array, at, value):
    array = array.copy()
    array[at] = value
    return array


def scheduled(**changes):
    return planned(schedule=dataclasses.replace(SCHEDULE, **changes))


# name: (call, what its message must say, in this order)
BAD_PLANS = {
    "plan of a graph with other edges": (
        lambda: dataclasses.replace(
            PLANNED, indices=changed(PLANNED.indices, 3, (PLANNED.indices[3] + 1) % 9)
        ).validate(),
        ["CSRGraph: plan.permutation", "position of an edge from", "got 3, an edge from"],
    ),
    "plan of a graph with other offsets": (
        lambda: dataclasses.replace(
            PLANNED, indptr=changed(PLANNED.indptr, 6, REAL - 1)
        ).validate(),
        ["CSRGraph: plan.transposed_indptr[9]", f"number of edges, {REAL - 1}", f"got {REAL}"],
    ),
    "plan of a graph of other length": (
        lambda: planned(permutation=PLAN.permutation[:-1]).validate(),
        ["CSRGraph: graph.plan.permutation", "(600,)", "(599,)"],
    ),
    "plan with unsigned ids": (
        lambda: planned(transposed_indices=PLAN.transposed_indices.astype(jnp.uint32)).validate(),
        ["CSRGraph: graph.plan.transposed_indices", "int32", "uint32"],
    ),
    "plan with a receiver out of range": (
        lambda: planned(transposed_indices=changed(PLAN.transposed_indices, 7, 6)).validate(),
        ["CSRGraph: plan.transposed_indices[7]", "in [0, 6)", "got 6"],
    ),
    "plan that reads padding": (
        lambda: planned(permutation=changed(PLAN.permutation, 5, REAL)).validate(),
        ["CSRGraph: plan.permutation[5]", f"in [0, {REAL})", f"got {REAL}"],
    ),
    "plan that takes an edge twice": (
        lambda: planned(permutation=changed(PLAN.permutation, 5, PLAN.permutation[6])).validate(),
        ["CSRGraph: plan.permutation", "a permutation", "repeatedly"],
    ),
    "plan with falling offsets": (
        lambda: planned(transposed_indptr=changed(PLAN.transposed_indptr, 4, 600)).validate(),
        ["CSRGraph: plan.transposed_indptr[5]", "at least 600", "got"],
    ),
    "units out of order": (
        lambda: scheduled(rows=SCHEDULE.rows[::-1]).validate(),
        ["CSRGraph: plan.schedule.rows", "every row in ascending order", "got 6 at 0"],
    ),
    "units of no row": (
        lambda: scheduled(rows=changed(SCHEDULE.rows, 0, 7)).validate(),
        ["CSRGraph: plan.schedule.rows[0]", "in [0, 7)", "got 7"],
    ),
    "units that skip the first edge": (
        lambda: scheduled(offsets=changed(SCHEDULE.offsets, 0, 1)).validate(),
        ["CSRGraph: plan.schedule.offsets[0]", "0", "got 1"],
    ),
    "units that stop early": (
        lambda: scheduled(offsets=changed(SCHEDULE.offsets, -1, REAL - 1)).validate(),
        ["CSRGraph: plan.schedule.offsets[8]", f"{REAL}", f"got {REAL - 1}"],
    ),
    "units across rows": (
        lambda: scheduled(offsets=changed(SCHEDULE.offsets, 2, SCHEDULE.offsets[2] + 1)).validate(),
        ["CSRGraph: plan.schedule unit 1", "256 edges of row 1", "got edges"],
    ),
    "a unit of too many edges": (
        lambda: dataclasses.replace(HUB, plan=hub_plan(300)).validate(),
        ["CSRGraph: plan.schedule unit 0", "at most 256 edges of row 0", "edges 0 to 300"],
    ),
    "pieces in another order": (
        lambda: scheduled(pieces=np.asarray(SCHEDULE.pieces)[::-1]).validate(),
        ["CSRGraph: plan.schedule.pieces[0]", "got"],
    ),
    "more pieces than there are": (
        lambda: scheduled(
            piece_counts=changed(np.asarray(SCHEDULE.piece_counts), 1, 99)
        ).validate(),
        ["CSRGraph: plan.schedule.piece_counts[1]", "got 99"],
    ),
    "too few pieces": (
        lambda: scheduled(pieces=SCHEDULE.pieces[1:]).validate(),
        ["CSRGraph: graph.plan.schedule.pieces", "(8,)", "(7,)"],
    ),
    "too few units": (
        lambda: scheduled(rows=SCHEDULE.rows[1:]).validate(),
        ["CSRGraph: graph.plan.schedule.rows", "(8,)", "(7,)"],
    ),
}


@pytest.mark.parametrize("name", BAD_PLANS)
def test_a_bad_plan_is_named(name):
    call, fragments = BAD_PLANS[name]
    with pytest.raises(ValueError) as error:
        call()
    check_message(str(error.value), fragments)
