"""The explanation of a rewrite: in words, with times, and as a page with a picture."""

import re
import xml.etree.ElementTree as ElementTree

import jax
import jax.numpy as jnp
import pytest

import jaxgnn
from jaxgnn.fusion import Measured
from tests.fusion._cases import NODES, RECEIVERS, SENDERS, arrays, fuse

X, KERNEL = arrays((NODES, 3), (3, 3))


def _layer(x):
    largest = jnp.zeros((NODES, 3)).at[RECEIVERS].max(x[SENDERS])
    return jax.ops.segment_sum((x @ KERNEL)[SENDERS], RECEIVERS, NODES) * 2 + largest


@pytest.fixture
def explained():
    return jaxgnn.fuse.explain(fuse(_layer), X)


def _pictures(page):
    """The SVGs of a page, parsed: they have to be well-formed XML."""
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, re.S)]


def _texts(picture):
    return [e.text for e in picture.iter("{http://www.w3.org/2000/svg}text")]


def test_the_page_tells_what_was_rewritten_what_was_not_and_why(explained, tmp_path):
    page = explained.save_html(tmp_path / "new folder" / "page.html").read_text()
    for text in (
        "_layer: 1 rewrites",
        "sum over 40 edges of 3 features",
        "spmm",
        "neighbour_extreme",
        "the reduction does not start at -inf",
        "times as fast",
    ):
        assert text in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")  # needs no network


def test_the_picture_has_both_programs_and_the_op_in_the_place_of_what_it_replaced(explained):
    (picture,) = _pictures(explained._repr_html_())
    texts = _texts(picture)
    assert f"as it is: {explained.equations_before} equations" in texts
    assert f"rewritten: {explained.equations_after} equations" in texts
    assert len(texts) == 2 + explained.equations_before + explained.equations_after
    assert f"scatter-add -> float32[{NODES},3]" in texts
    assert f"spmm -> float32[{NODES},3]" in texts
    fills = [e.get("fill") for e in picture.iter("{http://www.w3.org/2000/svg}rect")]
    coloured = [i for i, fill in enumerate(fills) if fill not in ("#eeeeee", "#bbbbbb")]
    assert len({fills[i] for i in coloured}) == 1  # one rewrite
    assert coloured[-1] >= explained.equations_before > coloured[0]  # on both sides
    widths = [e.get("stroke-width") for e in picture.iter("{http://www.w3.org/2000/svg}path")]
    assert widths.count("2") == len(coloured) - 1  # from each equation to the op


def test_names_of_functions_are_text_in_the_page():
    def run(x):
        return _layer(x)

    run.__name__ = "<script>alert(1)</script>"
    page = jaxgnn.fuse.explain(run, X)._repr_html_()
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_what_is_left_as_it_is_has_a_page_too():
    def run(x):
        jax.debug.print("seen")
        return _layer(x)

    page = jaxgnn.fuse.explain(run, X)._repr_html_()
    assert "untouched, because it has side effects" in page
    assert page.count("<p>None.</p>") == 2

    def no_program(x):
        return float(x.sum())

    page = jaxgnn.fuse.explain(no_program, X)._repr_html_()
    assert "it can not be traced" in page
    assert _pictures(page) == []


def test_measured_times_are_those_of_both_functions():
    explained = jaxgnn.fuse.explain(fuse(_layer), X)
    assert explained.measured.before_ms > 0
    assert explained.measured.after_ms > 0
    assert f"measured: {explained.measured}" in str(explained)
    assert f"Measured: {explained.measured}".replace(">", "&gt;") in explained._repr_html_()


def test_what_does_not_fit_into_memory_is_called_so():
    assert str(Measured(None, 2.0)) == "out of memory -> 2 ms"
    assert str(Measured(3.0, 2.0)) == "3 ms -> 2 ms, 1.5 times as fast"


def test_shapes_can_not_be_measured():
    like = jax.ShapeDtypeStruct(X.shape, X.dtype)
    assert jaxgnn.fuse.explain(fuse(_layer), like).measured is None
    with pytest.raises(ValueError, match="explain: args must be arrays, which measure=True runs"):
        jaxgnn.fuse.explain(_layer, like, measure=True)


def test_nothing_runs_where_nothing_is_rewritten_or_times_are_not_wanted():
    assert jaxgnn.fuse.explain(lambda x: x + 1, X).measured is None
    assert jaxgnn.fuse.explain(fuse(_layer), X, measure=False).measured is None


def test_explained_inside_of_a_transformation_has_no_times():
    found = []

    def run(x):
        found.append(jaxgnn.fuse.explain(fuse(_layer), x))
        return x

    jax.jit(run)(X)
    assert found[0].findings.applied and found[0].measured is None


def test_rewrites_inside_of_loops_are_in_the_tables_alone():
    def run(x):
        return jax.lax.scan(lambda c, _: (0.1 * _layer(c), None), x, None, length=2)[0]

    explained = jaxgnn.fuse.explain(fuse(run), X)
    page = explained._repr_html_()
    assert "scan: scatter-add" in page
    (picture,) = _pictures(page)
    assert not any("spmm" in text for text in _texts(picture))
