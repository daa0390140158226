"""Pictures: what is on the axes, large graphs, missing packages, errors."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CSRGraph, draw
from jaxgnn.draw import draw_embedding, draw_graph

GRAPH = CSRGraph.from_edges([0, 1, 2, 2, 3], [1, 0, 0, 2, 1], 4)
POSITIONS = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
POINTS = np.random.default_rng(0).normal(size=(12, 5))


def _arrows(ax):
    """The ends and the style of each drawn edge."""
    return [
        (tuple(text.xyann), tuple(text.xy), text.arrow_patch.get_arrowstyle())
        for text in ax.texts
        if text.arrow_patch is not None
    ]


def test_classes_have_a_legend_and_single_directions_an_arrow():
    ax = draw_graph(
        GRAPH, [0, 1, 1, 0], positions=POSITIONS, class_names=("left", "right"), title="four"
    )
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["left", "right"]
    assert ax.get_title() == "four"
    drawn = np.concatenate([np.asarray(c.get_offsets()) for c in ax.collections])
    np.testing.assert_array_equal(np.sort(drawn, axis=0), np.sort(POSITIONS, axis=0))
    arrows = _arrows(ax)  # the loop is missing, and both directions of a pair are one line
    assert len(arrows) == 3
    kinds = {type(style).__name__ for _, _, style in arrows}
    assert kinds == {"Curve", "CurveFilledB"}
    ax.figure.canvas.draw()


def test_nodes_choose_a_part_and_numbers_a_bar_of_colours():
    ax = draw_graph(GRAPH, np.linspace(0, 1, 4), nodes=[1, 0], positions=POSITIONS, labels=True)
    assert [text.get_text() for text in ax.texts if text.arrow_patch is None] == ["1", "0"]
    assert len(_arrows(ax)) == 1 and len(ax.figure.axes) == 2


def test_scores_of_edges_are_widths_and_the_same_axes_are_returned():
    given = draw_graph(GRAPH, positions=POSITIONS)
    slots = np.zeros(5)
    slots[0], slots[-1] = -1.0, 2.0
    before = len(_arrows(given))
    ax = draw_graph(GRAPH, edge_scores=slots, positions=POSITIONS, ax=given)
    assert ax is given
    widths = [text.arrow_patch.get_linewidth() for text in ax.texts][before:]
    assert len(widths) == 4 and max(widths) == pytest.approx(3.4)


@pytest.mark.parametrize("layout", ["spring", "circular"])
def test_a_layout_is_the_same_each_time(layout):
    first, second = (
        np.asarray(draw_graph(GRAPH, layout=layout, seed=3).collections[0].get_offsets())
        for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)
    assert first.shape == (4, 2)


def test_an_embedding_is_drawn_by_its_principal_components():
    ax = draw_embedding(jnp.asarray(POINTS, jnp.float32), np.arange(12) % 2)
    drawn = np.concatenate([np.asarray(c.get_offsets()) for c in ax.collections])
    _, singular, _ = np.linalg.svd(POINTS - POINTS.mean(axis=0))
    np.testing.assert_allclose(np.linalg.norm(drawn, axis=0), singular[:2], rtol=1e-5)
    two = draw_embedding(POINTS[:, :2])
    np.testing.assert_array_equal(two.collections[0].get_offsets(), POINTS[:, :2])


@pytest.mark.again("test_an_embedding_is_drawn_by_its_principal_components")
def test_tsne_keeps_two_clusters_apart():
    far = np.concatenate([POINTS[:6] * 0.01, POINTS[6:] * 0.01 + 50])
    ax = draw_embedding(far, np.repeat([0, 1], 6), method="tsne")
    a, b = (np.asarray(c.get_offsets()) for c in ax.collections)
    between = np.linalg.norm(a[:, None] - b[None], axis=-1).min()
    assert between > np.linalg.norm(a - a.mean(axis=0), axis=1).max()


def test_a_sample_of_many_points_is_said_aloud():
    with pytest.warns(UserWarning, match="a random sample of 5 of 12 points; pass a larger"):
        ax = draw_embedding(POINTS, max_points=5, title="nodes")
    assert ax.get_title() == "nodes (5 of 12 points)"
    assert len(ax.collections[0].get_offsets()) == 5


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("networkx", lambda: draw_graph(GRAPH)),
        ("matplotlib", lambda: draw_graph(GRAPH, positions=POSITIONS)),
        ("scikit-learn", lambda: draw_embedding(POINTS)),
    ],
)
def test_a_missing_package_is_named_with_its_extra(monkeypatch, name, call):
    module = {"scikit-learn": "sklearn"}.get(name, name)
    for known in [m for m in sys.modules if m.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, known)
    monkeypatch.setattr(sys, "meta_path", [_Missing(module), *sys.meta_path])
    with pytest.raises(ImportError, match=rf"{name} is not installed; do pip install 'jaxgnn\[dra"):
        call()


class _Missing:
    """A finder for which a package is not installed."""

    def __init__(self, name):
        self.name = name

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == self.name:
            raise ModuleNotFoundError(f"No module named {self.name!r}", name=self.name)
        return None


ERRORS = {
    "graph": (lambda: draw_graph(np.eye(3)), "graph must be a jaxgnn.graph.CSRGraph"),
    "square": (
        lambda: draw_graph(CSRGraph.from_edges([0], [0], 1, num_senders=2)),
        "graph must be square",
    ),
    "large": (
        lambda: draw_graph(GRAPH, max_nodes=3),
        r"graph must be of at most 3 nodes, got 4; pass nodes= with",
    ),
    "nodes": (lambda: draw_graph(GRAPH, nodes=[0, 4]), r"nodes must be different ids .*\[0, 4\)"),
    "twice": (lambda: draw_graph(GRAPH, nodes=[0, 0]), "nodes must be different ids"),
    "colors": (lambda: draw_graph(GRAPH, [0, 1]), r"node_colors must be .* got int64\[2\]"),
    "names": (
        lambda: draw_graph(GRAPH, [0, 1, 2, 2], class_names=("a",)),
        "class_names must be a name for each class from 0 to 2, got 1 names",
    ),
    "scores": (lambda: draw_graph(GRAPH, edge_scores=[1.0]), "edge_scores must be numbers of"),
    "positions": (lambda: draw_graph(GRAPH, positions=[[0, 1]]), "positions must be numbers of"),
    "layout": (lambda: draw_graph(GRAPH, layout="dot"), "layout must be one of 'spring'"),
    "axes": (lambda: draw_graph(GRAPH, ax=3), "ax must be matplotlib Axes, or None, got int"),
    "traced": (lambda: jax.jit(draw_graph)(GRAPH), "graph must be concrete; call it outside jit"),
    "points": (lambda: draw_embedding(POINTS[0]), r"x must be of shape \[points, features\]"),
    "nan": (lambda: draw_embedding(POINTS * np.nan), r"x must be finite, got nan at \[0, 0\]"),
    "method": (lambda: draw_embedding(POINTS, method="umap"), "method must be 'pca' or 'tsne'"),
    "sample": (lambda: draw_embedding(POINTS, max_points=2), "max_points must be an int of at"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_the_argument(name):
    call, message = ERRORS[name]
    with pytest.raises(ValueError, match=rf"^draw\.draw_(graph|embedding): {message}"):
        call()


def test_the_package_imports_no_drawing_library():
    assert draw.draw_graph is draw_graph
    with pytest.raises(AttributeError, match=r"did you mean jaxgnn\.draw\.draw_graph"):
        _ = draw.draw_graf
