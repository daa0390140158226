"""The memory that the ops of attention need."""

import pytest

from experiments.benchmarks.attention_memory import HEADS, WIDTH, measure, prepared_shapes


@pytest.mark.parametrize("op", ["gat_attention", "gatv2_attention", "dot_attention"])
def test_there_is_no_array_of_edges_times_heads_times_width(op):
    nodes, edges = 50, 20_000
    made = measure(op, prepared_shapes(nodes, edges), "float32")
    of_nodes = nodes * HEADS * WIDTH * 4
    assert made.results >= 2 * of_nodes  # the sums, and a gradient as large at least
    assert made.temporary < edges * HEADS * WIDTH * 4 / 2
