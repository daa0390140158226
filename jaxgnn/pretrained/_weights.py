"""Weights of Sudoku networks: files of models whose options the caller names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flax import nnx

from jaxgnn._errors import bad_input
from jaxgnn.pretrained._model_file import read_model, write_model

_NETWORKS = (
    "CandidateNetwork",
    "EquivariantRelationalNetwork",
    "RecurrentRelationalNetwork",
    "SudokuGNN",
)


def save_weights(
    path: str | os.PathLike[str], model: nnx.Module, options: Mapping[str, Any]
) -> None:
    """Writes the parameters of a model, with what it takes to make it again.

    Args:
      path: the file, an uncompressed ``.npz``.
      model: one of the Sudoku networks of ``jaxgnn.models``.
      options: keyword arguments of its class, without ``rngs``, that JSON can hold.

    Raises:
      ValueError: if the model is of another class, or has other parameters than one made with
        ``options``.
    """
    network = type(model).__name__
    if network not in _NETWORKS:
        raise bad_input("save_weights", "model", f"one of {', '.join(_NETWORKS)}", network)
    write_model("save_weights", path, model, options)


def load_weights(path: str | os.PathLike[str], **options: Any) -> nnx.Module:
    """Makes the model of a file that ``save_weights`` has written.

    Args:
      path: the file; one of ``save_model`` with a Sudoku network in it will do.
      **options: keyword arguments of the model's class in the place of those of the file, such as
        ``dtype`` or ``implementation``.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if it is not such a file, or does not fit the model that it names.
    """
    return read_model(Path(path), options, _NETWORKS, "weights that save_weights has written")
