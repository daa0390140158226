"""What the experiments share about run folders."""

from __future__ import annotations

import shutil
from pathlib import Path

from jaxgnn._errors import bad_input
from jaxgnn.training._lock import lock_folder
from jaxgnn.training._processes import writes_files


def discard(folder: Path) -> None:
    """Removes an earlier run, and nothing that does not look like one.

    Of several processes that train together, process 0 does it.

    Raises:
      ValueError: if there is something else in its place, or another process is at work there.
    """
    if not writes_files() or not folder.exists():
        return
    if not (folder / "config.json").exists():
        raise bad_input("train", "--run", "a folder of a run when --fresh is given", folder)
    lock_folder(folder).release()
    shutil.rmtree(folder)


def shown(path: Path) -> Path:
    """A path as short as it can be said from here."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
