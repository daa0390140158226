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
    """Writes the parameters of a model, with its options.

    Args:
      path: the file, an uncompressed ``.npz``.
      model: one of the Sudoku networks of ``jaxgnn.models``.
      options: keyword arguments of its class, without ``rngs``, of types that JSON supports.

    Raises:
      ValueError: if the model is of another class, or its parameters do not match
        ``options``.
    """
    network = type(model).__name__
    if network not in _NETWORKS:
        raise bad_input("save_weights", "model", f"one of {', '.join(_NETWORKS)}", network)
    write_model("save_weights", path, model, options)


def load_weights(path: str | os.PathLike[str], **options: Any) -> nnx.Module:
    """Creates the model of a file written by ``save_weights``.

    Args:
      path: the file; a file of ``save_model`` with a Sudoku network is supported too.
      **options: keyword arguments of the model's class that replace those of the file, such as
        ``dtype`` or ``implementation``.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if it is not such a file, or does not fit the model that it names.
    """
    return read_model(Path(path), options, _NETWORKS, "weights that save_weights has written")
