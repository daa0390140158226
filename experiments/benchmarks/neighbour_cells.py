"""Times the search for neighbours by cells on a device, of many atoms in a tilted box.

``python -m experiments.benchmarks.neighbour_cells`` places atoms as dense as in silicon with 50
neighbours within 5 Å, on a lattice with noise, in a random order. The grid of cells is planned on
the host, once; a jitted program finds all edges of the radius graph, or half of them, and their
images. Rows have its milliseconds, the number of edges, and the program's own memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks._command import command
from experiments.benchmarks._report import Column, Output, Row, append_rows, header, line
from jaxgnn._errors import bad_input
from jaxgnn.graph import CellGrid, radius_graph_on_device
from jaxgnn.testing.timing import device_description, measure

_RADIUS = 5.0
_SPACING = (1 / 0.0957) ** (1 / 3)  # of the lattice: 50 neighbours
_NOISE = 0.15  # of an atom, by the spacing
_SHAPE = np.array([[1, 0, 0], [0.2, 1, 0], [-0.1, 0.3, 1]])  # of the box
_SLOTS = 64  # for the edges of an atom

COLUMNS = (
    Column("atoms", "atoms", 9, ",d"),
    Column("lists", "lists", 6),
    Column("edges", "edges", 11, ",d"),
    Column("ms", "ms", 9, ".3f"),
    Column("MB", "mb", 7, ".0f"),
)


@dataclass(frozen=True)
class Options(Output):
    """Settings of a run.

    Attributes:
      atoms: numbers of atoms, rounded to cubes.
    """

    atoms: tuple[int, ...] = (8_000, 1_000_000)

    def __post_init__(self):
        super().__post_init__()
        for number in self.atoms:
            if number < 64:
                raise bad_input("neighbour_cells", "--atoms", "at least 64", number)


class Crystal(NamedTuple):
    """Atoms in a box.

    Attributes:
      points: positions, float32 [atoms, 3].
      box: vectors of the box, float32 [3, 3].
    """

    points: np.ndarray
    box: np.ndarray


def crystal(atoms: int) -> Crystal:
    """A cubic lattice of about so many atoms with noise, in a tilted box and a random order."""
    side, rng = round(atoms ** (1 / 3)), np.random.default_rng(0)
    box = side * _SPACING * _SHAPE
    places = np.stack(np.meshgrid(*[np.arange(side)] * 3), -1).reshape(-1, 3)
    places = rng.permutation(places + _NOISE * rng.normal(size=places.shape))
    return Crystal((places / side @ box).astype(np.float32), box.astype(np.float32))


def time_search(made: Crystal, *, half: bool) -> Row:
    """Times the search; RuntimeError if there were more edges than slots."""
    grid = CellGrid.for_points(made.points, _RADIUS, box=made.box, headroom=1.2)
    slots = len(made.points) * _SLOTS // (2 if half else 1)
    points, box = jnp.asarray(made.points), jnp.asarray(made.box)

    @jax.jit
    def find(points):
        return radius_graph_on_device(
            points, _RADIUS, grid=grid, box=box, max_edges=slots, half=half
        )

    compiled = find.lower(points).compile()
    edges = int(compiled(points).num_found)
    if edges > slots:
        raise RuntimeError(f"neighbour_cells: {edges} edges do not fit into {slots} slots")
    return {
        "atoms": len(points),
        "lists": "half" if half else "full",
        "edges": edges,
        "ms": measure(compiled, points, jit=False).median_ms,
        "mb": cast(Any, compiled.memory_analysis()).temp_size_in_bytes / 1e6,
    }


def main(options: Options) -> list[Row]:
    """Prints the table, and appends its rows to ``neighbour_cells.jsonl``."""
    device, rows = device_description(), []
    print(f"{device['device']}\n{header(COLUMNS)}")
    for atoms in options.atoms:
        made = crystal(atoms)
        for half in (False, True):
            row: Row = {"op": "neighbour_cells", **device, **time_search(made, half=half)}
            print(line(row, COLUMNS), flush=True)
            append_rows(options.rows / "neighbour_cells.jsonl", [row])
            rows.append(row)
    return rows


if __name__ == "__main__":
    command(main, Options, __doc__)
