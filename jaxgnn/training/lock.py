"""Locks a run folder so that only one process uses it; the lock ends when the process dies."""

import fcntl
import json
import os
import platform
import threading
import time
import warnings
import weakref
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# Locks held by this process, by the path of their files. If a process opens a folder several times,
# all share a lock, which is released with the last of them.
_held: weakref.WeakValueDictionary[Path, "FolderLock"] = weakref.WeakValueDictionary()
_guard = threading.Lock()
# A killed process may have forked a child, which holds the lock until its first instructions
# release it.
_SECONDS_FOR_CHILDREN = 2.0


class FolderLock:
    """Keeps other processes out of a folder while this object and its process live.

    It is a lock of the operating system (flock) on an open file, so that a kill at any moment
    releases it. Use ``lock_folder`` to create one.
    """

    def __init__(self, file: Path):
        descriptor = _locked(file)
        self._close = weakref.finalize(self, os.close, descriptor)
        self._status = os.fstat(descriptor)

    def is_of(self, file: Path) -> bool:
        """Whether this locks ``file``: the lock is not released, and the file was not replaced."""
        try:
            return self._close.alive and os.path.samestat(file.stat(), self._status)
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Releases the lock immediately, for all who share it."""
        self._close()


def lock_folder(folder: Path) -> FolderLock:
    """Locks an existing folder for this process.

    Raises:
      ValueError: Another process has it; the message names it.
    """
    file = folder.resolve() / ".lock"
    with _guard:
        held = _held.get(file)
        if held is None or not held.is_of(file):
            held = _held[file] = FolderLock(file)
        return held


def _locked(file: Path) -> int:
    """The descriptor of ``file``, open and locked, with a line about the holder."""
    deadline = time.monotonic() + _SECONDS_FOR_CHILDREN
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The previous holder may have removed the folder, and the file, in the meantime.
            if file.exists() and os.path.samestat(file.stat(), os.fstat(descriptor)):
                break
        except BlockingIOError as error:
            holder = _holder(os.pread(descriptor, 4096, 0))
            os.close(descriptor)
            if _is_gone(holder) and time.monotonic() < deadline:
                time.sleep(0.01)
                continue
            who = "process {process} on {host} since {since}" if holder else "another process"
            raise ValueError(
                f"{file.parent} is in use by {who.format_map(holder)}: a run is for one process at "
                "a time"
            ) from error
        except OSError as error:
            warnings.warn(
                f"{file.parent} can not be locked against other processes ({error}): see to it "
                "that no two of them work there",
                stacklevel=4,
            )
            break
        os.close(descriptor)
    since = datetime.now(UTC).isoformat(timespec="seconds")
    holder = {"process": os.getpid(), "host": platform.node(), "since": since}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(holder).encode(), 0)
    return descriptor


def _holder(line: bytes) -> dict[str, Any]:
    """The holder's line in the file; empty if it has the lock, but has not yet written it."""
    try:
        holder = json.loads(line)
        return {name: holder[name] for name in ("process", "host", "since")}
    except (ValueError, KeyError, TypeError):
        return {}


def _is_gone(holder: dict[str, Any]) -> bool:
    """Whether the holder ran on this machine and has ended."""
    if holder.get("host") != platform.node():
        return False
    try:
        os.kill(int(holder["process"]), 0)
    except ProcessLookupError:
        return True
    except (ValueError, TypeError, OSError):  # unknown, or another user's process
        return False
    return False


def _let_go_in_child() -> None:
    # A child inherits its parent's descriptors, and would keep the lock if the parent is killed.
    for held in list(_held.values()):
        held.release()


os.register_at_fork(after_in_child=_let_go_in_child)
