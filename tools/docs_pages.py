"""A hook of MkDocs: pages that are written elsewhere, the version, and the repository.

The changelog, the guide for contributors and the notebooks are pages of the site, and each has one
source.
"""

import json
import posixpath
import re
import tomllib
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# Files of the checkout, and the pages that show them.
COPIES = {
    "CHANGELOG.md": "internals/changelog.md",
    "CONTRIBUTING.md": "internals/contributing.md",
}
_LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
_NOTEBOOK = re.compile(r"^notebooks/(\w+)\.ipynb$")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Adds the version to the title, and the link to the repository if the project names one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    config.site_name = f"{project['name']} {project['version']}"
    urls = {name.lower(): url for name, url in project.get("urls", {}).items()}
    config.repo_url = urls.get("repository", urls.get("source"))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that have their sources elsewhere."""
    for source, page in COPIES.items():
        text = moved_links((ROOT / source).read_text(), source, page)
        files.append(File.generated(config, page, content=text))
    for notebook in sorted((ROOT / "docs/notebooks").glob("*.ipynb")):
        page = f"notebooks/{notebook.stem}.md"
        files.append(File.generated(config, page, content=notebook_page(notebook)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Leads links to files of the checkout, which GitHub follows, to their pages of the site."""
    source = page.file.src_uri
    if source in COPIES.values() or source.startswith("notebooks/"):
        return markdown
    return moved_links(markdown, f"docs/{source}", source)


def moved_links(text: str, source: str, page: str) -> str:
    """Rewrites the links of a file ``source`` of the checkout for ``page``, below ``docs/``.

    Args:
      text: Markdown of the file.
      source: The file, relative to the root of the checkout.
      page: The page of the site that shows it.
    """

    def one(match: re.Match) -> str:
        target = match[1]
        if "://" in target:
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        inside = COPIES.get(path, path.removeprefix("docs/"))
        inside = _NOTEBOOK.sub(r"notebooks/\1.md", inside)
        relative = posixpath.relpath(inside, posixpath.dirname(page) or ".")
        return f"]({relative}{match[2] or ''})"

    return _LINK.sub(one, text)


def notebook_page(path: Path) -> str:
    """Returns a notebook as Markdown: its text, its code, and what the code has printed."""
    cells = []
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"]).rstrip()
        cells.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            cells.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
    title, *others = cells
    download = f"[Download this notebook]({path.name}) and run it from top to bottom."
    return "\n\n".join([title, download, *others]) + "\n"
