"""Parts of pages about runs: tables, confusion matrices and pictures."""

import base64
import mimetypes
from pathlib import Path

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn._html import writer
from jaxgnn._html.writer import Html, cell, element, joined, paragraph

from ._table import Confusion, Table

# A larger matrix is unreadable, and takes megabytes. The most frequent confusions over all classes
# are always listed.
_LARGEST_MATRIX = 64
_MOST_CONFUSED = 10


def table(content: Table) -> Html:
    """Returns a table with its title and note, which scrolls on narrow pages."""
    kinds = ["number" if numeric else "text" for numeric in content.is_numeric()]
    head = [
        cell(name, kind=kind, scope="col")
        for name, kind in zip(content.columns, kinds, strict=True)
    ]
    rows = [
        [
            cell(text, kind=kind, scope=None if place else "row")
            for place, (text, kind) in enumerate(zip(texts, kinds, strict=True))
        ]
        for texts in content.cells()
    ]
    return joined([writer.table(rows, head, title=content.title), paragraph(content.note)])


def confusion(content: Confusion) -> Html:
    """Returns the matrix of a classifier with shaded cells, its scores, and its top confusions."""
    names, matrix = list(content.class_names), content.matrix
    parts = [table(content.table()), table(_most_confused(names, matrix))]
    if len(names) > _LARGEST_MATRIX:
        parts.append(paragraph(f"The matrix of {len(names)} classes is too large to be shown."))
        return joined(parts, "\n")
    head = [element("th", name, scope="col") for name in ("class \\ prediction", *names)]
    rows = [
        [element("th", name, scope="row"), *_shaded(index, row)]
        for index, (name, row) in enumerate(zip(names, matrix, strict=True))
    ]
    title = "Confusion matrix: examples of the row's class that were given the column's"
    return joined([writer.table(rows, head, title=title, class_="matrix"), *parts], "\n")


def _shaded(index: int, row: np.ndarray) -> list[Html]:
    """Returns the cells of a row: right predictions in one colour, wrong ones in another."""
    cells = []
    for place, count in enumerate(row.tolist()):
        # The square root of the share of the row keeps small counts visible.
        part = 0.55 * (count / max(int(row.sum()), 1)) ** 0.5
        kind = "shade" if place == index else "wrong"
        style = f"background: rgba(var(--{kind}), {part:.3f})" if count else None
        cells.append(element("td", str(count), style=style, class_=None if count else "zero"))
    return cells


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


def picture(path: Path) -> Html:
    """Returns a picture, embedded in the page; raises ValueError unless browsers support it."""
    kind, _ = mimetypes.guess_type(path.name)
    if kind not in ("image/png", "image/jpeg", "image/gif", "image/svg+xml", "image/webp"):
        raise bad_input("write_report", "pictures", "PNG, JPEG, GIF, SVG or WebP files", path)
    if not path.is_file():
        raise bad_input("write_report", "pictures", "files that exist", path)
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return writer.figure(element("img", alt=path.stem, src=f"data:{kind};base64,{data}"))
