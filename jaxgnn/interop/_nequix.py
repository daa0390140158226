"""Trained models of nequix as ``models.NequIP``; neither nequix nor equinox is needed."""

from __future__ import annotations

import math
import os
from collections.abc import Generator
from pathlib import Path
from typing import IO, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxgnn import models
from jaxgnn._errors import bad_input
from jaxgnn.datasets.formats.file_errors import naming, require_file
from jaxgnn.datasets.formats.files import parse_json
from jaxgnn.datasets.formats.npy import read_next_array
from jaxgnn.datasets.records.elements import SYMBOLS
from jaxgnn.equivariant.coupling import MAX_DEGREE
from jaxgnn.equivariant.irreps import Irreps, as_irreps
from jaxgnn.nn import EquivariantLinear
from jaxgnn.nn.equivariant.normalized import SECOND_MOMENTS
from jaxgnn.nn.shared.options import Check, flag, is_integer, number, positive, require

_CONTENTS = "a model of nequix, such as nequix-mp-1.nqx"
_LONGEST_LINE = 1 << 24
_MOST = 1000  # layers, and the power of the envelope
# e3nn-jax estimates √E[silu(z)²] from quantiles in float32. The exact root is 2e-5 larger.
_GATED = math.sqrt(SECOND_MOMENTS["silu"]) / 0.5964577198028564


def from_nequix(path: str | os.PathLike[str]) -> tuple[models.NequIP, tuple[str, ...]]:
    """Reads a trained model of nequix, a ``.nqx`` file, as a ``models.NequIP``.

    nequix (https://arxiv.org/abs/2508.16067, https://github.com/atomicarchitects/nequix) publishes
    potentials of materials. Such a file has a line of JSON, the options, and behind it the arrays
    of the weights. Nothing in it is executed, and neither nequix, equinox nor e3nn-jax is imported.
    The file has no checksums: damaged numbers are read as they are.
    Energies, forces and stresses are those that nequix computes, up to rounding, in eV and Å.

    The model is like any other: ``interop.ase_calculator(model, elements)`` makes a calculator of
    ASE of it, ``jaxgnn.save_model`` stores it, and training can go on from it.

    Args:
      path: the file, as nequix 0.4 writes it for any of its options. A ``.pt`` file, of its models
        for torch, is converted by nequix: ``nequix.calculator.from_pretrained``.

    Returns:
      The model; and the chemical symbol of each row of its tables, by ascending atomic number. A
      species of ``models.atomic_sample`` is a place in this tuple, its radius ``model.cutoff``.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if the file is truncated or is none of nequix, an option is missing or has an
        invalid value, or an array does not have the shape that the options give it. Names the
        file, and the option or array.

    Example:
      >>> from jaxgnn import interop
      >>> model, elements = interop.from_nequix("missing.nqx")
      Traceback (most recent call last):
      ...
      FileNotFoundError: no file missing.nqx: expected a model of nequix, such as nequix-mp-1.nqx
    """
    path = Path(path)
    require_file(path, _CONTENTS)
    with open(path, "rb") as file:
        options = _read_options(path, file)
        with naming(path, "a model of nequix"):
            numbers = sorted(options["atomic_numbers"])
            energies = _read_array(file, "atom_energies", (len(numbers),))
            model = _abstract_model(options, energies)
            for leaf in _leaves(model):
                leaf.variable.set_value(jnp.asarray(leaf.read(file), jnp.float32))
            _check_rest(file)
    return model, tuple(SYMBOLS[number] for number in numbers)


def _numbers(value: Any) -> str | None:
    """Checks for the atomic numbers of the species."""
    is_list = isinstance(value, list) and value and all(is_integer(one) for one in value)
    fits = is_list and all(0 < one < len(SYMBOLS) for one in value)
    return None if fits and len(set(value)) == len(value) else "different atomic numbers"


def _whole(least: int, most: int) -> Check:
    """Check for a whole number, which may be a float."""

    def check(value: Any) -> str | None:
        is_whole = number(value) is None and value == int(value)
        expected = f"a whole number from {least} to {most}"
        return None if is_whole and least <= value <= most else expected

    return check


_OPTIONS: dict[str, Check] = {
    "atomic_numbers": _numbers,
    "hidden_irreps": lambda value: None if isinstance(value, str) else "text",
    "lmax": _whole(0, MAX_DEGREE),
    "cutoff": positive,
    "n_layers": _whole(1, _MOST),
    "radial_basis_size": _whole(1, 1 << 20),
    "radial_mlp_size": _whole(1, 1 << 20),
    "radial_mlp_layers": _whole(0, _MOST),
    "radial_polynomial_p": _whole(2, _MOST),
    "index_weights": flag,
    "layer_norm": flag,
    "shift": number,
    "scale": number,
    "avg_n_neighbors": positive,
}
"""Options of a file that determine the model; it has others, of the training."""


def _read_options(path: Path, file: IO[bytes]) -> dict[str, Any]:
    """Reads and checks the first line of a file."""
    with naming(path, "a model of nequix, whose first line has its options"):
        options = parse_json(file.readline(_LONGEST_LINE).decode())
        if not isinstance(options, dict):
            raise ValueError(f"it is a {type(options).__name__}")
    for name, check in _OPTIONS.items():
        if name not in options:
            raise bad_input(str(path), f"the option {name}", "in its first line", "none")
        require(str(path), f"the option {name}", options[name], check)
    argument, lmax = "the option hidden_irreps", int(options["lmax"])
    irreps = as_irreps(str(path), argument, options["hidden_irreps"])
    entries = [entry.irrep for entry in irreps]
    harmonics = [harmonic.irrep for harmonic in Irreps.harmonics(lmax)]
    if entries != [irrep for irrep in harmonics if irrep in entries] or entries[0] != harmonics[0]:
        expected = (
            f"0e and others of {'+'.join(map(str, harmonics))}, for lmax {lmax}, in this order"
        )
        raise bad_input(str(path), argument, expected, str(irreps))
    return options


def _abstract_model(options: dict[str, Any], energies: np.ndarray) -> models.NequIP:
    """Returns the model with shapes for weights, and with tables of species."""
    hidden = (int(options["radial_mlp_size"]),) * int(options["radial_mlp_layers"])
    arguments: dict[str, Any] = {
        "irreps": options["hidden_irreps"],
        "cutoff": options["cutoff"],
        "max_degree": int(options["lmax"]),
        "num_interactions": int(options["n_layers"]),
        "num_basis": int(options["radial_basis_size"]),
        "radial_features": hidden,
        "envelope_power": int(options["radial_polynomial_p"]),
        "num_neighbours": options["avg_n_neighbors"],
        "embedding": "one_hot",
        "species_weights": options["index_weights"],
        "norm": "nequix" if options["layer_norm"] else None,
        "species_shift": energies.astype(np.float64) + options["shift"],
        "species_scale": options["scale"],
        "subtract_lone_atoms": False,  # nequix adds the energies of atoms to what its network gives
    }
    model = nnx.eval_shape(lambda: models.NequIP(len(energies), **arguments, rngs=nnx.Rngs(0)))
    model.species_shift.set_value(jnp.asarray(arguments["species_shift"], jnp.float32))
    model.species_scale.set_value(jnp.full(len(energies), options["scale"], jnp.float32))
    return model


class _Leaf(NamedTuple):
    """Arrays of a file that are one variable of the model.

    Attributes:
      name: of the arrays, as nequix names them.
      variable: the variable, with a shape as its value.
      factor: by which the weights here differ.
      widths: sizes of the last axis of the arrays, if there are several.
    """

    name: str
    variable: nnx.Variable
    factor: float = 1.0
    widths: tuple[int, ...] = ()

    def read(self, file: IO[bytes]) -> np.ndarray:
        """Reads the arrays; ValueError if one has another shape, or is missing."""
        *rest, last = self.variable.get_value().shape
        parts = [_read_array(file, self.name, (*rest, w)) for w in self.widths or (last,)]
        return np.concatenate(parts, axis=-1) * self.factor


def _leaves(model: models.NequIP) -> Generator[_Leaf]:
    """The weights, in the order of a file: by the fields of the classes of nequix.

    nequix's Bessel functions are larger by ``√(2 / cutoff)``, and its gates by ``_GATED``: the
    weights behind them have these factors here.
    """
    for place, step in enumerate(model.interactions):
        name, gated = f"layers[{place}]", _GATED if place else 1.0
        radial = [*(layer.kernel for layer in step.conv.radial), step.conv.radial_kernel]
        for depth, kernel in enumerate(radial):
            factor = 1.0 if depth else math.sqrt(2 / model.cutoff)
            yield _Leaf(f"{name}.radial_mlp.layers[{depth}].weights", kernel, factor)
        yield from _leaves_of_linear(f"{name}.linear_1", step.linear, gated)
        yield from _leaves_of_linear(f"{name}.linear_2", step.conv.linear)
        yield from _leaves_of_linear(f"{name}.skip", step.self_connection, gated)
        if step.norm is not None:
            widths = tuple(kernel.get_value().shape[-1] for kernel in step.conv.linear.kernels)
            yield _Leaf(f"{name}.layer_norm.affine_weight", step.norm.scale, widths=widths)
    yield from _leaves_of_linear("readout", model.readout, _GATED)


def _leaves_of_linear(
    name: str, linear: EquivariantLinear, factor: float = 1.0
) -> Generator[_Leaf]:
    for irrep, kernel in zip(linear.irreps, linear.kernels, strict=True):
        yield _Leaf(f"{name}, {irrep}", kernel, factor)


def _read_array(file: IO[bytes], name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the next array of a file; ValueError unless it has floats of this shape."""
    try:
        array = read_next_array(file)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if array.shape != shape or array.dtype.kind != "f":
        got = f"{array.dtype}{list(array.shape)}"
        raise ValueError(f"{name}: expected floats {list(shape)}, got {got}")
    return array


def _check_rest(file: IO[bytes]) -> None:
    """Raises ValueError if arrays follow the weights.

    Published files have nothing there, a line feed, or all numbers of their options once more.
    """
    while file.read(1) not in (b"", b"\n"):
        file.seek(-1, os.SEEK_CUR)
        array = read_next_array(file)
        if array.ndim:
            raise ValueError(f"readout: expected no arrays behind it, got {list(array.shape)}")
