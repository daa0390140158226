"""Potentials as calculators of ASE, the atomic simulation environment."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxgnn._errors import bad_input
from jaxgnn.graph import GraphBatch
from jaxgnn.interop._moving_atoms import MovingAtoms, Placed
from jaxgnn.models import Potential, energy_forces_stress
from jaxgnn.models.interatomic import InteratomicPotential

_WHERE = "interop.ase_calculator"


def ase_calculator(
    model: Any, species: Sequence[str | int], *, cutoff: float | None = None, skin: float = 0.5
) -> Any:
    """Makes a calculator of ASE from a trained potential.

    ASE's optimisers and dynamics run with it: ``atoms.calc = ase_calculator(...)``. It computes
    energy, forces, and, for atoms in a cell that is periodic in three directions, the stress. The
    model has to be trained in ASE's units, eV and Å. ASE is imported by the call, from the extra
    ``jaxgnn[ase]``.

    Edges are found on the host within the cutoff and a skin, and again when atoms have moved so far
    that some may be missing. They are padded to a few sizes: steps compile nothing as long as their
    number does not change much. Positions are float64 until they are taken from an origin near to
    the atoms, so they may drift as far as they like.

    A calculator of a module can be pickled and copied; what is loaded compiles and searches again.

    Args:
      model: a potential such as ``models.SchNet``, or any module or function from a
        ``GraphBatch`` to energies. A module is copied by this call, in evaluation mode: to train it
        further changes no calculator that exists. A function is traced for each number of slots.
      species: symbols or atomic numbers of the rows in the model's tables, such as
        ``["H", "O"]``; each once, and not more than the model has.
      cutoff: radius of the edges, at least the model's; None for the model's.
      skin: additional radius in which edges are stored, in Å.

    Returns:
      An ``ase.calculators.calculator.Calculator``. Its ``num_searches`` counts searches for edges,
      and ``num_traces`` the programs that were compiled.

    Raises:
      ImportError: if ASE is not installed.
      ValueError: if an option does not fit; when it calculates, if atoms are of another species, a
        position is not finite or a periodic cell is empty.

    Example:
      >>> from ase.build import molecule
      >>> from flax import nnx
      >>> from jaxgnn import interop, models
      >>> model = models.SchNet(2, 16, rngs=nnx.Rngs(0))
      >>> atoms = molecule("H2O")
      >>> atoms.calc = interop.ase_calculator(model, ["H", "O"])
      >>> atoms.get_forces().shape
      (3, 3)
    """
    if not callable(model):
        raise bad_input(_WHERE, "model", "a potential", type(model).__name__)
    radius = getattr(model, "cutoff", None) if cutoff is None else cutoff
    if not isinstance(radius, int | float) or not 0 < radius < np.inf:
        raise bad_input(_WHERE, "cutoff", "a positive number, as the model has none", repr(radius))
    if isinstance(model, InteratomicPotential) and radius < model.cutoff:
        raise bad_input(_WHERE, "cutoff", f"at least the model's, {model.cutoff:g}", repr(radius))
    if not isinstance(skin, int | float) or not 0 <= skin < np.inf:
        raise bad_input(_WHERE, "skin", "a number of at least 0", repr(skin))
    _, rows = _calculator_class(), _rows_of_numbers(species)
    if isinstance(model, InteratomicPotential) and len(species) > model.num_species:
        expected = f"at most {model.num_species}, the rows of the model's tables"
        raise bad_input(_WHERE, "species", expected, f"{len(species)} of them")
    return _calculator(_Program(_copied(model)), rows, float(radius), float(skin))


def _copied(model: Any) -> Any:
    """A module whose arrays are copies, in evaluation mode; a function is returned as it is."""
    if not isinstance(model, nnx.Module):
        return model
    graphdef, state = nnx.split(model)
    copied = nnx.merge(graphdef, jax.tree.map(jnp.copy, state))
    copied.eval()
    return copied


def _calculator(program: _Program, rows: np.ndarray, radius: float, skin: float) -> Any:
    """Returns a new calculator; a pickled one is loaded by this function."""
    return _calculator_class()(program, rows, MovingAtoms(radius, skin))


class _Program:
    """Computes potentials of batches, compiled once for each shape.

    Args:
      model: the potential, which nobody else changes.

    Attributes:
      num_traces: how many times it was traced.
    """

    def __init__(self, model: Callable[[GraphBatch], Any]):
        self.num_traces = 0
        self._model = model
        if isinstance(model, nnx.Module):
            graphdef, self._state = nnx.split(model)
            self._merged: Callable[[Any], Any] = lambda state: nnx.merge(graphdef, state)
        else:
            self._state, self._merged = (), lambda _: model
        self._compiled = jax.jit(self._compute, static_argnums=2)

    def __reduce__(self) -> tuple[Any, ...]:
        # The compiled program stays behind. Tried here, as pickle's own errors name what is deep
        # inside of the model.
        try:
            pickle.dumps(self._model)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            expected = "a module or a function of a module of Python, to pickle the calculator"
            got = getattr(self._model, "__qualname__", type(self._model).__name__)
            raise pickle.PicklingError(f"{_WHERE}: model must be {expected}, got {got}") from error
        return _Program, (self._model,)

    def __call__(self, batch: GraphBatch, *, stress: bool) -> Potential:
        return jax.device_get(self._compiled(self._state, batch, stress))

    def _compute(self, state: Any, batch: GraphBatch, stress: bool) -> Potential:
        self.num_traces += 1
        return energy_forces_stress(self._merged(state), batch, stress=stress)


def _rows_of_numbers(species: Any) -> np.ndarray:
    """Returns the row in a model's tables of each atomic number, -1 for those that it has not."""
    from ase.data import atomic_numbers

    largest = max(atomic_numbers.values())
    if isinstance(species, str) or not isinstance(species, Sequence) or not species:
        raise bad_input(_WHERE, "species", "a sequence of symbols, such as ['H']", repr(species))
    rows = np.full(largest + 1, -1)
    for row, one in enumerate(species):
        number = atomic_numbers.get(one, -1) if isinstance(one, str) else int(one)
        if not 0 <= number <= largest:
            raise bad_input(_WHERE, f"species[{row}]", "a chemical symbol or number", repr(one))
        if rows[number] >= 0:
            raise bad_input(_WHERE, f"species[{row}]", "of one row only", repr(one))
        rows[number] = row
    return rows


@functools.cache
def _calculator_class() -> Any:
    try:
        from ase.calculators.calculator import (
            Calculator,
            PropertyNotImplementedError,
            all_changes,
        )
        from ase.stress import full_3x3_to_voigt_6_stress
    except ImportError as error:
        raise ImportError(f"{_WHERE} needs the package ase: pip install 'jaxgnn[ase]'") from error

    class PotentialCalculator(Calculator):
        """Energy, forces and stress of atoms by a potential of jaxgnn."""

        implemented_properties = ["energy", "free_energy", "forces", "stress"]  # noqa: RUF012

        def __init__(self, program: _Program, rows: np.ndarray, atoms_of_steps: MovingAtoms):
            super().__init__()
            self._program, self._rows, self._moving = program, rows, atoms_of_steps

        def __reduce__(self) -> tuple[Any, ...]:
            # The class exists only where ASE is imported, so it is found by a function.
            moving = self._moving
            arguments = self._program, self._rows, moving.r, moving.skin
            left = {"_program", "_rows", "_moving"}
            rest = {name: value for name, value in vars(self).items() if name not in left}
            return _calculator, arguments, rest

        @property
        def num_searches(self) -> int:
            """Number of searches for edges."""
            return self._moving.num_searches

        @property
        def num_traces(self) -> int:
            """Number of programs that were compiled."""
            return self._program.num_traces

        def calculate(
            self,
            atoms: Any = None,
            properties: Sequence[str] = ("energy",),
            system_changes: Sequence[str] = tuple(all_changes),
        ) -> None:
            """Computes the properties, as ASE calls it."""
            super().calculate(atoms, properties, system_changes)
            placed = _placed(self.atoms, self._rows)
            with_stress = "stress" in properties
            if with_stress and not all(placed.periodic):
                raise PropertyNotImplementedError("stress needs three periodic directions")
            batch = self._moving.batch(placed)
            results = self._program(batch, stress=with_stress)
            energy = float(results.energy[0])
            forces = np.asarray(results.forces[: len(placed.positions)], np.float64)
            self.results = {"energy": energy, "free_energy": energy, "forces": forces}
            if results.stress is not None:
                full = np.asarray(results.stress[0], np.float64)
                self.results["stress"] = full_3x3_to_voigt_6_stress(full)

    return PotentialCalculator


def _placed(atoms: Any, rows: np.ndarray) -> Placed:
    """Returns the atoms as a structure; ValueError names a species that the model does not know."""
    numbers = atoms.get_atomic_numbers()
    species = rows[numbers]
    unknown = np.flatnonzero(species < 0)
    if unknown.size:
        symbol = atoms.get_chemical_symbols()[unknown[0]]
        expected = "all species of the atoms"
        raise bad_input(_WHERE, "species", expected, f"none for {symbol}, atom {unknown[0]}")
    x, y, z = (bool(flag) for flag in atoms.pbc)
    cell = np.array(atoms.cell) if any((x, y, z)) else None
    return Placed(np.array(atoms.positions), species, cell, (x, y, z))
