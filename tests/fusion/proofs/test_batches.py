"""A loop over the members of a batch is one call for all of them."""

import z3

from tests.fusion.proofs._induction import follows, ids

MEMBERS = z3.Function("members", z3.IntSort(), z3.RealSort())
ANY_FUNCTION = z3.Function("function", z3.RealSort(), z3.RealSort(), z3.RealSort())
SHARED = z3.Real("shared")
PLACE = ids("place")


def test_a_stack_of_one_function_of_each_member_is_the_function_of_the_batch():
    # The copy at each place of the stack reads a member, and what is the same for all.
    member = z3.Int("member")
    batched = ANY_FUNCTION(MEMBERS(member), SHARED)
    copy = ANY_FUNCTION(MEMBERS(PLACE(member)), SHARED)
    assert follows(copy == batched, PLACE(member) == member)
    assert not follows(copy == batched)  # members in another order
    other = z3.Function("other function", z3.RealSort(), z3.RealSort(), z3.RealSort())
    assert not follows(other(MEMBERS(member), SHARED) == batched)
