"""Numbers as they are written in files.

Python's own parsers also take underscores (``1_0`` is 10 to them) and the digits of other scripts.
"""

import re

_WHOLE = re.compile(r"[+-]?[0-9]{1,400}", re.ASCII)
_REAL = re.compile(
    r"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|inf(inity)?|nan)", re.ASCII | re.IGNORECASE
)


def whole_number(text: str) -> int:
    """The integer that a text is; ValueError if it is none."""
    if _WHOLE.fullmatch(text) is None:
        raise ValueError(f"expected a whole number, got {text[:80]!r}")
    return int(text)


def real_number(text: str) -> float:
    """The number that a text is, ``nan`` and ``inf`` among them; ValueError if it is none."""
    if _REAL.fullmatch(text) is None:
        raise ValueError(f"expected a number, got {text[:80]!r}")
    return float(text)
