"""The examples in docstrings, the README and the docs run as printed."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import jaxgnn

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = [
    module.name
    for module in pkgutil.walk_packages(jaxgnn.__path__, "jaxgnn.")
    if not module.name.rpartition(".")[2].startswith("lib")  # the compiled libraries
]
OPS = (
    "maxk",
    "todense",
    "spmm",
    "sddmm",
    "maxk_spmm",
    "segment_softmax",
    "mhc_pre",
    "sinkhorn",
    "permutation_mixture",
    "mhc_post",
    "mhc_post_pre",
    "mhc_layer",
    "mhc_expand",
    "mhc_head",
    "fused_linear",
    "fused_mlp",
    "hypergraph_conv",
    "edge_mlp_aggregate",
)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_give_what_they_print(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


@pytest.mark.parametrize("name", OPS)
def test_every_public_op_has_an_example_and_says_what_it_raises(name):
    documentation = getattr(jaxgnn.ops, name).__doc__
    for section in ("Args:", "Returns:", "Raises:", "Example:", ">>> "):
        assert section in documentation, f"{name} lacks {section}"


def _blocks(page: Path) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S))


@pytest.mark.parametrize(
    "page", [p for p in PAGES if _blocks(p)], ids=lambda p: str(p.relative_to(ROOT))
)
def test_python_blocks_of_a_page_run_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(_blocks(page), page.name, "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_to_files_of_the_project_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
