"""Command line: ``python -m experiments report RUN…``, for runs of all experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from experiments._command import run_commands
from experiments._options import check_report


def report(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN…")],
    out: Path = Path("runs/report.html"),
) -> None:
    """Writes one HTML file that compares runs: options, curves, results and times.

    Args:
      runs: folders of runs, of any experiments.
      out: the file to write.
    """
    check_report(runs, out)
    from experiments._report_runs import report as write_page
    from experiments._runs import shown

    for table in write_page(runs, out):
        print(f"{table.text()}\n")
    print(f"report: {shown(out.absolute())}")


def main() -> None:
    """Runs a command; a folder that holds no run ends it with a one-line error."""
    run_commands("experiments", report)


if __name__ == "__main__":
    main()
