"""A Sudoku solver by another way than the library's: an exact cover, for boxes of any size."""

import itertools
from collections.abc import Iterator

import numpy as np


def solutions(board: np.ndarray, limit: int, box: int = 3) -> list[np.ndarray]:
    """Up to `limit` solutions of a [box^4] board, 0 where a cell is empty; each like the board."""
    side = box * box
    # What a digit in a cell settles: the cell, and the digit for a row, a column and a box.
    settles = {
        (cell, digit): [("cell", cell), *((unit, digit) for unit in _units(cell, box))]
        for cell, digit in itertools.product(range(side * side), range(1, side + 1))
    }
    choices: dict = {}
    for choice, constraints in settles.items():
        for constraint in constraints:
            choices.setdefault(constraint, set()).add(choice)
    chosen = []
    for cell, digit in enumerate(board.tolist()):
        if digit:
            if any(constraint not in choices for constraint in settles[cell, digit]):
                return []
            _choose((cell, digit), choices, settles)
            chosen.append((cell, digit))
    found = itertools.islice(_search(chosen, choices, settles), limit)
    return [_filled(board, pairs) for pairs in found]


def _units(cell: int, box: int) -> Iterator[tuple[str, int]]:
    row, column = divmod(cell, box * box)
    yield "row", row
    yield "column", column
    yield "box", row // box * box + column // box


def _search(chosen, choices, settles):
    if not choices:
        yield list(chosen)
        return
    for choice in sorted(min(choices.values(), key=len)):
        undo = _choose(choice, choices, settles)
        yield from _search([*chosen, choice], choices, settles)
        for constraint, others in reversed(undo):
            choices[constraint] = others
            for other in others:
                for elsewhere in settles[other]:
                    if elsewhere != constraint and elsewhere in choices:
                        choices[elsewhere].add(other)


def _choose(choice, choices, settles):
    """Takes away what `choice` settles, and with it all choices that would settle it again."""
    undo = []
    for constraint in settles[choice]:
        for other in choices[constraint]:
            for elsewhere in settles[other]:
                if elsewhere != constraint and elsewhere in choices:
                    choices[elsewhere].discard(other)
        undo.append((constraint, choices.pop(constraint)))
    return undo


def _filled(board, pairs):
    solution = board.copy()
    for cell, digit in pairs:
        solution[cell] = digit
    return solution
