"""Formulas, links and notebooks, as the site of the docs shows them."""

import json

import pytest

markdown = pytest.importorskip("markdown", reason="`make docs` installs it")
pytest.importorskip("mkdocs", reason="`make docs` installs it")
pytest.importorskip("latex2mathml", reason="`make docs` installs it")

from tools import docs_formulas, docs_pages  # noqa: E402


def _html(text):
    return markdown.markdown(text, extensions=["tables", docs_formulas.makeExtension()])


@pytest.mark.parametrize(
    ("text", "formulas"),
    [
        ("the sum $y_i = \\sum_j x_j$, and $b$", 2),
        ("| a |\n|---|\n| $\\langle a, b\\rangle$ |", 1),
        ("a block\n\n$$\n\\begin{aligned}\na &= b \\\\\nc &= d\n\\end{aligned}\n$$\n", 1),
        ("it costs $5, or $ 6 $ at most, and not $7", 0),
        ("`$HOME` and `$x$` are code", 0),
    ],
)
def test_formulas_become_mathml_and_code_and_money_do_not(text, formulas):
    html = _html(text)
    assert html.count("<math ") == formulas
    assert html.count("$") == (0 if formulas else text.count("$"))


def test_lines_of_a_formula_are_rows_of_a_table():
    html = docs_formulas.mathml("\\begin{aligned}\na &= b \\\\\nc &= d\n\\end{aligned}", "block")
    assert html.count("<mtr>") == 2 and html.count("<mtd") == 4 and 'display="block"' in html


def test_a_word_of_a_formula_is_one_identifier():
    html = docs_formulas.mathml(r"\mathrm{mlp}(x) + h_\mathrm{in} + \langle a, b\rangle")
    assert "<mi>mlp</mi>" in html and "<mi>in</mi>" in html and "<mi>x</mi>" in html
    assert html.count('<mo stretchy="false">') == 4  # the brackets


@pytest.mark.parametrize("formula", [r"\fused x", "a & b"])
def test_a_formula_that_would_be_printed_as_it_is_ends_the_build(formula):
    with pytest.raises(ValueError, match="which is not known"):
        docs_formulas.mathml(formula)


@pytest.mark.parametrize(
    ("source", "page", "link", "expected"),
    [
        ("CONTRIBUTING.md", "internals/contributing.md", "docs/ops/maxk.md#a", "../ops/maxk.md#a"),
        ("CONTRIBUTING.md", "internals/contributing.md", "CHANGELOG.md", "changelog.md"),
        ("docs/index.md", "index.md", "../CHANGELOG.md", "internals/changelog.md"),
        ("docs/start/a.md", "start/a.md", "../notebooks/cora.ipynb", "../notebooks/cora.md"),
        ("docs/start/a.md", "start/a.md", "b.md#c", "b.md#c"),
        ("docs/start/a.md", "start/a.md", "https://arxiv.org/abs/1", "https://arxiv.org/abs/1"),
    ],
)
def test_links_of_the_checkout_lead_to_pages_of_the_site(source, page, link, expected):
    assert docs_pages.moved_links(f"[x]({link})", source, page) == f"[x]({expected})"


def test_a_notebook_is_its_text_its_code_and_what_it_prints(tmp_path):
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "\n", "Text."]},
        {"cell_type": "code", "source": ["print(1)\n"], "outputs": [{"text": ["1\n"]}]},
        {"cell_type": "code", "source": ["x = 2"], "outputs": []},
    ]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    page = docs_pages.notebook_page(tmp_path / "a.ipynb")
    assert page.startswith("# Title\n\nText.\n\n[Download this notebook](a.ipynb)")
    assert page.endswith("```python\nprint(1)\n```\n\n```text\n1\n```\n\n```python\nx = 2\n```\n")
