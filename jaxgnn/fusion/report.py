"""Reports of the rewrites of ``jaxgnn.fuse``, as text and as a page with both programs as SVG."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxgnn.fusion.program.program import Equation, Program, closure, is_variable
from jaxgnn.fusion.rewriting import Applied, Findings

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 1.5rem; color: #1c1f23; background: #fff; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; }
th, td { padding: .25rem .75rem; text-align: left; border-bottom: 1px solid #d9dde2; }
.mark { display: inline-block; width: .8em; height: .8em; border: 1px solid #666; }
.scroll { overflow-x: auto; }
"""


@dataclass(frozen=True)
class Measured:
    """The times of the original and the rewritten function, in milliseconds.

    Attributes:
      before_ms: median time of a call of the original function; None if it ran out of memory.
      after_ms: median time of a call of the rewritten function; None if it ran out of memory.
    """

    before_ms: float | None
    after_ms: float | None

    def __str__(self) -> str:
        shown = " -> ".join(
            "out of memory" if ms is None else f"{ms:.3g} ms"
            for ms in (self.before_ms, self.after_ms)
        )
        if self.before_ms is None or self.after_ms is None:
            return shown
        return f"{shown}, {self.before_ms / self.after_ms:.3g} times as fast"


@dataclass(frozen=True)
class Explanation:
    """The rewrites of each rule, the refusals, and their reasons; ``print`` shows it.

    Attributes:
      name: name of the function.
      findings: all results of the rules.
      equations_before: equations of the function's jaxpr, calls expanded and repeats removed.
      equations_after: equations of the jaxpr that runs, ops counted as one each.
      measured: times of both functions; None if they were not measured.
    """

    name: str
    findings: Findings
    equations_before: int
    equations_after: int
    measured: Measured | None = None
    _programs: tuple[Program, Program] | None = field(default=None, repr=False, compare=False)

    @property
    def headline(self) -> str:
        """A line with the number of rewrites."""
        return (
            f"{self.name}: {len(self.findings.applied)} rewrites, "
            f"{self.equations_before} equations -> {self.equations_after}"
        )

    def __str__(self) -> str:
        lines = [self.headline]
        lines += [f"  untouched, because {reason}" for reason in self.findings.untouched]
        for one in self.findings.applied:
            lines += [f"  {one.rule}: {one.note}", f"    {one.where}; {self._sizes(one)}"]
            lines += [f"    {one.in_step}"] if one.in_step else []
            lines += [f"    assumes {'; '.join(one.assumes)}"] if one.assumes else []
        if not (self.findings.untouched or self.findings.applied or self.findings.refused):
            lines.append("  it has no gathers, scatters, or other code that a rule is for")
        if self.measured is not None:
            lines.append(f"  measured: {self.measured}")
        for refused in self.findings.refused:
            lines += [f"  not {refused.rule}: {refused.reason}", f"    {refused.where}"]
        return "\n".join(lines)

    def save_html(self, path: str | Path) -> Path:
        """Writes a page that needs no network: the programs side by side, and tables.

        Args:
          path: the file; its folder is created if it is missing.

        Returns:
          The path.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._page(), encoding="utf-8")
        return path

    def _repr_html_(self) -> str:
        return self._page()

    def _sizes(self, one: Applied) -> str:
        return f"{_amount(one.bytes_before)} -> {_amount(one.bytes_after)}"

    def _page(self) -> str:
        texts = [f"untouched, because {reason}" for reason in self.findings.untouched]
        texts += [] if self.measured is None else [f"Measured: {self.measured}."]
        parts = [f"<h1>{html.escape(self.headline)}</h1>"]
        parts += [f"<p>{html.escape(text)}</p>" for text in texts]
        if self._programs is not None:
            picture = _svg_of(*self._programs, self.findings.applied)
            parts.append(f'<div class="scroll">{picture}</div>')
        parts += ["<h2>Rewritten</h2>", self._table_of_rewrites()]
        parts += ["<h2>Not rewritten</h2>", self._table_of_refusals()]
        return (
            f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            f"<title>{html.escape(self.name)}</title><style>{_STYLE}</style></head>\n"
            f"<body>{chr(10).join(parts)}</body></html>\n"
        )

    def _table_of_rewrites(self) -> str:
        rows = []
        for number, one in enumerate(self.findings.applied):
            mark = f'<span class="mark" style="background: {_colour_of(number)}"></span>'
            cells = [one.rule, one.note, one.where, self._sizes(one), "; ".join(one.assumes)]
            rows.append([mark, *map(html.escape, cells)])
        return _table(["", "rule", "what", "where", "bytes", "assumes"], rows)

    def _table_of_refusals(self) -> str:
        refused = [(one.rule, one.reason, one.where) for one in self.findings.refused]
        return _table(["rule", "why not", "where"], [list(map(html.escape, r)) for r in refused])


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table of cells that are HTML already."""
    if not rows:
        return "<p>None.</p>"
    head = "".join(f"<th>{title}</th>" for title in titles)
    body = "".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>\n" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>"


def _amount(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


_ROW, _BOX, _GAP, _WIDTH = 24, 18, 150, 330  # Sizes in pixels.
_TOP, _SIDE = 40, 70
_MOST = 200  # Most equations that are drawn of each program.
# Okabe and Ito's colours, which differ for all eyes; rewrites take turns.
_COLOURS = ("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#cc79a7", "#d55e00", "#0072b2")
_KEPT, _DROPPED = "#eeeeee", "#bbbbbb"


@dataclass(frozen=True)
class _Group:
    """Equations that one rewrite has replaced."""

    before: frozenset[int]  # Positions of the removed equations.
    after: int | None  # Position of the call of the op; None if a rewrite adds several equations.
    label: str  # Name of the op.


def _colour_of(number: int) -> str:
    """Returns the colour of a rewrite, by its number among the applied rewrites."""
    return _COLOURS[number % len(_COLOURS)]


def _svg_of(before: Program, after: Program, applied: Sequence[Applied]) -> str:
    """Draws both programs, one equation in a line, in the order in which they run.

    The replaced equations have the colour of the rewrite on the left, and the new ones on the
    right. Curves lead from the equation of an array to the equations that read it. Rewrites inside
    of loops and branches are not drawn.
    """
    groups = _groups(before, after, applied)
    old, new = before.equations[:_MOST], after.equations[:_MOST]
    height = _TOP + _ROW * (max(len(old), len(new), 1) + 1)
    right = _SIDE + _WIDTH + _GAP
    total = right + _WIDTH + _SIDE
    fills = {i: _colour_of(g) for g, one in groups.items() for i in one.before}
    of_old = {i: _DROPPED for i in _missing_from(before, after) if i < _MOST} | fills
    called = {one.after: g for g, one in groups.items() if one.after is not None}
    of_new = {i: _colour_of(g) for i, g in called.items()}
    labels = {i: groups[g].label for i, g in called.items()}
    title = '<text x="{}" y="24" font-size="13" font-weight="bold">{}</text>'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {height}" '
        f'width="{total}" height="{height}" font-family="monospace" font-size="11">',
        title.format(_SIDE, f"as it is: {len(before.equations)} equations"),
        title.format(right, f"rewritten: {len(after.equations)} equations"),
        *_bands(groups, right),
        *_arcs(old, _SIDE, -1),
        *_arcs(new, right + _WIDTH, 1),
        *_boxes(old, _SIDE, of_old, {}),
        *_boxes(new, right, of_new, labels),
        "</svg>",
    ]
    return "\n".join(parts)


def _missing_from(program: Program, other: Program) -> set[int]:
    """Returns the positions of equations whose results another program lacks."""
    others = {v for e in other.equations for v in e.outvars}
    return {i for i, e in enumerate(program.equations) if others.isdisjoint(e.outvars)}


def _groups(before: Program, after: Program, applied: Sequence[Applied]) -> dict[int, _Group]:
    """Maps the number of each rewrite to the equations that it has replaced outside of bodies."""
    gone, new = _missing_from(before, after), sorted(_missing_from(after, before))
    positions = {v: i for i, e in enumerate(before.equations) for v in e.outvars}
    claimed: set[int] = set()
    groups = {}
    for number, one in enumerate(applied):
        left = gone - claimed
        roots = (i for i in sorted(left) if _text(before.equations[i]) == one.where)
        root = next(roots, None)
        if root is None:
            continue
        region = _region(before, positions, root, left)
        claimed |= region
        call = next((i for i in new if _is_call_like(after.equations[i], before, root)), None)
        if call is not None:
            new.remove(call)
        groups[number] = _Group(frozenset(region), call, one.note.rpartition("-> ")[2])
    return groups


def _region(before: Program, positions: Mapping[Any, int], root: int, gone: set[int]) -> set[int]:
    """Returns the removed equations that computed a result, including its own equation."""

    def reads(i: int) -> list[int]:
        atoms = before.equations[i].invars
        return [p for a in atoms if is_variable(a) and (p := positions.get(a)) in gone]

    return closure(root, reads)


def _is_call_like(equation: Equation, before: Program, root: int) -> bool:
    """Returns whether an equation is a call with the results of a removed equation."""
    types = [[_type(v) for v in e.outvars] for e in (equation, before.equations[root])]
    return equation.primitive.name in ("jit", "pjit") and types[0] == types[1]


def _type(variable: Any) -> str:
    return variable.aval.str_short()


def _text(equation: Equation, name: str = "") -> str:
    """Describes an equation in the format of the findings."""
    results = ", ".join(map(_type, equation.outvars))
    return f"{name or equation.primitive.name} -> {results}"


def _middle(row: int) -> float:
    return _TOP + _ROW * row + _BOX / 2


def _boxes(
    equations: Sequence[Equation], x: int, fills: Mapping[int, str], labels: Mapping[int, str]
) -> list[str]:
    parts = []
    for i, equation in enumerate(equations):
        text = _text(equation, labels.get(i, ""))
        shown = html.escape(text if len(text) <= 50 else text[:49] + "…")
        y = _TOP + _ROW * i
        parts += [
            f'<g><title>{html.escape(text)}</title><rect x="{x}" y="{y}" width="{_WIDTH}" '
            f'height="{_BOX}" rx="3" fill="{fills.get(i, _KEPT)}" stroke="#666666"/>',
            f'<text x="{x + 6}" y="{y + 13}">{shown}</text></g>',
        ]
    return parts


def _arcs(equations: Sequence[Equation], x: int, side: int) -> list[str]:
    """Draws curves from the equation of an array to those that read it."""
    makers = {v: i for i, e in enumerate(equations) for v in e.outvars}
    pairs = {
        (makers[a], i)
        for i, e in enumerate(equations)
        for a in e.invars
        if is_variable(a) and a in makers
    }
    parts = []
    for start, end in sorted(pairs):
        bulge = x + side * min(10 + 4 * (end - start), _SIDE - 8)
        parts.append(
            f'<path d="M{x} {_middle(start)} C{bulge} {_middle(start)} {bulge} {_middle(end)} '
            f'{x} {_middle(end)}" fill="none" stroke="#999999"/>'
        )
    return parts


def _bands(groups: Mapping[int, _Group], right: int) -> list[str]:
    """Draws bands from the equations that a rewrite has replaced to the new call."""
    parts, start = [], _SIDE + _WIDTH
    for number, one in groups.items():
        if one.after is None or one.after >= _MOST:
            continue
        for i in sorted(j for j in one.before if j < _MOST):
            middle = (start + right) / 2
            parts.append(
                f'<path d="M{start} {_middle(i)} C{middle} {_middle(i)} {middle} '
                f'{_middle(one.after)} {right} {_middle(one.after)}" fill="none" '
                f'stroke="{_colour_of(number)}" stroke-width="2"/>'
            )
    return parts
