"""The softmax of segments: the shift does not matter, and the divisor is at least one."""

import numpy as np
import pytest
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

RECEIVERS, LOGITS, SHIFTS, OTHERS = ids("receivers"), array("l"), array("m"), array("k")
_POWER = z3.Function("exp", z3.RealSort(), z3.RealSort())


def _exponential_laws(*arguments):
    """``exp(0) = 1``, ``exp(a) > 0`` and ``exp(a + b) = exp(a) exp(b)``, of these arguments."""
    pairs = [_POWER(a + b) == _POWER(a) * _POWER(b) for a in arguments for b in arguments]
    return [_POWER(0) == 1, *(_POWER(a) > 0 for a in arguments), *pairs]


def _total(name, shifts):
    def term(e):
        power = _POWER(LOGITS(e) - shifts(RECEIVERS(e)))
        return z3.If(RECEIVERS(e) == ANY_ROW, power, z3.RealVal(0))

    return Fold(name, term)


def test_a_shift_of_a_segment_multiplies_its_sum_of_powers():
    one, other = _total("one", SHIFTS), _total("other", OTHERS)
    shift = OTHERS(ANY_ROW) - SHIFTS(ANY_ROW)
    laws = _exponential_laws(LOGITS(ANY_NUMBER) - OTHERS(ANY_ROW), shift)
    argument = LOGITS(ANY_NUMBER) - SHIFTS(ANY_ROW)
    same = _POWER(argument) == _POWER(LOGITS(ANY_NUMBER) - OTHERS(ANY_ROW) + shift)
    assert follows(same)
    folds = [one, other]
    assert holds_for_all_lists(lambda n: one(n) == other(n) * _POWER(shift), folds, same, *laws)
    assert not holds_for_all_lists(lambda n: one(n) == other(n), folds, same, *laws)


def test_a_softmax_does_not_depend_on_the_shift_of_its_segment():
    # Numerator and divisor are multiplied by the same positive number.
    power, total, factor = z3.Reals("power total factor")
    same = (power * factor) / (total * factor) == power / total
    assert follows(same, total > 0, factor > 0)
    assert not follows((power * factor) / total == power / total, total > 0, factor > 0)


def test_a_divisor_is_at_least_one_if_the_shift_is_the_maximum():
    of_segment = _total("total", SHIFTS)
    reached = Fold(
        "reached",
        lambda e: z3.And(RECEIVERS(e) == ANY_ROW, LOGITS(e) == SHIFTS(ANY_ROW)),
        False,
        lambda so_far, now: z3.Or(so_far, now),
    )
    laws = _exponential_laws(LOGITS(ANY_NUMBER) - SHIFTS(ANY_ROW))

    def claim(n):
        total = of_segment(n)
        return z3.And(total >= 0, z3.Implies(reached(n), total >= 1))

    assert holds_for_all_lists(claim, [of_segment, reached], *laws)
    assert not holds_for_all_lists(lambda n: of_segment(n) >= 1, [of_segment, reached], *laws)


def test_an_edge_whose_power_is_zero_is_a_dropped_edge():
    is_masked = z3.Function("is masked", z3.IntSort(), z3.BoolSort())

    def term(e):
        return z3.If(RECEIVERS(e) == ANY_ROW, LOGITS(e), z3.RealVal(0))  # LOGITS: any powers

    whole = Fold("whole", term)
    dropped = Fold("dropped", lambda e: z3.If(is_masked(e), z3.RealVal(0), term(e)))
    is_zero = z3.Implies(is_masked(ANY_NUMBER), LOGITS(ANY_NUMBER) == 0)
    folds = [whole, dropped]
    assert holds_for_all_lists(lambda n: whole(n) == dropped(n), folds, is_zero)
    assert not holds_for_all_lists(lambda n: whole(n) == dropped(n), folds)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_an_epsilon_of_half_a_unit_changes_no_divisor_by_more_than_its_rounding(dtype):
    # Every number of 16 bits that is at least one; of 32 bits those around powers of two.
    if dtype == np.float16:
        bits = np.arange(np.float16(1).view(np.uint16), np.finfo(np.float16).max.view(np.uint16))
        divisors = bits.astype(np.uint16).view(np.float16)
    else:
        powers = np.exp2(np.arange(0, 100)).astype(np.float32)
        divisors = np.concatenate([powers, np.nextafter(powers, np.float32(np.inf))])
    epsilon = dtype(np.finfo(dtype).eps / 2)
    moved = (divisors + epsilon).astype(dtype)
    assert ((moved == divisors) | (moved == np.nextafter(divisors, dtype(np.inf)))).all()
    assert not (divisors + 3 * epsilon == divisors).all()
