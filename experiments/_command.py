"""Command lines of experiments, and their ends: one line for an expected error or an interrupt."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tyro

EXPECTED = (ValueError, OSError, NotImplementedError, ArithmeticError)
"""Errors of options, of files and disks, of what is not supported, and of numbers."""

INTERRUPTED = 130
"""Exit status of a command that Ctrl-C has ended, as shells have it."""


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Ends the command with one line on stderr if its block fails as may be expected.

    That is an invalid option or file, a full disk, a loss that is not finite (status 1), or Ctrl-C
    (status 130). Other errors are faults of the code, and keep their traceback.
    """
    try:
        yield
    except EXPECTED as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("interrupted; files that were written before are kept", file=sys.stderr, flush=True)
        sys.exit(INTERRUPTED)


def run_commands(module: str, *commands: Callable[..., Any]) -> None:
    """Runs the command line of ``python -m module``; an expected error ends it with one line.

    Args:
      module: name of the module.
      commands: a function for each command, of the same name.
    """
    named = {command.__name__: command for command in commands}
    with one_line_errors():
        tyro.extras.subcommand_cli_from_dict(named, prog=f"python -m {module}")
