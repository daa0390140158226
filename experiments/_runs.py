"""Functions for run folders, shared by the experiments."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxgnn._errors import bad_input
from jaxgnn.training.files import printable
from jaxgnn.training.lock import lock_folder
from jaxgnn.training.processes import writes_files


def discard(folder: Path) -> None:
    """Removes an earlier run, but nothing that does not look like one.

    If several processes train together, process 0 does it.

    Raises:
      ValueError: if the folder holds something else, or another process uses the run.
    """
    if not writes_files() or not folder.exists():
        return
    if not (folder / "config.json").exists():
        raise bad_input("train", "--run", "a folder of a run when --fresh is given", folder)
    lock_folder(folder).release()
    shutil.rmtree(folder)


def shown(path: Path) -> str:
    """The path relative to the working directory where that is shorter, as text to print."""
    here = Path.cwd()
    return printable(str(path.relative_to(here) if path.is_relative_to(here) else path))


def in_own_folder(run: Any) -> Any:
    """The options of a run, with its own folder below the one given for all runs."""
    return run if run.run is None else replace(run, run=run.run / run.variant_name())
