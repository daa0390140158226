"""The command that times second derivatives of attention."""

import pytest

from experiments.benchmarks import attention_second_order
from experiments.benchmarks._workloads import Workload
from experiments.benchmarks.attention_second_order import HEADS, WIDTH, Options, measure


def test_by_the_kernels_there_is_no_array_of_edges_times_heads_times_width():
    graph = Workload("random", 50, 20_000).graph()
    made = measure("gat_attention", graph, most_bytes=0)
    full = graph.num_edges * HEADS * WIDTH * 4
    assert made["kernels"].temporary < full / 2 < full < made["xla"].temporary
    assert made["kernels"].timing is made["xla"].timing is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"edges": 0}, "--edges must be greater than zero, got 0"),
        ({"most_gib": -1.0}, "--most-gib must be greater than zero, got -1.0"),
        ({"like": "redit"}, "--like must be one of .*reddit.*, got 'redit'"),
    ],
)
def test_options_that_make_no_sense_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        Options(**options)


def test_it_prints_a_line_for_an_op(capsys, monkeypatch):
    of_gat = {"gat_attention": attention_second_order.ARRAYS["gat_attention"]}
    monkeypatch.setattr(attention_second_order, "ARRAYS", of_gat)
    attention_second_order.main(Options(nodes=8, edges=20, most_gib=1.0))
    (line,) = capsys.readouterr().out.splitlines()[2:]
    assert line.startswith("gat_attention: kernels ")
    assert line.count(" ms, temporary ") == 2
