"""Compiled CUDA kernels on disk: found again, never trusted, shared by processes, optional."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxgnn._ffi import _kernel_cache, _nvrtc

SOURCE = 'extern "C" __global__ void kernel(float* x) { x[threadIdx.x] = 1.0f; }'
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """The folder of an empty cache."""
    path = tmp_path / "kernels"
    monkeypatch.setenv("JAXGNN_KERNEL_CACHE_DIR", str(path))
    return path


@pytest.fixture
def compilations(monkeypatch):
    """The architectures for which NVRTC compiles."""
    done, compile_now = [], _nvrtc._compile

    def record(library, text, architecture, kind):
        done.append(architecture)
        return compile_now(library, text, architecture, kind)

    monkeypatch.setattr(_nvrtc, "_compile", record)
    return done


def test_a_source_is_compiled_once_for_each_architecture_and_version(
    folder, compilations, monkeypatch
):
    binary = _nvrtc.compiled(SOURCE, 90)
    assert _nvrtc.compiled(SOURCE, 90) == binary and compilations == ["sm_90"]
    assert _nvrtc.compiled(SOURCE, 80) != binary
    assert _nvrtc.compiled(SOURCE + "\n", 90)
    monkeypatch.setattr(_nvrtc, "_version", lambda path: "another")
    assert _nvrtc.compiled(SOURCE, 90) == binary
    assert compilations == ["sm_90", "sm_80", "sm_90", "sm_90"]
    assert len(list(folder.iterdir())) == 4 and folder.stat().st_mode & 0o777 == 0o700
    assert _kernel_cache.cache_summary().startswith(f"{folder}: 4 entries, 0.0 MB")


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:20],
        lambda data: data[:-1],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: bytes([data[0] ^ 1]) + data[1:],
    ],
    ids=["empty", "short", "cut", "changed", "another hash"],
)
def test_a_damaged_entry_is_compiled_again(folder, damage, compilations):
    binary = _nvrtc.compiled(SOURCE, 90)
    (entry,) = folder.iterdir()
    data = entry.read_bytes()
    entry.write_bytes(damage(data))
    assert _nvrtc.compiled(SOURCE, 90) == binary
    assert len(compilations) == 2 and entry.read_bytes() == data


def test_a_folder_that_can_not_be_written_is_done_without(tmp_path, monkeypatch, compilations):
    (tmp_path / "file").touch()
    for path in (str(tmp_path / "file" / "kernels"), "/proc/none", ""):
        monkeypatch.setenv("JAXGNN_KERNEL_CACHE_DIR", path)
        assert _nvrtc.compiled(SOURCE, 90)
        assert _kernel_cache.cache_summary()
    assert len(compilations) == 3
    assert _kernel_cache.cache_summary() == "off; JAXGNN_KERNEL_CACHE_DIR may name a folder"


def test_a_write_that_fails_leaves_nothing(folder, monkeypatch):
    def fail(*paths):
        raise OSError("full")

    monkeypatch.setattr(os, "replace", fail)
    _kernel_cache.write("name", b"content")
    assert list(folder.iterdir()) == [] and _kernel_cache.read("name") is None


def test_the_folder_is_in_the_cache_of_the_user(monkeypatch, tmp_path):
    monkeypatch.delenv("JAXGNN_KERNEL_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert _kernel_cache.folder() == tmp_path / "jaxgnn" / "kernels"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert _kernel_cache.folder() == tmp_path / "home" / ".cache" / "jaxgnn" / "kernels"


def test_names_of_entries_tell_their_parts_apart():
    assert _kernel_cache.key("ab", "c") != _kernel_cache.key("a", "bc")


def test_processes_share_a_folder(folder):
    write = (
        "from jaxgnn._ffi import _kernel_cache as cache\n"
        "content = bytes(range(256)) * 4000\n"
        "for i in range(200):\n"
        "    cache.write('name', content)\n"
        "    assert cache.read('name') == content\n"
    )
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", write]
    processes = [subprocess.Popen(command, cwd=ROOT, env=environment) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert [file.name for file in folder.iterdir()] == ["name"]
