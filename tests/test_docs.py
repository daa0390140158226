"""Examples in docstrings, the README and the docs run as printed; the reference is complete."""

import ast
import doctest
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import jaxgnn
from jaxgnn.ops.core.registry import OPS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
KERNELS = sorted((ROOT / "docs/internals/kernels").glob("*.md"))
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))
SECTIONS = {
    "Start": ("start",),
    "Guides": ("guides", "notebooks", "recipes"),
    "Layers and ops": ("layers", "ops"),
    "Performance": ("performance",),
    "Internals": ("internals",),
    "API": ("api",),
}
MODULES = [
    module.name
    for module in pkgutil.walk_packages(jaxgnn.__path__, "jaxgnn.")
    if not module.name.rpartition(".")[2].startswith("lib")  # the compiled libraries
]
PUBLIC_PACKAGES = [
    "jaxgnn",
    *(
        module.name
        for module in pkgutil.walk_packages(jaxgnn.__path__, "jaxgnn.")
        if module.ispkg and "._" not in module.name
    ),
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_give_what_they_print(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


@pytest.mark.parametrize("name", [name for op in OPS for name in op.functions])
def test_every_public_op_has_an_example_and_says_what_it_raises(name):
    documentation = getattr(jaxgnn.ops, name).__doc__
    for section in ("Args:", "Returns:", "Raises:", "Example:", ">>> "):
        assert section in documentation, f"{name} lacks {section}"


def _blocks(page: Path) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S))


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.again("README.md")] * (page != PAGES[0]))
        for page in PAGES
        if _blocks(page)
    ],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_python_blocks_of_a_page_run_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Optimisers of optax and norms of Flax promote dtypes, as JAX does for users.
    with jax.numpy_dtype_promotion("standard"):
        exec(compile(_blocks(page), page.name, "exec"), {"__name__": "__main__"})


@pytest.mark.again("the pages of tests/test_docs.py")
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(notebook, tmp_path):
    # In a process of its own, since one chooses the number of its devices.
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, ROOT / "tools/run_notebook.py", notebook]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_to_files_of_the_project_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", KERNELS, ids=lambda page: page.stem)
def test_files_that_a_page_of_kernels_names_exist(page):
    kernels = ROOT / "pallas_kernels"
    homes = [ROOT, kernels, kernels / page.stem]
    for name in re.findall(r"`([\w/]+\.py)`", page.read_text()):
        is_file = any((home / name).exists() for home in homes)
        assert is_file or list((kernels / page.stem).rglob(name)), f"{page.name} names {name}"


def _public(package: str) -> dict[str, object]:
    """Exports of a package by name, except its packages and modules."""
    module = importlib.import_module(package)
    # ``dir`` has those that are imported on first use, too.
    values = {name: getattr(module, name) for name in dir(module) if not name.startswith("_")}
    return {name: value for name, value in values.items() if not inspect.ismodule(value)}


def _directives() -> list[str]:
    """The names that mkdocstrings documents, wherever they stand."""
    return [
        name for page in PAGES for name in re.findall(r"^:::[ ]*(\S+)$", page.read_text(), re.M)
    ]


def test_every_name_in_the_reference_is_public_and_stands_there_once():
    documented = []
    for directive in _directives():
        package, _, name = directive.rpartition(".")
        assert package in PUBLIC_PACKAGES, f"{directive} is in no public package"
        assert name in _public(package), f"{package} has no {name}"
        documented.append((name, id(_public(package)[name])))
    twice = {name for name, value in documented if documented.count((name, value)) > 1}
    assert not twice


@pytest.mark.parametrize("package", PUBLIC_PACKAGES)
def test_every_public_name_is_in_the_reference(package):
    # An export that another package exports too is documented under one of the two.
    documented = set()
    for directive in _directives():
        home, _, name = directive.rpartition(".")
        documented.add((name, id(_public(home)[name])))
    missing = [n for n, value in _public(package).items() if (n, id(value)) not in documented]
    assert not missing, f"no page of docs/api has these of {package}"


@pytest.mark.parametrize("package", PUBLIC_PACKAGES)
def test_every_public_class_and_function_says_what_it_is(package):
    for name, value in _public(package).items():
        if inspect.isclass(value) or inspect.isroutine(value):
            documentation = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
            # A dataclass without a docstring is given its signature for one.
            assert documentation and not documentation.startswith(f"{name}("), name


def _navigation() -> list[tuple[str, str]]:
    """The pages of the navigation, with their sections; a deeper level has no match."""
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    pages, section = [], ""
    for line in navigation.splitlines():
        if heading := re.fullmatch(r"  - ([\w ]+):", line):
            section = heading[1]
        else:
            page = re.fullmatch(r"(?:  |      )- (?:.+: )?([\w/]+\.md)", line)
            assert page is not None, f"{line!r} is neither a section nor a page of one"
            pages.append((section, page[1]))
    return pages


def test_every_page_is_in_the_navigation_once():
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in PAGES[1:]]
    pages += [f"notebooks/{notebook.stem}.md" for notebook in NOTEBOOKS]
    pages += [
        "internals/changelog.md",
        "internals/contributing.md",
    ]  # tools/docs_pages.py adds these.
    assert sorted(page for _, page in _navigation()) == sorted(pages)


def test_folders_of_the_docs_are_the_sections_of_the_navigation():
    for section, page in _navigation():
        if page != "index.md":
            assert page.partition("/")[0] in SECTIONS[section], f"{page} is in {section}"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


def _docstrings(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            yield ast.get_docstring(node) or ""


@pytest.mark.parametrize("folder", ["jaxgnn", "pallas_kernels", "experiments"])
def test_docstrings_have_double_backticks_and_sections_of_two_spaces(folder):
    single = re.compile(r"(?<!`)`[^`\n]+`(?!`)")
    section = re.compile(r"^(?:Args|Returns|Raises|Attributes|Yields):\n( +)", re.M)
    wrong = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for text in _docstrings(path):
            if single.search(text) or {"  "} < {"  ", *section.findall(text)}:
                wrong.append(f"{path.relative_to(ROOT)}: {text[:60]}")
    assert wrong == []
