"""Reports of the rewrites of ``jaxgnn.fuse``, as text and as a page."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jaxgnn.fusion._cost import Speeds
from jaxgnn.fusion._drawing import colour_of, svg_of
from jaxgnn.fusion._program import Program
from jaxgnn.fusion._rewrite import Applied, Findings

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
      speeds: speeds of the device, used to predict times; None if nothing was rewritten.
      measured: times of both functions; None if they were not measured.
    """

    name: str
    findings: Findings
    equations_before: int
    equations_after: int
    speeds: Speeds | None = None
    measured: Measured | None = None
    _programs: tuple[Program, Program] | None = field(default=None, repr=False, compare=False)

    @property
    def headline(self) -> str:
        """A line with the number of rewrites."""
        return (
            f"{self.name}: {len(self.findings.applied)} rewrites, "
            f"{self.equations_before} equations -> {self.equations_after}"
        )

    def predicted_ms(self, one: Applied) -> tuple[float, float]:
        """The times of the replaced and of the new code of a rewrite, in milliseconds.

        They are those of the bytes that both read and write, at the speed of the device's memory.

        Args:
          one: one of the applied rewrites.

        Returns:
          The time before and the time after; zero where the speeds of the device are not known.
        """
        if self.speeds is None:
            return 0.0, 0.0
        before, after = (self.speeds.seconds(n) for n in (one.bytes_before, one.bytes_after))
        return 1e3 * before, 1e3 * after

    def __str__(self) -> str:
        lines = [self.headline]
        lines += [f"  untouched, because {reason}" for reason in self.findings.untouched]
        for one in self.findings.applied:
            lines += [f"  {one.rule}: {one.note}", f"    {one.where}; {self._sizes(one)}"]
            lines += [f"    assumes {'; '.join(one.assumes)}"] if one.assumes else []
        if self.speeds is not None:
            lines.append(f"  predicted: {self._predicted()}")
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

    def _predicted(self) -> str:
        times = [self.predicted_ms(one) for one in self.findings.applied]
        before, after = (sum(column) for column in zip(*times, strict=True))
        return f"what was replaced took {before:.3g} ms, and takes {after:.3g} ms"

    def _page(self) -> str:
        parts = [f"<h1>{html.escape(self.headline)}</h1>"]
        parts += [f"<p>untouched, because {html.escape(r)}</p>" for r in self.findings.untouched]
        if self.speeds is not None:
            parts.append(f"<p>Predicted: {html.escape(self._predicted())}.</p>")
        if self.measured is not None:
            parts.append(f"<p>Measured: {html.escape(str(self.measured))}.</p>")
        if self._programs is not None:
            picture = svg_of(*self._programs, self.findings.applied)
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
            times = " -> ".join(f"{ms:.3g} ms" for ms in self.predicted_ms(one))
            mark = f'<span class="mark" style="background: {colour_of(number)}"></span>'
            assumed = "; ".join(one.assumes)
            cells = [one.rule, one.note, one.where, self._sizes(one), times, assumed]
            rows.append([mark, *map(html.escape, cells)])
        return _table(["", "rule", "what", "where", "bytes", "predicted", "assumes"], rows)

    def _table_of_refusals(self) -> str:
        rows = [
            [html.escape(text) for text in (one.rule, one.reason, one.where)]
            for one in self.findings.refused
        ]
        return _table(["rule", "why not", "where"], rows)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are HTML already."""
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
