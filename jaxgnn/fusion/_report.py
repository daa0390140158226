"""What ``jaxgnn.fuse`` has done to a function, in words."""

from __future__ import annotations

from dataclasses import dataclass

from jaxgnn.fusion._rewrite import Findings


@dataclass(frozen=True)
class Explanation:
    """What was rewritten by which rule, what was not, and why; ``print`` shows it.

    Attributes:
      name: name of the function.
      findings: everything that rules have said.
      equations_before: equations of the function's jaxpr, calls expanded and repeats removed.
      equations_after: equations of the jaxpr that runs, ops counted as one each.
    """

    name: str
    findings: Findings
    equations_before: int
    equations_after: int

    def __str__(self) -> str:
        lines = [
            f"{self.name}: {len(self.findings.applied)} rewrites, "
            f"{self.equations_before} equations -> {self.equations_after}"
        ]
        lines += [f"  untouched, because {reason}" for reason in self.findings.untouched]
        for one in self.findings.applied:
            sizes = f"{_amount(one.bytes_before)} -> {_amount(one.bytes_after)}"
            lines += [f"  {one.rule}: {one.note}", f"    {one.where}; {sizes}"]
        for refused in self.findings.refused:
            lines += [f"  not {refused.rule}: {refused.reason}", f"    {refused.where}"]
        return "\n".join(lines)


def _amount(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
