"""Checks the plain English of names, docstrings and comments; see `make lint`.

1. A docstring begins with a verb in the third person or with a noun phrase, not with a question
   word. The docstring of a private function is read without its neighbours: it does not begin with
   a preposition, a conjunction or a pronoun either.
2. The docstring of a function says "Returns whether ...", not "Whether ...".
3. A comment after code is a remark that is read alone. It does not begin with a word that
   continues a sentence, such as "that" or "of".
4. No variable, argument or attribute has a name of `VAGUE_NAMES`.
5. No function begins with a preposition. The prefixes of constructors are `from_` and `to_`.
6. Phrases of a small list, which readers had to read twice, are errors in docstrings and comments.
   The list has only phrases for which there is a plainer one. String literals are not checked.

Rules 4 and 5 do not apply to the names of `PUBLIC_NAMES`. ::

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
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("jaxgnn", "pallas_kernels", "experiments", "tools", "tests")

# Folders and files that are not converted yet. Only the question words and the phrases are checked
# in them, and nothing in tests.
ROOMS_LEFT = (
    "experiments",
    "jaxgnn/_ffi",
    "jaxgnn/graph",
    "jaxgnn/metrics",
    "jaxgnn/ops",
    "jaxgnn/sampling",
    "jaxgnn/training",
    "pallas_kernels",
    "tests/_documented_commands.py",
    "tests/_tiers.py",
    "tests/conftest.py",
    "tests/datasets",
    "tests/distributed",
    "tests/draw",
    "tests/experiments",
    "tests/explain",
    "tests/ffi",
    "tests/fusion",
    "tests/gpu",
    "tests/graph",
    "tests/html",
    "tests/interop",
    "tests/metrics",
    "tests/notebook",
    "tests/ops",
    "tests/pallas_kernels",
    "tests/sampling",
    "tests/test_architecture.py",
    "tests/test_tiers.py",
    "tests/training",
)
# Functions of converted folders that are called from folders that are not.
NAMES_LEFT = frozenset(
    (
        "of_function",
        "as_boards",
        "as_irreps",
        "as_jax",
        "in_evaluation_mode",
        "in_native_order",
        "own",
        "with_derivative_of",
    )
)

QUESTION_WORDS = frozenset(("What", "Of", "How", "Which", "That", "Where"))
# First words of docstrings that continue a name or a sentence before them.
FRAGMENTS = re.compile("And|As|But|By|For|In|Its|Or|So|Their|These|They|This|Those|Whose|With")
# First words of comments after code that end the sentence of the code's name.
CONTINUATIONS = frozenset(
    ("and", "but", "by", "else", "of", "or", "so", "than", "that", "which", "whose")
)

# Names that say where a value comes from instead of what it is, and what to write.
VAGUE_NAMES = {
    "made": "name what was made, such as `layer` or `sums`",
    "found": "name what was found, such as `match` or `edges`",
    "own": "say whose it is or what it is, such as `receiver_values` or `diagonal`",
    "known": "name what is known, such as `choices` or `degrees`",
    "given": "name the value, or its origin, such as `requested` or `argument`",
}
PREPOSITIONS = re.compile(
    "above|across|after|against|along|among|around|as|at|before|behind|below|beside|between|beyond"
    "|by|for|in|inside|into|like|near|of|on|outside|over|per|since|through|under|until|via|with"
    "|within|without"
)
# Nouns and adjectives that only begin like a preposition.
COMPOUNDS = re.compile(r"(?:in_axes|in_degrees?|in_features|in_place)(?:_|$)")
# Names that users call, and hooks that another program calls by name. A name may be behind its
# class or function and a dot: a method, an attribute or an argument.
PUBLIC_NAMES = {
    "AtomicEdges.of_vectors": "constructor of a public class",
    "Origin.of": "called from a folder of ROOMS_LEFT",
    "CSRGraph.with_self_loops": "documented method",
    "CSRGraph.with_weights": "documented method",
    "CSRGraph.without_weights": "documented method",
    "CellGrid.for_points": "documented constructor",
    "DegreeAverages.of": "documented constructor",
    "DegreeAverages.of_histogram": "documented constructor",
    "HeteroGraph.with_reverse": "documented method",
    "HyperedgeWeights.of": "documented method",
    "HyperedgeWeights.of.given": "documented argument",
    "Incidence.by_hyperedge": "documented method",
    "Incidence.by_node": "documented method",
    "Incidence.with_self_loops": "documented method",
    "LocalGraph.near_and_far": "documented method",
    "LocalGraph.of_all_nodes": "documented method",
    "MaskedGraph.with_weights": "documented method",
    "MaskedGraph.without_weights": "documented method",
    "TensorProduct.of": "documented constructor",
    "_GatedMessages.own": "name in saved weights",
    "fit_many.own": "documented argument",
    "on_class_members": "hook of griffe",
    "on_config": "hook of MkDocs",
    "on_files": "hook of MkDocs",
    "on_object": "hook of griffe",
    "on_page_markdown": "hook of MkDocs",
    "with_one_loop_each": "documented function",
}

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
_VAGUE = re.compile(rf"\b_*(?:{'|'.join(VAGUE_NAMES)})_*\b")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (ast.ClassDef, *_FUNCTIONS)
# Comments that other programs read.
_DIRECTIVES = ("noqa", "type:", "pyrefly:", "fmt:", "pragma:")

Finding = tuple[int, str]
"""Line and text."""


def main(arguments: list[str]) -> int:
    """Prints all findings; returns the exit status."""
    roots = [Path(a) for a in arguments] or [ROOT / folder for folder in FOLDERS]
    lines = [line for root in roots for path in files_of(root) for line in findings(path)]
    print("\n".join(lines), end="\n" if lines else "")
    return 1 if lines else 0


def files_of(root: Path) -> list[Path]:
    """Returns the Python files of a folder, or the file itself."""
    return sorted(root.rglob("*.py")) if root.is_dir() else [root]


def findings(path: Path) -> Iterator[str]:
    """Yields the findings of a file, in the order of their lines."""
    path = path.resolve()
    if path == Path(__file__).resolve():  # It lists the phrases.
        return
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    is_left = any(shown.is_relative_to(room) for room in ROOMS_LEFT)
    if is_left and shown.parts[0] == "tests":
        return
    source = path.read_text(encoding="utf-8")
    for line, text in sorted(source_findings(source, all_rules=not is_left)):
        yield f"{shown}:{line}: {text}"


def source_findings(source: str, *, all_rules: bool = True) -> Iterator[Finding]:
    """Yields the findings of a source; without ``all_rules`` question words and phrases alone."""
    tree = ast.parse(source)
    for node, scopes in _definitions(tree):
        yield from _docstring_findings(node, all_rules)
        if all_rules and isinstance(node, _FUNCTIONS) and node.name not in NAMES_LEFT:
            yield from _preposition(node, scopes)
    if all_rules and _VAGUE.search(source):
        for node, scopes in _nodes(tree):
            yield from _vague_names(node, scopes)
    for line, text, is_trailing in comments(source):
        yield from _phrases(line, text)
        if all_rules and is_trailing:
            yield from _continuation(line, text)


Scopes = tuple[str, ...]
"""Names of the classes and functions around a node."""


def _definitions(tree: ast.Module) -> Iterator[tuple[ast.AST, Scopes]]:
    """Yields a module and its classes and functions; does not descend into expressions."""
    yield tree, ()
    stack: list[tuple[ast.AST, Scopes]] = [(node, ()) for node in tree.body]
    while stack:
        node, scopes = stack.pop()
        if isinstance(node, _SCOPES):
            yield node, scopes
            scopes = (*scopes, node.name)
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            statements = getattr(node, block, ())
            if isinstance(statements, list):
                stack.extend((statement, scopes) for statement in statements)


def _nodes(tree: ast.Module) -> Iterator[tuple[ast.AST, Scopes]]:
    """Yields all nodes of a module."""
    stack: list[tuple[ast.AST, Scopes]] = [(tree, ())]
    while stack:
        node, scopes = stack.pop()
        yield node, scopes
        if isinstance(node, _SCOPES):
            scopes = (*scopes, node.name)
        stack.extend((child, scopes) for child in ast.iter_child_nodes(node))


def _docstring_findings(node: Any, all_rules: bool) -> Iterator[Finding]:
    """Yields the findings of a definition's docstring, and of those of its attributes."""
    for index, statement in enumerate(node.body):
        value = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
            continue
        yield from _phrases(value.lineno, value.value)
        first, _, rest = value.value.strip().partition(" ")
        word, rest = first.rstrip(".,:;"), rest.partition("\n")[0]
        is_of_function = all_rules and index == 0 and isinstance(node, _FUNCTIONS)
        if word in QUESTION_WORDS and rest:
            yield value.lineno, f"docstring begins with {first!r}: {rest}"
        elif is_of_function and word == "Whether" and not _is_property(node):
            text = "docstring begins with 'Whether'; write 'Returns whether'"
            yield value.lineno, f"{text}: {rest}"
        elif is_of_function and FRAGMENTS.fullmatch(word) and node.name.startswith("_"):
            text = f"docstring begins with {first!r}; begin with a verb or a noun phrase"
            yield value.lineno, f"{text}: {rest}"


def _is_property(function: Any) -> bool:
    """Returns whether a function is an attribute, by ``property`` or ``cached_property``."""
    return any("property" in ast.unparse(decorator) for decorator in function.decorator_list)


def _preposition(function: Any, scopes: Scopes) -> Iterator[Finding]:
    """Yields a finding if the name of a function begins with a preposition."""
    name = function.name.strip("_")
    is_allowed = COMPOUNDS.match(name) or _is_listed(function.name, scopes)
    if PREPOSITIONS.fullmatch(name.partition("_")[0]) and not is_allowed:
        text = "begins with a preposition; begin with a verb, or with a noun for a value"
        yield function.lineno, f"function `{function.name}` {text}"


def _vague_names(node: ast.AST, scopes: Scopes) -> Iterator[Finding]:
    """Yields a finding for each name of ``VAGUE_NAMES`` that a node binds."""
    for name in _bound_names(node):
        advice = VAGUE_NAMES.get(name.strip("_"))
        if advice and not _is_listed(name, scopes):
            yield node.lineno, f"`{name}` is vague; {advice}"  # pyrefly: ignore


def _bound_names(node: Any) -> tuple[str, ...]:
    """Returns the names that a node gives to variables, attributes, arguments and functions."""
    if isinstance(node, ast.Name):
        return (node.id,) if isinstance(node.ctx, ast.Store) else ()
    if isinstance(node, ast.Attribute):
        return (node.attr,) if isinstance(node.ctx, ast.Store) else ()
    if isinstance(node, ast.arg):
        return (node.arg,)
    if isinstance(node, ast.alias):
        return (node.asname,) if node.asname else ()
    if isinstance(node, _FUNCTIONS):
        return () if node.name in NAMES_LEFT else (node.name,)
    is_named = isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar))
    return (node.name,) if is_named and node.name else ()


def _is_listed(name: str, scopes: Scopes) -> bool:
    """Returns whether a table allows a name in the classes and functions around it."""
    path = (*scopes, name)
    endings = {".".join(path[i:]) for i in range(len(path))}
    # An argument is also a name in the functions that are defined in its function.
    endings |= {f"{scope}.{name}" for scope in scopes}
    return not endings.isdisjoint(PUBLIC_NAMES)


def _continuation(line: int, text: str) -> Iterator[Finding]:
    """Yields a finding if a comment after code ends the sentence of the code's name."""
    first = text.partition(" ")[0].rstrip(".,:;")
    if first in CONTINUATIONS:
        yield line, f"comment begins with {first!r}; write a remark that is read alone: {text}"


def comments(source: str) -> Iterator[tuple[int, str, bool]]:
    """Yields line and text of each block of comments, and whether it is on a line with code.

    A comment on a line with code is a block of its own.
    """
    if "#" not in source:
        return
    start, last, block = 0, -1, ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, column = token.start
        text = token.string.lstrip("# ")
        if token.line[:column].strip():
            if not text.startswith(_DIRECTIVES):
                yield line, text, True
            continue
        if line == last + 1:
            block += "\n" + text
        else:
            if block:
                yield start, block, False
            start, block = line, text
        last = line
    if block:
        yield start, block, False


def _phrases(line: int, text: str) -> Iterator[Finding]:
    """Yields line and text of each listed phrase, also of phrases across a line break."""
    for match in _PHRASE.finditer(text):
        phrase = " ".join(match[0].lower().split())
        advice = next(a for pattern, a in PHRASES.items() if re.fullmatch(pattern, phrase))
        yield line + text.count("\n", 0, match.start()), f"{phrase!r}; write: {advice}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
