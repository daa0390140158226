"""Origin of a measured row: the commit of the code, and the flags of XLA."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

COMMIT = "JAXGNN_COMMIT"
"""Environment variable that names the commit where the code is a copy without a repository."""

_ROOT = Path(__file__).parents[2]


def origin() -> dict[str, str | None]:
    """Fields that every row has besides its device and versions.

    Returns:
      ``commit``, twelve digits, followed by ``+changes`` if tracked files differ from it, and None
      if neither git nor ``JAXGNN_COMMIT`` knows it; and ``xla_flags``, the variable ``XLA_FLAGS``.
    """
    return {"commit": _STARTED_AT, "xla_flags": os.environ.get("XLA_FLAGS", "").strip()}


def read_commit() -> str | None:
    """The commit of the checkout as it is now, or the one that ``JAXGNN_COMMIT`` names."""
    named = os.environ.get(COMMIT)
    if named:
        return named
    commit = _git("rev-parse", "--short=12", "HEAD")
    if commit is None:
        return None
    # Results change while they are measured.
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!*.jsonl")
    return f"{commit}+changes" if changed else commit


def _git(*arguments: str) -> str | None:
    """The output of a git command in the checkout; None if there is none."""
    command = ["git", "-C", str(_ROOT), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


# The code that runs is that of the start of the process, whatever is edited later.
_STARTED_AT = read_commit()
