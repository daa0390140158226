"""Parsers of numbers in files.

Python's own parsers also accept underscores (``1_0`` is 10) and the digits of other scripts.
"""

import re

_WHOLE = re.compile(r"[+-]?[0-9]{1,400}", re.ASCII)
_REAL = re.compile(
    r"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|inf(inity)?|nan)", re.ASCII | re.IGNORECASE
)


def whole_number(text: str) -> int:
    """Parses an integer; raises ValueError if the text is not one."""
    if _WHOLE.fullmatch(text) is None:
        raise ValueError(f"expected a whole number, got {text[:80]!r}")
    return int(text)


def real_number(text: str) -> float:
    """Parses a number, including ``nan`` and ``inf``; raises ValueError if the text is not one."""
    if _REAL.fullmatch(text) is None:
        raise ValueError(f"expected a number, got {text[:80]!r}")
    return float(text)
