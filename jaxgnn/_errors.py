"""Common format of errors about a user's input."""

from __future__ import annotations


def bad_input(where: str, argument: str, expected: str, got: object) -> ValueError:
    """Creates a ValueError that names the op, the argument, the expected and the actual value.

    Args:
      where: the public function or class, for example ``"spmm"``.
      argument: the invalid argument.
      expected: description of valid values.
      got: the actual value.
    """
    return ValueError(f"{where}: {argument} must be {expected}, got {got}")
