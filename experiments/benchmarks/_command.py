"""The command line of a benchmark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tyro

from experiments._command import one_line_errors


def command(run: Callable[[Any], Any], options: type, description: str | None) -> None:
    """Reads the options and runs; an invalid option ends the command with a one-line error.

    Args:
      run: function of the options.
      options: dataclass of the options.
      description: text that ``--help`` shows.
    """
    with one_line_errors():
        run(tyro.cli(options, description=description))
