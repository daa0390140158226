"""Pairs ``key=value`` of a line of an extended XYZ file, split as ASE splits them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

_BLANKS = re.compile(r"\s*")
_WORD = re.compile(r"(?:[^\s\\]|\\.?)++")
_KEY = re.compile(r"(?:[^\s\\=]|\\.?)++")
_ESCAPED = re.compile(r"\\(.)")
# ASE writes arrays of several axes, and other objects, as JSON behind this word.
_JSON = re.compile(r"_JSON\s+")
_SEPARATORS = re.compile(r"[\s,\[\]{}]+")
_PARTS_OF_KEY = re.compile(r"[^a-z]+")


def _bracketed(opening: str, closing: str) -> re.Pattern[str]:
    """Returns a word in brackets, with up to two levels of brackets in it."""
    opening, closing = re.escape(opening), re.escape(closing)
    inner = rf"[^{opening}{closing}\\]|\\."
    for _ in range(2):
        inner = rf"[^{opening}{closing}\\]|\\.|{opening}(?:{inner})*+{closing}"
    return re.compile(rf"{opening}((?:{inner})*+){closing}")


# Words that end at a closing mark. No part gives back what it matched, so an open one costs linear
# time.
_DELIMITED = {
    '"': re.compile(r'"((?:[^"\\]|\\.)*+)"'),
    "'": re.compile(r"'((?:[^'\\]|\\.)*+)'"),
    "{": _bracketed("{", "}"),
    "[": _bracketed("[", "]"),
}


@dataclass(frozen=True)
class Pairs:
    """The pairs of one line, in their order; a key alone has the value ``T``.

    Attributes:
      pairs: keys and values, without quotes and escapes.
    """

    pairs: Sequence[tuple[str, str]]

    @classmethod
    def parse(cls, text: str) -> Pairs:
        """Splits a line; ValueError quotes a value whose quote or bracket is not closed.

        Values with blanks are in quotes, braces or brackets, and a backslash escapes any character.
        There may be blanks around ``=``. A value is empty if the word behind it is itself the key
        of a pair, as in ``config_type= energy=-3.25``, which ASE writes for an empty text. A line
        without ``=`` is a comment, and has no pairs.
        """
        return cls(tuple(_split(text)) if "=" in text else ())

    def value(self, key: str, *, any_case: bool = False) -> str | None:
        """Returns the value of a key, or None; ValueError if it occurs with different values."""
        wanted = {name for name in self.keys if name == key}
        if any_case:
            wanted = {name for name in self.keys if name.lower() == key.lower()}
        values = dict.fromkeys(value for name, value in self.pairs if name in wanted)
        if len(values) > 1:
            raise ValueError(f"{key}: expected one value, got {len(values)} different ones")
        return next(iter(values), None)

    @property
    def keys(self) -> list[str]:
        """The keys in their order."""
        return [key for key, _ in self.pairs]


def words_of(value: str) -> list[str]:
    """Returns the words of an array: between blanks, commas and brackets, or in ASE's JSON."""
    return [word for word in _SEPARATORS.split(_JSON.sub("", value, count=1)) if word]


def similar_names(names: Iterable[str], wanted: str) -> list[str]:
    """Names that are probably meant by one that is absent: ``Energy`` or ``REF_energy``.

    Of a name and the wanted one, the last words agree up to case and their last letter, or the
    first word of the name does.
    """
    stem = _parts(wanted)[-1]
    stem = stem[:-1] if len(stem) > 4 else stem
    return [
        name
        for name in names
        if name != wanted and any(_parts(name)[end].startswith(stem) for end in (0, -1))
    ]


def _parts(name: str) -> list[str]:
    """Returns the words of a name in small letters; an empty one if it has none."""
    return [part for part in _PARTS_OF_KEY.split(name.lower()) if part] or [""]


def _split(text: str) -> Iterator[tuple[str, str]]:
    place = _skip_blanks(text, 0)
    while place < len(text):
        is_pair = text[place] != "="  # Otherwise the line is decorated with them.
        key, place = _key(text, place) if is_pair else _plain(text, place)
        behind = _skip_blanks(text, place)
        if is_pair and behind < len(text) and text[behind] == "=":
            value, place = _value(text, key, behind + 1)
            yield key, value
        elif is_pair:
            yield key, "T"
        place = _skip_blanks(text, place)


def _key(text: str, place: int) -> tuple[str, int]:
    """Returns the key that starts at a place, and the place behind it."""
    closed = _closed(text, place)
    if closed is not None:
        return closed
    match = _KEY.match(text, place)
    assert match is not None  # The place has neither a blank nor "=".
    return _unescaped(match[0]), match.end()


def _value(text: str, key: str, place: int) -> tuple[str, int]:
    """Returns the value that starts at a place behind "=", and the place behind it."""
    start = _skip_blanks(text, place)
    if start == len(text):
        return "", start
    if start > place and _is_key(text, start):
        return "", start
    closed = _closed(text, start)
    if closed is None:
        if text[start] in _DELIMITED:
            expected = f"a quote or bracket that is closed after {text[start]}"
            raise ValueError(f"{key}: expected {expected}, got {text[start : start + 80]!r}")
        return _plain(text, start)
    value, place = closed
    rest = _WORD.match(text, place)
    return closed if rest is None else (value + _unescaped(rest[0]), rest.end())


def _is_key(text: str, place: int) -> bool:
    """Returns whether the word at a place is the key of a pair."""
    if text[place] == "=":
        return False
    behind = _skip_blanks(text, _key(text, place)[1])
    return behind < len(text) and text[behind] == "="


def _closed(text: str, place: int) -> tuple[str, int] | None:
    """The content of the quotes or brackets at a place, and the place behind; None without them."""
    pattern = _DELIMITED.get(text[place])
    match = None if pattern is None else pattern.match(text, place)
    return None if match is None else (_unescaped(match[1]), match.end())


def _plain(text: str, place: int) -> tuple[str, int]:
    match = _WORD.match(text, place)
    assert match is not None  # The place has no blank.
    return _unescaped(match[0]), match.end()


def _unescaped(word: str) -> str:
    return _ESCAPED.sub(r"\1", word) if "\\" in word else word


def _skip_blanks(text: str, place: int) -> int:
    match = _BLANKS.match(text, place)
    assert match is not None  # It matches any length.
    return match.end()
