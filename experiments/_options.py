"""Checks of options of the command line, which speak of what the user typed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxgnn._errors import bad_input


def option(name: str) -> str:
    """The option of a field: ``hidden_features`` is typed ``--hidden-features``."""
    return "--" + name.replace("_", "-")


def check_options(command: str, config: Any, lowest: Mapping[str, float]) -> None:
    """Raises for the first option below its least value; one that is left out passes.

    Args:
      command: the command, which the message begins with.
      config: a dataclass with a field for each option: a number, several, or None.
      lowest: the least value of each option by the name of its field.

    Raises:
      ValueError: naming the option as it is typed.
    """
    for name, bound in lowest.items():
        value = getattr(config, name)
        values = value if isinstance(value, tuple) else (value,)
        # A NaN is not at least anything.
        if any(v is not None and not v >= bound for v in values):
            shown = " ".join(map(str, values))
            raise bad_input(command, option(name), f"at least {bound}", shown)
