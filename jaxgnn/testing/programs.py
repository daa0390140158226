"""Compares the compiled programs of two functions."""

from __future__ import annotations

import hashlib
import re

import jax

# Parts that XLA omits from its text, so that equal texts would not mean equal programs: large
# constants, and the Python function of a callback.
_UNTOLD = re.compile(r"constant\(\{\.\.\.\}\)|custom_call_target=\"[^\"]*callback")
# A quoted text, braces inside of it included, or one pair of braces without others in it.
_METADATA = re.compile(r", metadata=\{(?:\"(?:[^\"\\]|\\.)*\"|[^{}\"])*\}")
_NAME = re.compile(r"%[\w.-]+")
_MODULE = re.compile(r"^HloModule [^,\s]+")
# The parameters of a computation, as its heading lists them: each has a line of its own below.
_PARAMETER = re.compile(r"(?<=[(\s])[\w.-]+: ")


def program_fingerprint(compiled: jax.stages.Compiled) -> str | None:
    """A fingerprint that is equal for programs which XLA compiled to the same instructions.

    It compares the text after all optimisations: instructions with their shapes, layouts,
    attributes and order. Names of functions, arguments and instructions, and their places in the
    source, are ignored.

    Args:
      compiled: the result of ``jax.jit(f).lower(...).compile()``.

    Returns:
      64 hexadecimal digits; None where the text does not contain the whole program, because it has
      a large constant or calls a Python function.
    """
    text = compiled.as_text() or ""
    if not text or _UNTOLD.search(text):
        return None
    return hashlib.sha256(_normalised(text).encode()).hexdigest()


def same_program(first: jax.stages.Compiled, second: jax.stages.Compiled) -> bool:
    """Returns whether XLA has compiled two functions to the same instructions.

    A difference of their times is then noise. It is True only if their ``program_fingerprint`` are
    equal: two programs that do the same in another order count as different, and so does one
    without a fingerprint.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> x = jnp.ones(3)
      >>> compiled = [
      ...     jax.jit(f).lower(x).compile()
      ...     for f in (lambda a: a * 2 + 1, lambda b: 1 + 2 * b, lambda c: c * 3 + 1)
      ... ]
      >>> same_program(compiled[0], compiled[1]), same_program(compiled[0], compiled[2])
      (True, False)
    """
    fingerprint = program_fingerprint(first)
    return fingerprint is not None and fingerprint == program_fingerprint(second)


def _normalised(text: str) -> str:
    """The text of a module without metadata, its names replaced by numbers in order."""
    heading, *lines = text.splitlines()
    # Between the heading and the first computation are tables of files and functions.
    start = next(i for i, line in enumerate(lines) if line.startswith(("%", "ENTRY ")))
    kept = [_MODULE.sub("HloModule", heading)]
    for line in lines[start:]:
        is_heading = line.endswith("{") and not line.startswith(" ")
        kept.append(_PARAMETER.sub("", line) if is_heading else _METADATA.sub("", line))
    numbers: dict[str, str] = {}
    return _NAME.sub(lambda m: numbers.setdefault(m[0], f"%{len(numbers)}"), "\n".join(kept))
