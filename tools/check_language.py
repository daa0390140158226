"""Checks the plain English of docstrings and comments; see `make lint`.

A docstring begins with a verb in the third person or with a noun phrase, not with a question word.
Phrases of a small list, which readers had to read twice, are errors in docstrings and comments. The
list has only phrases for which there is a plainer one. String literals are not checked. ::

    python tools/check_language.py            # the folders below
    python tools/check_language.py jaxgnn/ops # or these files and folders

Each finding is a line `path:line: text`. The exit status is 1 if there are any.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("jaxgnn", "pallas_kernels", "experiments", "tools")
QUESTION_WORDS = frozenset(("What", "Of", "How", "Which", "That", "Where"))

# Patterns of phrases, and a plainer phrase for each.
PHRASES = {
    r"anew": "again",
    r"as often as one likes": "any number of times",
    r"at most so many|(?:of|for|after) so many": "name the number",
    r"hangs? on the": "depends on the",
    r"ha(?:s|ve) (?:its|their) say": "applies",
    r"in what(?:ever)? way": "in all forms",
    r"leaves? out for|left out for|leaves? out zero": "ignores, or excludes",
    r"one and the other": "both",
    r"stands? (?:there|in its place|in their place)": "is",
    r"so long a": "the longest time that",
    r"tells? of": "reports",
    r"what stands": "name the thing",
    r"whatever stands": "name the thing",
    r"worked out": "computed",
}
_PHRASE = re.compile(rf"\b(?:{'|'.join(PHRASES)})\b".replace(" ", r"\s+"), re.IGNORECASE)
_HAS_DOCSTRINGS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def main(arguments: list[str]) -> int:
    """Prints all findings; returns the exit status."""
    roots = [Path(a) for a in arguments] or [ROOT / folder for folder in FOLDERS]
    found = [line for root in roots for path in files_of(root) for line in findings(path)]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


def files_of(root: Path) -> list[Path]:
    """Returns the Python files of a folder, or the file itself."""
    return sorted(root.rglob("*.py")) if root.is_dir() else [root]


def findings(path: Path) -> Iterator[str]:
    """Yields the findings of a file, in the order of their lines."""
    if path.resolve() == Path(__file__).resolve():  # it lists the phrases
        return
    source = path.read_text(encoding="utf-8")
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    found: list[tuple[int, str]] = []
    for line, text in docstrings(source):
        words = text.split(maxsplit=1)
        if len(words) == 2 and words[0].rstrip(".,:;") in QUESTION_WORDS:
            found.append((line, f"docstring begins with {words[0]!r}: {words[1].splitlines()[0]}"))
        found.extend(_phrases(line, text))
    for line, text in comments(source):
        found.extend(_phrases(line, text))
    for line, text in sorted(found):
        yield f"{shown}:{line}: {text}"


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yields line and text of each docstring, those of attributes included."""
    for node in ast.walk(ast.parse(source)):
        for statement in node.body if isinstance(node, _HAS_DOCSTRINGS) else ():
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.lineno, value.value


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yields line and text of each block of comments; comments after code are separate."""
    start, last, block = 0, -1, ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, column = token.start
        text = token.string.lstrip("# ")
        if line == last + 1 and not token.line[:column].strip():
            block += "\n" + text
        else:
            if block:
                yield start, block
            start, block = line, text
        last = line
    if block:
        yield start, block


def _phrases(line: int, text: str) -> Iterator[tuple[int, str]]:
    """Yields line and text of each listed phrase, also of phrases across a line break."""
    for match in _PHRASE.finditer(text):
        phrase = " ".join(match[0].lower().split())
        advice = next(a for pattern, a in PHRASES.items() if re.fullmatch(pattern, phrase))
        yield line + text.count("\n", 0, match.start()), f"{phrase!r}; write: {advice}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
