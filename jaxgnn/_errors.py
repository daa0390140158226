"""One shape for every complaint about a user's input."""

from __future__ import annotations


def bad_input(where: str, argument: str, expected: str, got: object) -> ValueError:
    """Makes the ValueError that names the op, the argument, what was expected and what came.

    Args:
      where: the public function or class, for example ``"spmm"``.
      argument: the offending argument.
      expected: what it should have been.
      got: what came instead.
    """
    return ValueError(f"{where}: {argument} must be {expected}, got {got}")
