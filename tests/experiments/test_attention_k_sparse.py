"""The benchmark of attention over k-sparse values times both ways, and counts their bytes."""

import pytest

from experiments.benchmarks.attention_k_sparse import OPS, bytes_of_edge, measure
from jaxgnn.graph import CSRGraph


@pytest.mark.again("tests/ops/attention/test_attention.py")
@pytest.mark.parametrize("op", OPS)
def test_both_ways_run_with_all_gradients(op):
    graph = CSRGraph.from_edges([0, 1, 2], [1, 2, 0], 3)
    times = measure(op, graph, 4)
    assert times.keys() == {"sparse", "expanded"} and all(times.values())


def test_bytes_are_those_of_the_page_of_the_op():
    assert bytes_of_edge("gat_attention", 8, 64, 4) == (144, 768)
    assert bytes_of_edge("dot_attention", 16, 64, 4) == (1288, 1536)
