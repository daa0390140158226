"""Products with a matrix before and after gathers and sums of segments."""

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
EDGE, FIRST, SECOND = z3.Ints("edge first second")  # an edge; the widths of two parts
TABLE, OTHERS, MATRIX = array("table", 0, 0), array("others", 0, 0), array("matrix")


def test_a_product_by_nodes_read_by_edges_is_the_product_by_edges():
    by_nodes = Fold("by nodes", lambda k: TABLE(SENDERS(EDGE), k) * MATRIX(k))
    rows_of_edges = array("rows of edges", 0, 0)
    by_edges = Fold("by edges", lambda k: rows_of_edges(EDGE, k) * MATRIX(k))
    gathered = rows_of_edges(EDGE, ANY_NUMBER) == TABLE(SENDERS(EDGE), ANY_NUMBER)
    folds = [by_nodes, by_edges]
    assert holds_for_all_lists(lambda n: by_nodes(n) == by_edges(n), folds, gathered)
    assert not holds_for_all_lists(lambda n: by_nodes(n) == by_edges(n), folds)


def test_a_concatenation_times_a_matrix_is_the_sum_of_the_parts_products():
    # Column k of the concatenation is one of the first part, or k - FIRST of the second.
    def column(k):
        return z3.If(k < FIRST, TABLE(RECEIVERS(EDGE), k), OTHERS(SENDERS(EDGE), k - FIRST))

    whole = Fold("whole", lambda k: column(k) * MATRIX(k))
    left = Fold("left", lambda k: TABLE(RECEIVERS(EDGE), k) * MATRIX(k))
    right = Fold("right", lambda k: OTHERS(SENDERS(EDGE), k) * MATRIX(k + FIRST))
    swapped = Fold("swapped", lambda k: OTHERS(SENDERS(EDGE), k) * MATRIX(k))

    # Over the columns of the first part the whole is the left part, and from there on it grows as
    # the right one does.
    within = ANY_NUMBER < FIRST
    assert holds_for_all_lists(lambda n: whole(n) == left(n), [whole, left], within)
    n = ANY_NUMBER
    grows = whole(FIRST + n + 1) == whole(FIRST + n) + column(FIRST + n) * MATRIX(FIRST + n)
    for part, is_right in ((right, True), (swapped, False)):
        started = whole(FIRST + 0) == left(FIRST), part.at_start
        assert follows(whole(FIRST + 0) == left(FIRST) + part(0), *started)
        holds = whole(FIRST + n) == left(FIRST) + part(n)
        goes_on = whole(FIRST + n + 1) == left(FIRST) + part(n + 1)
        assert follows(goes_on, holds, grows, part.step, n >= 0, FIRST >= 0) == is_right


def test_rows_that_no_edge_reads_may_be_zero():
    is_read = z3.Function("is read", z3.IntSort(), z3.BoolSort())
    masked = lambda i, k: z3.If(is_read(i), TABLE(i, k), z3.RealVal(0))  # noqa: E731
    read = is_read(SENDERS(EDGE))
    column = z3.Int("column")
    same = masked(SENDERS(EDGE), column) == TABLE(SENDERS(EDGE), column)
    assert follows(same, read)
    assert not follows(same)


def test_a_product_with_a_matrix_is_linear():
    x, y = array("x"), array("y")
    weight = z3.Real("weight")
    of_x, of_y = (Fold(name, lambda k, v=v: v(k) * MATRIX(k)) for name, v in (("x", x), ("y", y)))
    of_both = Fold("both", lambda k: (x(k) + weight * y(k)) * MATRIX(k))
    folds = [of_x, of_y, of_both]
    assert holds_for_all_lists(lambda n: of_both(n) == of_x(n) + weight * of_y(n), folds)


def _linear_past_the_sum(bias_counts):
    """Whether a layer behind the sum over edges is the sum of the layer, by induction over edges.

    Arrays of features are points of which only this is known: a product with the matrix is linear,
    which the test above proves for any number of features.
    """
    features = z3.DeclareSort("features")
    zero = z3.Const("zero", features)
    plus = z3.Function("plus", features, z3.RealSort(), features, features)  # x + w y
    times = z3.Function("times", features, z3.RealSort())  # one column of x @ V
    hidden = z3.Function("hidden", z3.IntSort(), features)
    weights, bias = array("weights"), z3.Real("bias")
    gathered = z3.Function("gathered", z3.IntSort(), features)
    n = ANY_NUMBER
    arrives = RECEIVERS(n) == ANY_ROW
    linear = times(plus(gathered(n), weights(n), hidden(n))) == times(gathered(n)) + weights(
        n
    ) * times(hidden(n))
    grows = gathered(n + 1) == z3.If(arrives, plus(gathered(n), weights(n), hidden(n)), gathered(n))
    by_edges = Fold(
        "by edges",
        lambda e: z3.If(
            RECEIVERS(e) == ANY_ROW, weights(e) * (times(hidden(e)) + bias), z3.RealVal(0)
        ),
    )
    total = Fold("total", lambda e: z3.If(RECEIVERS(e) == ANY_ROW, weights(e), z3.RealVal(0)))

    def claim(m):
        return by_edges(m) == times(gathered(m)) + (total(m) if bias_counts else 1) * bias

    given = linear, grows, gathered(0) == zero, times(zero) == 0
    return holds_for_all_lists(claim, [by_edges, total], *given)


def test_a_layer_goes_behind_a_weighted_sum_and_its_bias_counts_the_weights():
    assert _linear_past_the_sum(bias_counts=True)
    assert not _linear_past_the_sum(bias_counts=False)


def test_a_mean_of_a_layer_is_the_layer_of_the_mean_where_there_are_edges():
    count, product, bias = z3.Reals("count product bias")
    # The sum of the layer is times(sum) + count * bias, by the proof above.
    of_layer = (product + count * bias) / z3.If(count >= 1, count, z3.RealVal(1))
    layer_of = product / z3.If(count >= 1, count, z3.RealVal(1)) + bias
    assert follows(of_layer == layer_of, count >= 1)
    assert not follows(of_layer == layer_of, count >= 0)  # nodes without edges get no bias


def test_numbers_of_a_row_and_of_its_columns_go_through_a_product_with_a_matrix():
    # A norm of the row goes behind the product, and a weight of each column into the matrix.
    row, weights, scale = array("row"), array("weights of columns"), z3.Real("scale")
    before = Fold("before", lambda k: (scale * row(k) * weights(k)) * MATRIX(k))
    behind = Fold("behind", lambda k: row(k) * (weights(k) * MATRIX(k)))
    unscaled = Fold("unscaled", lambda k: row(k) * MATRIX(k))
    assert holds_for_all_lists(lambda n: before(n) == scale * behind(n), [before, behind])
    assert not holds_for_all_lists(lambda n: before(n) == scale * unscaled(n), [before, unscaled])
