"""Writes HTML and SVG: elements, tables and whole pages that need no network.

Strings are text, and escaped. ``Html`` is finished, and nested as it is.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping

_VOID = ("img", "meta")  # Elements without content, and without an end.

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


class Html(str):
    """Finished HTML, which is not escaped again."""


def joined(parts: Iterable[str], between: str = "") -> Html:
    """Joins pieces of HTML and texts; texts are escaped."""
    return Html(between.join(p if isinstance(p, Html) else html.escape(p) for p in parts))


def element(name: str, /, *content: str, **attributes: object) -> Html:
    """Returns an element of HTML or SVG.

    Args:
      name: its name.
      content: pieces of HTML and texts within it.
      attributes: values by name, of which those that are None are omitted. Underscores become
        hyphens, except for one at the end, as in ``class_``.
    """
    opened = "".join(
        f' {key.removesuffix("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    end = "" if name in _VOID else f"{joined(content)}</{name}>"
    return Html(f"<{name}{opened}>{end}")


def page(title: str, parts: Iterable[str]) -> Html:
    """Builds a whole page from its title and its content."""
    size = element("meta", name="viewport", content="width=device-width, initial-scale=1")
    head = [
        *(element("meta", charset="utf-8"), size),
        *(element("title", title), element("style", Html(_STYLE))),
    ]
    body = [element("h1", title), *parts]
    contents = [_lines("head", head), _lines("body", body)]
    return Html(f"<!DOCTYPE html>\n{element('html', joined(contents, '\n'), lang='en')}\n")


def _lines(name: str, parts: Iterable[str]) -> Html:
    return element(name, joined(["", *parts, ""], "\n"))


def section(heading: str, parts: Iterable[str]) -> Html:
    """Returns a heading with its content; empty if there is no content."""
    parts = [part for part in parts if part]
    return joined([element("h2", heading), *parts], "\n") if parts else Html()


def paragraph(text: str) -> Html:
    """Returns a line of smaller text; empty for empty text."""
    return element("p", text, class_="quiet") if text else Html()


def command(text: str) -> Html:
    """Returns a command line; a click selects all of it."""
    return element("pre", text)


def cell(text: str, *, kind: str = "text", scope: str | None = None) -> Html:
    """Returns a cell of a table, which is a heading of the ``scope`` ``row`` or ``col``, if any."""
    return element("td" if scope is None else "th", text, scope=scope, class_=kind)


def table(
    rows: Iterable[Iterable[Html]],
    head: Iterable[Html] = (),
    *,
    title: str = "",
    class_: str | None = None,
) -> Html:
    """Returns a table of cells, which scrolls on narrow pages.

    Args:
      rows: the cells of each row.
      head: the cells of the headings, if any.
      title: text above the table.
      class_: class of the table.
    """
    heading = joined(head)
    top = element("thead", element("tr", heading)) if heading else Html()
    body = _lines("tbody", [element("tr", *cells) for cells in rows])
    return figure(element("table", joined([top, body], "\n"), class_=class_), title)


def figure(content: Html, title: str = "") -> Html:
    """Returns a wide part of a page, which scrolls on narrow ones, with text above it."""
    caption = element("figcaption", title) if title else Html()
    return element("figure", caption, element("div", content, class_="scroll"))


def pairs(values: Mapping[str, str]) -> Html:
    """Returns a table of names and values; empty if there are none."""
    rows = [[cell(name, scope="row"), cell(text)] for name, text in values.items()]
    return table(rows) if rows else Html()
