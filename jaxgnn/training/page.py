"""HTML pages that need no network: all text is escaped, pictures and styles are embedded."""

import base64
import html
import mimetypes
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from jaxgnn._errors import bad_input

from ._table import Confusion, Table

# A larger matrix is unreadable, and takes megabytes. The most frequent confusions over all classes
# are always listed.
_LARGEST_MATRIX = 64
_MOST_CONFUSED = 10

_STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #1c1f23; --quiet: #5b6470;
  --line: #d9dde2; --box: #f4f6f8; --shade: 31, 119, 180; --wrong: 214, 90, 39; }
@media (prefers-color-scheme: dark) { :root { --page: #15181c; --text: #e6e8eb; --quiet: #9aa4b0;
  --line: #353b43; --box: #1f242a; --shade: 77, 159, 217; --wrong: 235, 125, 75; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1.5rem 1rem 4rem; background: var(--page);
  color: var(--text); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .75rem; padding-bottom: .25rem;
  border-bottom: 1px solid var(--line); }
p { margin: .5rem 0; }
.quiet { color: var(--quiet); font-size: .9rem; }
pre { background: var(--box); border-radius: 6px; padding: .75rem 1rem; white-space: pre-wrap;
  overflow-wrap: anywhere; user-select: all; font-size: .9rem; margin: .5rem 0 1rem; }
figure { margin: 1.25rem 0; }
figcaption { font-weight: 600; margin-bottom: .4rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .75rem; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); }
th { font-weight: 600; }
tbody th { font-weight: 400; position: sticky; left: 0; background: var(--page); }
thead th { border-bottom-width: 2px; vertical-align: bottom; }
.number { text-align: right; white-space: nowrap; }
.text { min-width: 8rem; max-width: 32rem; overflow-wrap: break-word; }
.matrix td { text-align: center; min-width: 2.6rem; }
.matrix .zero { color: var(--quiet); opacity: .6; }
.matrix thead th { text-align: center; white-space: nowrap; }
img { display: block; max-width: 100%; min-width: 36rem; height: auto; background: #fff;
  border-radius: 6px; }
"""


def page(title: str, parts: Iterable[str]) -> str:
    """Builds a whole page from its title, as text, and its content in HTML."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{html.escape(title)}</h1>\n" + "\n".join(parts) + "\n</body>\n</html>\n"
    )


def section(heading: str, parts: Iterable[str]) -> str:
    """A heading with its content; empty if there is no content."""
    parts = [part for part in parts if part]
    return "\n".join([f"<h2>{html.escape(heading)}</h2>", *parts]) if parts else ""


def paragraph(text: str) -> str:
    """A line of smaller text; empty for empty text."""
    return f'<p class="quiet">{html.escape(text)}</p>' if text else ""


def command(text: str) -> str:
    """A command line; a click selects all of it."""
    return f"<pre>{html.escape(text)}</pre>"


def table(content: Table) -> str:
    """A table with its title and note, which scrolls on narrow pages."""
    kinds = ["number" if numeric else "text" for numeric in content.is_numeric()]
    head = "".join(
        f'<th scope="col" class="{kind}">{html.escape(name)}</th>'
        for name, kind in zip(content.columns, kinds, strict=True)
    )
    body = "\n".join(
        "<tr>" + "".join(map(_cell, ["th", *["td"] * len(cells)], kinds, cells)) + "</tr>"
        for cells in content.cells()
    )
    return _scrolling(content.title, "", head, body) + paragraph(content.note)


def _cell(element: str, kind: str, text: str) -> str:
    scope = ' scope="row"' if element == "th" else ""
    return f'<{element}{scope} class="{kind}">{html.escape(text)}</{element}>'


def pairs(values: Mapping[str, str]) -> str:
    """A table of names and values; empty if there are none."""
    if not values:
        return ""
    body = "\n".join(
        f"<tr>{_cell('th', 'text', name)}{_cell('td', 'text', text)}</tr>"
        for name, text in values.items()
    )
    return _scrolling("", "", "", body)


def confusion(content: Confusion) -> str:
    """The matrix of a classifier with shaded cells, its scores, and its top confusions."""
    names, matrix = list(content.class_names), content.matrix
    parts = [table(content.table()), table(_most_confused(names, matrix))]
    if len(names) > _LARGEST_MATRIX:
        parts.append(paragraph(f"The matrix of {len(names)} classes is too large to be shown."))
        return "\n".join(parts)
    head = '<th scope="col">class \\ prediction</th>' + "".join(
        f'<th scope="col">{html.escape(name)}</th>' for name in names
    )
    body = "\n".join(
        f'<tr><th scope="row">{html.escape(name)}</th>{_shaded(index, row)}</tr>'
        for index, (name, row) in enumerate(zip(names, matrix, strict=True))
    )
    title = "Confusion matrix: examples of the row's class that were given the column's"
    return "\n".join([_scrolling(title, "matrix", head, body), *parts])


def _shaded(index: int, row: np.ndarray) -> str:
    """The cells of a row: right predictions in one colour, wrong ones in another."""
    cells = []
    for place, count in enumerate(row.tolist()):
        # The square root of the share of the row keeps small counts visible.
        part = 0.55 * (count / max(int(row.sum()), 1)) ** 0.5
        kind = "shade" if place == index else "wrong"
        shade = f'style="background: rgba(var(--{kind}), {part:.3f})"'
        cells.append(f"<td {shade if count else 'class="zero"'}>{count}</td>")
    return "".join(cells)


def _most_confused(names: list[str], matrix: np.ndarray) -> Table:
    wrong = matrix - np.diag(np.diag(matrix))
    rows = []
    for place in np.argsort(-wrong, axis=None, kind="stable")[:_MOST_CONFUSED]:
        true, predicted = divmod(int(place), len(names))
        count = int(wrong[true, predicted])
        if count > 0:
            share = f"{100 * count / matrix[true].sum():.1f}"
            rows.append((names[true], names[predicted], count, share))
    return Table(
        title="What is confused most",
        columns=("class", "taken for", "examples", "% of the class"),
        rows=tuple(rows),
        note="" if rows else "Nothing: every prediction is right.",
    )


def picture(path: Path) -> str:
    """A picture, embedded in the page; ValueError unless browsers support it."""
    kind, _ = mimetypes.guess_type(path.name)
    if kind not in ("image/png", "image/jpeg", "image/gif", "image/svg+xml", "image/webp"):
        raise bad_input("write_report", "pictures", "PNG, JPEG, GIF, SVG or WebP files", path)
    if not path.is_file():
        raise bad_input("write_report", "pictures", "files that exist", path)
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    name = html.escape(path.stem)
    image = f'<img alt="{name}" src="data:{kind};base64,{data}">'
    return f'<figure><div class="scroll">{image}</div></figure>'


def _scrolling(title: str, kind: str, head: str, body: str) -> str:
    """A table built from parts in HTML, except for the title, which is text."""
    caption = f"<figcaption>{html.escape(title)}</figcaption>" if title else ""
    heading = f"<thead><tr>{head}</tr></thead>" if head else ""
    return (
        f"<figure>{caption}"
        f'<div class="scroll"><table class="{kind}">{heading}\n<tbody>\n{body}\n</tbody></table>'
        "</div></figure>"
    )
