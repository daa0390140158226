"""Compiled CUDA kernels on disk, so that a later process need not compile them again.

An entry is a file that is named by a hash of all that it depends on, and begins with a hash of its
content. Entries are written to a file of another name and moved, so several processes may share the
folder. An entry that is damaged counts as missing, and is written again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

_VARIABLE = "JAXGNN_KERNEL_CACHE_DIR"
_HASH_BYTES = hashlib.sha256().digest_size


def folder() -> Path | None:
    """The folder of the cache, which may not exist yet; None if there is none.

    ``JAXGNN_KERNEL_CACHE_DIR`` names it, and an empty text turns the cache off. The default is
    ``jaxgnn/kernels`` in ``XDG_CACHE_HOME`` or ``~/.cache``.
    """
    named = os.environ.get(_VARIABLE)
    if named is not None:
        return Path(named).expanduser() if named else None
    with contextlib.suppress(RuntimeError):  # There is no home.
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(base) / "jaxgnn" / "kernels"
    return None


def key(*parts: str) -> str:
    """The name of an entry that depends on these texts alone."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def read(name: str) -> bytes | None:
    """The content of an entry; None if it is missing, damaged or can not be read."""
    path = folder()
    if path is None:
        return None
    try:
        data = (path / name).read_bytes()
    except OSError:
        return None
    digest, content = data[:_HASH_BYTES], data[_HASH_BYTES:]
    return content if content and hashlib.sha256(content).digest() == digest else None


def write(name: str, content: bytes) -> None:
    """Stores an entry; does nothing where the folder can not be written."""
    path = folder()
    if path is None:
        return
    with contextlib.suppress(OSError):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path)
        try:
            with open(descriptor, "wb") as file:
                file.write(hashlib.sha256(content).digest() + content)
            os.replace(temporary, path / name)
        except BaseException:
            os.unlink(temporary)
            raise


def cache_summary() -> str:
    """One line on the cache: its folder, its entries and their size, or why nothing is kept."""
    path = folder()
    if path is None:
        return f"off; {_VARIABLE} may name a folder"
    try:
        sizes = [file.stat().st_size for file in path.iterdir()]
    except FileNotFoundError:
        sizes = []
    except OSError as error:
        return f"{path} can not be read: {error.strerror}"
    nearest = next(p for p in (path, *path.parents) if p.exists())
    writable = "" if os.access(nearest, os.W_OK) else ", which can not be written"
    return f"{path}{writable}: {len(sizes)} entries, {sum(sizes) / 1e6:.1f} MB"
