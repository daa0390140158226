"""Folders of runs: their removal, their place as text, and the report at the end of a run."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments._options import ReportOptions
from jaxgnn._errors import bad_input
from jaxgnn.training import Confusion, Table, export_csv, export_tensorboard, write_report
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


def finish(
    folder: Path,
    options: ReportOptions,
    *,
    title: str,
    command: str | None = None,
    tables: Sequence[Table] = (),
    pictures: Sequence[Path] = (),
    confusion: Confusion | None = None,
) -> Path:
    """Writes the page, the pictures and the data of a run, and prints their location.

    Args:
      folder: the folder of the run.
      options: files to write besides the page.
      title: data set, model and number of seeds.
      command: command line that repeats the run; by default that of this process.
      tables: results beside their baselines.
      pictures: pictures of the results; ``curves.png`` of the folder is always shown.
      confusion: the test examples' labels and predictions.

    Returns:
      The path of the page.

    Raises:
      ValueError: if a file of the folder is damaged, or a picture is missing.
    """
    command = this_command() if command is None else command
    page = write_report(
        folder,
        title=title,
        command=command,
        tables=tables,
        pictures=pictures,
        confusion=confusion,
    )
    print(f"report: {shown(page)}")
    if options.csv:
        print(f"csv: {shown(export_csv(folder, folder / 'metrics.csv'))}")
    if options.tensorboard:
        events = export_tensorboard(folder, folder / "tensorboard")
        print(f"tensorboard --logdir {shlex.quote(shown(events.parent))}")
    return page


def this_command() -> str:
    """The command line of this process, quoted for a shell."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None:  # a script, or an interactive session
        start = ["python", sys.argv[0]]
    else:
        start = ["python", "-m", spec.name.removesuffix(".__main__")]
    return " ".join(map(_quoted, [*start, *sys.argv[1:]]))


def _quoted(word: str) -> str:
    r"""A word quoted for a shell; bytes that are no UTF-8 as in ``$'caf\xe9'``."""
    if word.isascii() or printable(word) == word:
        return shlex.quote(word)
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{printable(escaped)}'"
