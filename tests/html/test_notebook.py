"""HTML for notebooks: numbers, drawings of small graphs, traced graphs, escaped texts."""

import re
import xml.etree.ElementTree as ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CSRGraph, datasets
from jaxgnn._html.drawing import SmallGraph, drawing, small_layout
from jaxgnn._html.notebook import facts
from jaxgnn.datasets import NodeDataset
from jaxgnn.graph import GraphBatch, GraphSample, HeteroGraph

RING = CSRGraph.from_edges([0, 1, 2, 2], [1, 2, 0, 2], 3)
WRITES = ("author", "writes", "paper")
HETERO = HeteroGraph({WRITES: CSRGraph.from_edges([0, 1], [2, 0], 3, num_senders=2)})
BATCH = GraphBatch.from_graphs(
    [GraphSample([0, 1], [1, 0], 2, nodes=np.ones((2, 3), np.float32)) for _ in range(2)],
    pad_to=(6, 6),
)


def _text(html):
    """The text of the HTML, which must be well-formed."""
    root = ElementTree.fromstring(html)
    return " | ".join(text.strip() for text in root.itertext() if text.strip())


def _circles(html):
    return len(re.findall(r"<circle [^>]*><title>", html))


def test_a_graph_shows_its_numbers_and_is_drawn():
    html = RING._repr_html_()
    text = _text(html)
    for part in ("CSRGraph", "nodes | 3", "edges | 4", "1 / 1.3 / 2", "indices | int32[4]"):
        assert part in text
    assert _circles(html) == 3 and html.count("<polygon") == 3  # and a loop
    padded = CSRGraph.from_edges([0, 1], [1, 0], 2, [1.0, 2.0], edge_mask=[True, False])
    assert "edges | 1, and 1 slots of padding" in _text(padded._repr_html_())
    assert "weights | float32[2]" in _text(padded._repr_html_())
    two_sides = _text(HETERO[WRITES]._repr_html_())
    assert "receivers | 3 | senders | 2" in two_sides and "svg" not in two_sides


def test_a_large_graph_is_not_drawn():
    ring = np.arange(41)
    html = CSRGraph.from_edges(ring, np.roll(ring, 1), 41)._repr_html_()
    assert "<svg" not in html and "nodes | 41" in _text(html)


def test_batches_and_relations():
    html = BATCH._repr_html_()
    text = _text(html)
    for part in ("graphs | 2 of 3 slots", "nodes | 4 of 6", "edges | 4 of 6", "float32[6, 3]"):
        assert part in text
    assert _circles(html) == 4
    html = HETERO._repr_html_()
    assert "nodes: author | 2" in _text(html) and "author → writes → paper | 2 edges" in _text(html)
    assert _circles(html) == 5 and "<title>paper 2</title>" in html


@pytest.mark.parametrize("value", [RING, BATCH, HETERO], ids=lambda value: type(value).__name__)
def test_traced_and_stacked_graphs_show_shapes(value):
    found = []
    jax.jit(lambda traced: found.append(traced._repr_html_()))(value)
    stacked = jax.tree.map(lambda a: jnp.stack([jnp.asarray(a)] * 2), value)
    found.append(stacked._repr_html_())
    for html in found:
        assert "<svg" not in html and type(value).__name__ in _text(html)
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), value)
    assert "<svg" not in shapes._repr_html_()


DATA_SETS = {
    "cora": (datasets.cora, "NodeDataset(name='cora', senders=int32[10138]", "nodes | 2,485"),
    "mutag": (datasets.mutag, "GraphsDataset(name='mutag', senders=int32[", "graphs | 188"),
    "digits": (datasets.digits_hypergraph, "HypergraphDataset(name=", "hyperedges | "),
    "text": (datasets.pydoc_text, "TextDataset(name='pydoc', train=uint8[", "train | uint8["),
    "split": (
        lambda: datasets.split_edges(np.arange(20), np.roll(np.arange(20), 1), 20, supervision=0.2),
        "EdgeSplit(train=LinkPart(messages=int32[2, 14]",
        "num_nodes | 20",
    ),
}


@pytest.mark.parametrize("name", DATA_SETS)
def test_data_sets_show_shapes_instead_of_arrays(name):
    make, start, row = DATA_SETS[name]
    data = make()
    assert repr(data).startswith(start) and "array(" not in repr(data) and len(repr(data)) < 700
    text = _text(data._repr_html_())
    assert row in text and type(data).__name__ in text
    assert ("<svg" in data._repr_html_()) == (name == "mutag")


def test_texts_of_users_are_escaped():
    ids = np.array([0, 1], np.int32)
    data = NodeDataset(
        name="<script>alert(1)</script>",
        senders=ids,
        receivers=ids[::-1].copy(),
        features=np.zeros((2, 1), np.float32),
        labels=ids,
        train=ids[:1],
        validation=ids[:0],
        test=ids[1:],
        num_classes=2,
        node_names=np.array(["<b>", "a & b"]),
    )
    html = data._repr_html_()
    assert "<script>" not in html and "<b>" not in html.replace("<div><b>", "")
    assert "<title>&lt;b&gt;</title>" in html and "a &amp; b" in html
    relation = HeteroGraph({("<i>", "x", "<i>"): RING})._repr_html_()
    assert "<i>" not in relation and "&lt;i&gt; 0" in relation
    assert "&lt;" in facts("<", [("<", "<")])


def test_a_layout_is_in_the_square_repeats_and_keeps_neighbours_together():
    path = np.arange(9), np.arange(1, 10)
    at = small_layout(10, *path)
    np.testing.assert_array_equal(at, small_layout(10, *path))
    assert at.min() >= 0 and at.max() <= 1 and np.ptp(at, axis=0).max() == pytest.approx(1)
    lengths = np.linalg.norm(at[1:] - at[:-1], axis=1)
    assert lengths.max() < np.linalg.norm(at[0] - at[9]) and lengths.min() > 0.02
    for nodes in (0, 1, 2):
        assert small_layout(nodes, path[0][:0], path[0][:0]).shape == (nodes, 2)


def test_a_drawing_of_unknown_classes_is_grey():
    ends = np.array([0]), np.array([1])
    assert 'fill="#bbb"' in drawing(SmallGraph(2, *ends, groups=np.array([-1, 0])))
