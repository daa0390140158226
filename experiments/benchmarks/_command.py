"""The command line of a benchmark."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import tyro


def command(run: Callable[[Any], Any], options: type, description: str | None) -> None:
    """Reads the options and runs; an option at fault ends it with one line.

    Args:
      run: takes the options.
      options: their dataclass.
      description: what ``--help`` says of the command.
    """
    try:
        run(tyro.cli(options, description=description))
    except (ValueError, NotImplementedError) as error:
        sys.exit(f"error: {error}")
