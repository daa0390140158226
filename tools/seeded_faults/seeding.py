"""Finds the places of faults by names and by syntax, and writes the faults there.

A place is a room and a qualified name in it, ``jaxgnn.graph: CSRGraph.validate``: a function, a
class, or a constant of a module or a class. Which module of the room holds it does not matter. A
module alone is a place, too. Code is compared as syntax: line breaks and comments do not matter.
"""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Fault:
    """One fault, and the tests that should find it.

    Attributes:
      name: what is wrong.
      place: where it is wrong.
      old: code that occurs once in the place: an expression or statements.
      new: the code that replaces it; nothing if the statements go.
      tests: arguments for pytest.
      hole: why no test without a GPU finds it, where that is known; it does not count as missed.
      table: name of the file that has it, without its ending.
    """

    name: str
    place: str
    old: str
    new: str
    tests: tuple[str, ...]
    hole: str = ""
    table: str = ""


class WrongFault(Exception):
    """A fault can not be seeded."""


def seeded(fault: Fault, root: Path) -> tuple[Path, str]:
    """The file of a fault and its source once the fault is in it.

    Raises:
      WrongFault: if the place or the code in it is not found exactly once, or nothing changes.
    """
    try:
        path, scope = _place(fault.place, root)
        source = _replaced(path.read_text(), *_occurrence(fault, scope), fault.new)
        changed = ast.dump(ast.parse(source)) != ast.dump(_tree(path))
    except (WrongFault, SyntaxError) as error:
        raise WrongFault(f"{fault.name}: {error}") from error
    if not changed:
        raise WrongFault(f"{fault.name}: the new code is the old code")
    return path, source


def _place(place: str, root: Path) -> tuple[Path, ast.AST]:
    room, _, name = (part.strip() for part in place.partition(":"))
    base = root.joinpath(*room.split("."))
    files = [base.with_suffix(".py"), *sorted(base.rglob("*.py"))]
    word = re.compile(rf"\b{name.rpartition('.')[2]}\b")
    definitions = [
        (path, node)
        for path in files
        if path.is_file() and (not name or word.search(path.read_text()))
        for qualified, node in _names(_tree(path))
        if qualified == name
    ]
    return _the_only(definitions, f"{place!r}", [path.relative_to(root) for path, _ in definitions])


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _names(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Qualified names of what a module defines; that of the module is empty."""
    yield "", tree
    yield from _names_below(tree, "", constants=True)


def _names_below(node: ast.AST, prefix: str, constants: bool) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _SCOPES):
            name = prefix + child.name
            yield name, child
            yield from _names_below(child, name + ".", isinstance(child, ast.ClassDef))
            continue
        if constants and isinstance(child, ast.Assign | ast.AnnAssign):
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            yield from ((prefix + t.id, child) for t in targets if isinstance(t, ast.Name))
        yield from _names_below(child, prefix, constants)


def _occurrence(fault: Fault, scope: ast.AST) -> tuple[list[ast.AST], bool]:
    """The expression or statements that are the old code, and whether others are beside them."""
    expression = _expression(fault.old)
    if expression is not None and _expression(fault.new) is not None:
        places = [([node], True) for node in ast.walk(scope) if _equal([node], [expression])]
    else:
        wanted = ast.parse(textwrap.dedent(fault.old)).body
        lists = [[scope], *(getattr(n, f, ()) for n in ast.walk(scope) for f in _STATEMENTS)]
        places = [
            (block[i : i + len(wanted)], len(block) > len(wanted))
            for block in lists
            if isinstance(block, list)  # a lambda and a conditional expression have one expression
            for i in range(len(block) - len(wanted) + 1)
            if _equal(block[i : i + len(wanted)], wanted)
        ]
    return _the_only(
        places, f"in {fault.place!r} {fault.old!r}", [at[0].lineno for at, _ in places]
    )


_STATEMENTS = ("body", "orelse", "finalbody")


def _expression(code: str) -> ast.expr | None:
    try:
        return ast.parse(f"({code}\n)", mode="eval").body if code else None
    except SyntaxError:
        return None


def _equal(nodes: list[ast.AST], others: list[ast.AST]) -> bool:
    pairs = list(zip(nodes, others, strict=True))
    return all(type(a) is type(b) for a, b in pairs) and all(
        ast.dump(a) == ast.dump(b) for a, b in pairs
    )


def _the_only[T](candidates: list[T], what: str, where: list) -> T:
    if len(candidates) != 1:
        raise WrongFault(f"expected once {what}, found {len(candidates)}: {[*map(str, where)]}")
    return candidates[0]


def _replaced(source: str, nodes: list[ast.AST], has_others: bool, new: str) -> str:
    """A source with other code in the place of some neighbouring nodes."""
    lines = source.encode().splitlines(keepends=True)  # columns count bytes
    first, last = nodes[0], nodes[-1]
    line = min(n.lineno for n in (first, *getattr(first, "decorator_list", ())))
    begin = sum(map(len, lines[: line - 1])) + first.col_offset
    end = sum(map(len, lines[: last.end_lineno - 1])) + last.end_col_offset
    if isinstance(first, ast.expr):
        code = f"({new})"
    else:
        code = textwrap.dedent(new) or ("" if has_others else "pass")
        code = code.replace("\n", "\n" + " " * first.col_offset)
    whole = source.encode()
    return (whole[:begin] + code.encode() + whole[end:]).decode()
