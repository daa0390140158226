"""Runs notebooks from top to bottom without Jupyter, and keeps what their cells print.

    python tools/run_notebook.py docs/notebooks/cora.ipynb           # fails if a cell fails
    python tools/run_notebook.py docs/notebooks/*.ipynb --write      # stores the printed text, too

Each notebook runs in a process of its own, in an empty folder. Only what a cell prints is stored,
and not the value of its last line.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def run(notebook: dict[str, Any]) -> None:
    """Executes the cells of code one after the other, and replaces their outputs."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), f"<cell {number}>", "exec"), scope)
        lines = printed.getvalue().splitlines(keepends=True)
        stream = {"name": "stdout", "output_type": "stream", "text": lines}
        cell |= {"execution_count": number, "outputs": [stream] if lines else []}
        sys.stdout.writelines(lines)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if len(options.notebooks) > 1:
        for path in options.notebooks:
            command = [sys.executable, __file__, str(path), *(["--write"] * options.write)]
            subprocess.run(command, check=True)
        return
    path = options.notebooks[0].resolve()
    notebook = json.loads(path.read_text())
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        run(notebook)
        os.chdir(path.parent)
    if options.write:
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
