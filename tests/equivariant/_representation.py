"""Representations of rotations on features of irreps, from those on spherical harmonics."""

import jax
import numpy as np
from scipy.linalg import block_diag
from scipy.spatial.transform import Rotation

from jaxgnn.equivariant import Irreps, spherical_harmonics

TURNS = {
    "rotation": Rotation.random(random_state=3).as_matrix(),
    "reflection": -Rotation.random(random_state=4).as_matrix(),
}


def representation(irreps: Irreps | str, turn: np.ndarray) -> np.ndarray:
    """The matrix by which features of these irreps turn with points, in float64."""
    if isinstance(irreps, str):
        irreps = Irreps.parse(irreps)
    blocks = []
    for multiplicity, irrep in irreps:
        sign = np.sign(np.linalg.det(turn))
        block = _degree_matrix(irrep.degree, sign * turn) * (irrep.parity if sign < 0 else 1)
        blocks += [block] * multiplicity
    return block_diag(*blocks)


def _degree_matrix(degree: int, rotation: np.ndarray) -> np.ndarray:
    """The matrix that harmonics of a degree turn by: the solution of many equations."""
    points = np.random.default_rng(degree).normal(size=(4 * degree + 4, 3))
    irreps = f"{degree}{'eo'[degree % 2]}"
    with jax.enable_x64(True):
        before, after = (spherical_harmonics(irreps, p) for p in (points, points @ rotation.T))
    return np.linalg.lstsq(np.asarray(before), np.asarray(after), rcond=None)[0].T
