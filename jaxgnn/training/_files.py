"""Writing small files so that a kill at any moment leaves the old or the new one, never a part."""

import json
import os
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Replaces the file at `path` by `text` in one step."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_json(path: Path, value: Any) -> None:
    """Replaces the file at `path` by `value` as indented JSON, in one step."""
    write_text(path, json.dumps(value, indent=2) + "\n")
