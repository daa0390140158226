"""JAX's persistent cache finds what another process has compiled; names and orders are no part."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _run(cache: Path, seed: int) -> dict:
    settings = {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "PYTHONHASHSEED": str(seed),
    }
    command = [sys.executable, "-m", "tests.ops._cached_process", str(seed)]
    environment = os.environ | settings
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.lowers
def test_a_second_process_compiles_nothing_and_lowers_the_same_kernels_for_cuda(tmp_path):
    """Another graph of the same shape, and the programs in another order."""
    first, second = (_run(tmp_path, seed) for seed in (1, 2))
    entries = len([path for path in tmp_path.iterdir() if path.name.endswith("-cache")])
    assert (first["hits"], first["misses"]) == (0, entries)
    assert (second["hits"], second["misses"]) == (entries, 0)
    assert entries >= 3
    assert first["kernels"] >= 9
    assert (second["kernels"], second["cuda"]) == (first["kernels"], first["cuda"])
