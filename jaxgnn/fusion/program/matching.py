"""Exceptions of code that recognises forms, and conditions of forms."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class NoMatch(Exception):
    """Raised for code that does not have the required form."""


class Refusal(Exception):
    """Raised by a rule that almost applies, with the reason why it does not."""


def need(condition: Any) -> None:
    """Raises ``NoMatch`` unless a condition of a form holds."""
    if not condition:
        raise NoMatch


def required[T](part: T | None) -> T:
    """Returns a part of a form; raises ``NoMatch`` if it is None."""
    if part is None:
        raise NoMatch
    return part


def or_none[**P, T](function: Callable[P, T]) -> Callable[P, T | None]:
    """Wraps a function so that it returns None instead of raising ``NoMatch``."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return function(*args, **kwargs)
        except NoMatch:
            return None

    return call
