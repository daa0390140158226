"""One structure of atoms as a sample: species, positions, a cell, and edges within a radius."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from jaxgnn._arrays.arrays import is_concrete, shown
from jaxgnn._errors import bad_input
from jaxgnn.graph import GraphSample, radius_graph
from jaxgnn.models.atomic_origin import Origin, kept_distance

_WHERE = "models.atomic_sample"
# Cell vectors of length one must span at least this volume, or they count as dependent.
_LEAST_SPAN = 1e-6


def atomic_sample(
    positions: npt.ArrayLike,
    species: npt.ArrayLike,
    r: float,
    *,
    cell: npt.ArrayLike | None = None,
    periodic: bool | tuple[bool, bool, bool] | None = None,
    energy: float | None = None,
    forces: npt.ArrayLike | None = None,
    stress: npt.ArrayLike | None = None,
) -> GraphSample:
    """Makes the sample of one structure of atoms, on the host: a molecule, a crystal, a slab.

    It has all edges from atoms, and from images of atoms in periodic directions, that are at most
    ``r`` away. ``GraphBatch.from_graphs`` joins samples for ``models.SchNet`` and other potentials.
    Units are the user's, such as eV and Å; all structures must have the same.

    Args:
      positions: floating [atoms, 3]; atoms may lie outside of the cell.
      species: for each atom its row in the model's table of species, integers [atoms] from 0; not
        the atomic number.
      r: the largest distance of a neighbour, in the unit of the positions; at least the cutoff of
        the model. Images may be further away than the cell is wide.
      cell: cell vectors as rows, [3, 3]; None for none.
      periodic: whether each cell vector is periodic; None for all of a cell.
      energy: target, the energy of the structure.
      forces: target, [atoms, 3].
      stress: target, [3, 3], symmetric, positive where the energy grows with the volume.

    Returns:
      A sample with these arrays, of JAX's default float dtype or that of the positions: ``nodes``
      ``"positions"`` and ``"species"``; ``edges`` ``"images"``, int32 [edges, 3], the whole cells
      by which a sender is displaced, sorted by receiver; ``globals`` ``"cell"``, the identity
      without a cell, and ``"radius"``; and the targets that were given, ``"forces"`` in ``nodes``,
      ``"energy"`` and ``"stress"`` in ``globals``.

      A structure that is further than 32 radii from the origin is moved to it, and atoms that have
      left its cell so far are put back by whole cells, both in float64: float32 would lose digits
      of their distances, and energies do not change. So to move atoms of a sample, add their moves
      to its positions.

    Raises:
      ValueError: if there are no atoms; if an array has the wrong shape or dtype, is traced or has
        entries that are not finite, which the message names; if periodic cell vectors are linearly
        dependent; if ``r`` is not positive, or so large that it reaches over about a hundred cells.

    Example:
      >>> import numpy as np
      >>> from jaxgnn import models
      >>> chain = models.atomic_sample(np.zeros((1, 3)), [0], 2.5, cell=2.0 * np.eye(3))
      >>> chain.num_edges, chain.edges["images"][0].tolist()
      (6, [-1, 0, 0])
    """
    wide = _finite("positions", positions, None)
    if wide.ndim != 2 or wide.shape[1] != 3 or not len(wide):
        expected = "of shape [atoms, 3], of at least one atom"
        raise bad_input(_WHERE, "positions", expected, f"shape {wide.shape}")
    dtype = jax.dtypes.canonicalize_dtype(np.promote_types(wide.dtype, np.float32))
    if not (isinstance(r, int | float | np.number) and 0 < r < np.inf):
        raise bad_input(_WHERE, "r", "a positive number", repr(r))
    cell = None if cell is None else _finite("cell", cell, (3, 3))
    flags = _checked_periodic(cell, periodic)
    origin = Origin.of(wide, cell, flags, kept_distance(float(r)))
    positions = _narrowed("positions", origin.subtracted(wide, cell), dtype)
    cell = None if cell is None else _narrowed("cell", cell, dtype)
    edges = radius_graph(positions, r, box=cell, periodic=flags)
    nodes: dict[str, Any] = {
        "positions": positions,
        "species": _checked_species(species, len(positions)),
    }
    of_graph: dict[str, Any] = {
        "cell": np.eye(3, dtype=dtype) if cell is None else cell,
        "radius": np.asarray(r, dtype),
    }
    if forces is not None:
        nodes["forces"] = _narrowed("forces", _finite("forces", forces, positions.shape), dtype)
    for name, value, shape in (("energy", energy, ()), ("stress", stress, (3, 3))):
        if value is not None:
            of_graph[name] = _narrowed(name, _finite(name, value, shape), dtype)
    return GraphSample(
        senders=np.asarray(edges.senders),
        receivers=np.asarray(edges.receivers),
        num_nodes=len(positions),
        nodes=nodes,
        edges={"images": np.asarray(edges.images)},
        globals=of_graph,
    )


def _finite(name: str, values: Any, shape: tuple[int, ...] | None) -> np.ndarray:
    """Returns a floating array; ValueError names the first entry that is not finite."""
    if not is_concrete(*jax.tree.leaves(values)):
        raise bad_input(_WHERE, name, "concrete; make samples outside jit", "a tracer")
    array = np.asarray(values)
    if array.dtype.kind in "iu" and shape is not None:
        array = array.astype(np.float64)
    if not jax.numpy.issubdtype(array.dtype, np.floating):
        raise bad_input(_WHERE, name, "of a floating dtype", array.dtype)
    if shape is not None and array.shape != shape:
        raise bad_input(_WHERE, name, f"of shape {list(shape)}", f"shape {list(array.shape)}")
    wide = np.promote_types(array.dtype, np.float32)
    return _narrowed(name, array, wide)


def _narrowed(name: str, array: np.ndarray, dtype: Any) -> np.ndarray:
    """The array in another dtype; ValueError names its first entry that is not finite there."""
    with np.errstate(over="ignore"):
        narrow = array.astype(dtype)
    bad = np.argwhere(~np.isfinite(narrow))
    if len(bad):
        at = tuple(bad[0].tolist())
        place = "".join(f"[{i}]" for i in at)
        raise bad_input(_WHERE, f"{name}{place}", "finite", array[at])
    return narrow


def _checked_periodic(cell: np.ndarray | None, periodic: Any) -> tuple[bool, ...]:
    """Flags of the periodic cell vectors; ValueError unless those are linearly independent."""
    flags = np.asarray((cell is not None) if periodic is None else periodic)
    if flags.dtype != bool or flags.shape not in ((), (3,)):
        raise bad_input(_WHERE, "periodic", "True, False or three of them", repr(periodic))
    flags = np.broadcast_to(flags, 3)
    if not flags.any():
        return (False, False, False)
    if cell is None:
        raise bad_input(_WHERE, "cell", "cell vectors [3, 3] where axes are periodic", None)
    vectors = cell[flags].astype(np.float64)
    lengths = np.sqrt(np.square(vectors).sum(-1, keepdims=True))
    span = 0.0
    if (lengths > 0).all():
        span = np.linalg.svd(vectors / lengths, compute_uv=False)[-1]
    if span < _LEAST_SPAN:
        expected = "of linearly independent cell vectors along periodic axes"
        raise bad_input(_WHERE, "cell", expected, f"{cell.tolist()}, an empty cell")
    return tuple(flags.tolist())


def _checked_species(species: Any, atoms: int) -> np.ndarray:
    if not is_concrete(*jax.tree.leaves(species)):
        raise bad_input(_WHERE, "species", "concrete; make samples outside jit", "a tracer")
    species = np.asarray(species)
    if species.dtype.kind not in "iu" or species.shape != (atoms,):
        raise bad_input(_WHERE, "species", f"integers [{atoms}], one an atom", shown(species))
    bad = np.flatnonzero((species < 0) | (species > np.iinfo(np.int32).max))
    if bad.size:
        raise bad_input(_WHERE, f"species[{bad[0]}]", "a row of a table, from 0", species[bad[0]])
    return species.astype(np.int32)
