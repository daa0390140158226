"""Sums, maxima and counts of segments: what the rules do to their edges changes no row."""

import z3

from tests.fusion.proofs._induction import (
    ANY_NUMBER,
    ANY_ROW,
    Fold,
    array,
    follows,
    holds_for_all_lists,
    ids,
)

SENDERS, RECEIVERS = ids("senders"), ids("receivers")
ROWS, SCALES = array("rows"), array("scales")
WEIGHTS = array("weights")
ARRIVES = lambda e: RECEIVERS(e) == ANY_ROW  # noqa: E731
NODES = z3.Int("nodes")
BOTTOM = z3.Real("bottom")  # minus infinity: no number is below it
COMBINE = {
    "sum": lambda a, b: a + b,
    "max": lambda a, b: z3.If(a >= b, a, b),
    "min": lambda a, b: z3.If(a <= b, a, b),
}


def _sum(name, term, arrives=ARRIVES, start=0):
    return Fold(name, lambda e: z3.If(arrives(e), term(e), z3.RealVal(0)), start)


def test_the_order_of_the_edges_does_not_matter():
    # Any order comes from any other one by swaps of neighbours: after a swap all is as it was.
    value, first, second = z3.Reals("value first second")
    for combine in COMBINE.values():
        one = combine(combine(value, first), second)
        assert follows(one == combine(combine(value, second), first))
    minus = lambda a, b: b - a  # noqa: E731
    assert not follows(minus(minus(value, first), second) == minus(minus(value, second), first))


def test_what_equal_values_go_on_to_is_equal():
    # So a swap in the midst of a list changes nothing after it.
    place = z3.Int("place")
    term = lambda e: WEIGHTS(e) * ROWS(SENDERS(e))  # noqa: E731
    one, other = _sum("one", term), _sum("other", term)
    steps = one.step, other.step
    equal = one(ANY_NUMBER) == other(ANY_NUMBER)
    assert follows(one(ANY_NUMBER + 1) == other(ANY_NUMBER + 1), equal, place <= ANY_NUMBER, *steps)


def test_a_row_read_by_the_receiver_multiplies_the_sum():
    plain = _sum("plain", lambda e: WEIGHTS(e) * ROWS(SENDERS(e)))
    scaled = _sum("scaled", lambda e: WEIGHTS(e) * ROWS(SENDERS(e)) * SCALES(RECEIVERS(e)))
    wrong = _sum("wrong", lambda e: WEIGHTS(e) * ROWS(SENDERS(e)) * SCALES(SENDERS(e)))

    def moved_out(of):
        return lambda n: of(n) == plain(n) * SCALES(ANY_ROW)

    assert holds_for_all_lists(moved_out(scaled), [plain, scaled])
    assert not holds_for_all_lists(moved_out(wrong), [plain, wrong])


def test_a_constant_multiplies_the_sum_and_a_start_is_added():
    constant, start = z3.Reals("constant start")
    plain = _sum("plain", lambda e: ROWS(SENDERS(e)))
    scaled = _sum("scaled", lambda e: -constant * ROWS(SENDERS(e)))
    started = _sum("started", lambda e: ROWS(SENDERS(e)), start=start)
    assert holds_for_all_lists(lambda n: scaled(n) == -constant * plain(n), [plain, scaled])
    assert holds_for_all_lists(lambda n: started(n) == start + plain(n), [plain, started])
    assert not holds_for_all_lists(lambda n: started(n) == plain(n), [plain, started])


def test_an_edge_that_a_mask_makes_zero_is_a_dropped_edge():
    # What it reads does not matter, as its receiver is out of range then.
    kept = z3.Function("kept", z3.IntSort(), z3.BoolSort())
    masked = _sum("masked", lambda e: z3.If(kept(e), WEIGHTS(e) * ROWS(SENDERS(e)), z3.RealVal(0)))
    receivers = lambda e: z3.If(kept(e), RECEIVERS(e), z3.IntVal(-1))  # noqa: E731
    dropped = _sum(
        "dropped",
        lambda e: WEIGHTS(e) * ROWS(SENDERS(e)),
        lambda e: receivers(e) == ANY_ROW,
    )
    claim = lambda n: masked(n) == dropped(n)  # noqa: E731
    assert holds_for_all_lists(claim, [masked, dropped], ANY_ROW >= 0)
    assert not holds_for_all_lists(claim, [masked, dropped])  # row -1 has all that is dropped


def test_an_entry_of_zero_is_a_dropped_edge():
    # Of a matrix by rows: row ANY_ROW of the product, with all columns and with those of entries.
    whole = Fold("whole", lambda e: WEIGHTS(e) * ROWS(e))
    sparse = Fold("sparse", lambda e: z3.If(WEIGHTS(e) != 0, WEIGHTS(e) * ROWS(e), z3.RealVal(0)))
    assert holds_for_all_lists(lambda n: whole(n) == sparse(n), [whole, sparse])


def test_places_of_a_list_are_the_edges_of_a_node():
    # Edge e is the place e - row * size of node row, which is within the node's part of the list.
    size, row, place = z3.Ints("size row place")
    is_place = z3.And(size > 0, place >= 0, place < size, row >= 0)
    edge = row * size + place
    assert follows(edge / size == row, is_place)
    assert follows(edge % size == place, is_place)
    assert not follows(edge / size == row, size > 0, row >= 0)


def test_edges_that_arrive_nowhere_are_padding_whatever_they_read():
    # The graph has them as edges from column 0 to row 0 that are masked.
    def is_live(e):
        return z3.And(RECEIVERS(e) >= 0, RECEIVERS(e) < NODES)

    def row(e):
        return z3.If(is_live(e), RECEIVERS(e), z3.IntVal(0))

    def read(e):
        return ROWS(z3.If(is_live(e), SENDERS(e), z3.IntVal(0)))

    def of(name, is_masked, combine, start):
        def term(e):
            arrives = row(e) == ANY_ROW
            arrives = z3.And(arrives, is_live(e)) if is_masked else arrives
            return z3.If(arrives, read(e), start)

        return Fold(name, term, start, combine)

    in_range = z3.And(ANY_ROW >= 0, ANY_ROW < NODES)
    for kind, combine in COMBINE.items():
        start = z3.RealVal(0) if kind == "sum" else BOTTOM
        no_less = (
            () if kind == "sum" else (COMBINE[kind](BOTTOM, read(ANY_NUMBER)) == read(ANY_NUMBER),)
        )
        as_it_is = Fold(
            f"{kind} as it is",
            lambda e, start=start: z3.If(ARRIVES(e), ROWS(SENDERS(e)), start),
            start,
            combine,
        )
        masked = of(f"{kind} masked", True, combine, start)
        unmasked = of(f"{kind} unmasked", False, combine, start)
        given = in_range, *no_less
        assert holds_for_all_lists(lambda n: as_it_is(n) == masked(n), [as_it_is, masked], *given)  # noqa: B023
        assert not holds_for_all_lists(
            lambda n: as_it_is(n) == unmasked(n),  # noqa: B023
            [as_it_is, unmasked],
            *given,
        )


def test_a_segment_keeps_the_start_if_no_edge_arrives():
    start = z3.Real("start")
    for kind, combine in COMBINE.items():
        term = lambda e: z3.If(ARRIVES(e), ROWS(SENDERS(e)), start)  # noqa: E731
        if kind == "sum":
            term = lambda e: z3.If(ARRIVES(e), ROWS(SENDERS(e)), z3.RealVal(0))  # noqa: E731
        of = Fold(kind, term, start, combine)
        nobody = z3.Not(ARRIVES(ANY_NUMBER))
        assert holds_for_all_lists(lambda n: of(n) == start, [of], nobody)  # noqa: B023
        assert not holds_for_all_lists(lambda n: of(n) == start, [of])  # noqa: B023


def test_a_maximum_that_starts_at_zero_is_another_function():
    from_zero, from_below = (
        Fold(name, lambda e, s=start: z3.If(ARRIVES(e), ROWS(SENDERS(e)), s), start, COMBINE["max"])
        for name, start in (("from zero", z3.RealVal(0)), ("from below", BOTTOM))
    )
    folds = [from_zero, from_below]
    assert not holds_for_all_lists(lambda n: from_zero(n) == from_below(n), folds, BOTTOM < 0)


def test_a_sum_of_a_constant_is_the_count_times_the_constant():
    constant = z3.Real("constant")
    total = _sum("total", lambda e: constant)
    count = _sum("count", lambda e: z3.RealVal(1))
    assert holds_for_all_lists(lambda n: total(n) == count(n) * constant, [total, count])
    assert not holds_for_all_lists(lambda n: total(n) == constant, [total])


def test_an_inner_product_takes_its_scale_into_one_factor():
    scale = z3.Real("scale")
    queries, keys = array("queries"), array("keys")
    scaled = Fold("scaled", lambda d: scale * queries(d) * keys(d))
    plain = Fold("plain", lambda d: queries(d) * keys(d))
    assert holds_for_all_lists(lambda n: scaled(n) == scale * plain(n), [scaled, plain])
