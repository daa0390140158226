"""Exceptions of code that recognises forms, and conditions of forms."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class NoMatch(Exception):
    """Code that does not have the form that is looked for."""


class Refusal(Exception):
    """The reason why a rule does not apply at a place where it almost does; rules raise it."""


def need(condition: Any) -> None:
    """Raises ``NoMatch`` unless a condition of a form holds."""
    if not condition:
        raise NoMatch


def required[T](part: T | None) -> T:
    """A part of a form; raises ``NoMatch`` if it is None."""
    if part is None:
        raise NoMatch
    return part


def or_none[**P, T](function: Callable[P, T]) -> Callable[P, T | None]:
    """The function, which returns None where it raises ``NoMatch``."""

    @functools.wraps(function)
    def made(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return function(*args, **kwargs)
        except NoMatch:
            return None

    return made
