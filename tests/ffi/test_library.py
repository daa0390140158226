"""The compiled libraries: every symbol is there, loading is lazy, a missing one is explained."""

import ctypes
import re
from pathlib import Path

import jax.numpy as jnp
import pytest

from jaxgnn import CSRGraph, _ffi, ops
from jaxgnn._ffi import _library
from jaxgnn.ops import maxk_spmm as maxk_spmm_op
from jaxgnn.ops.core import dispatch

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("target", _ffi.targets())
def test_every_target_has_its_symbol(target):
    for name in _ffi.targets()[target]:
        path = _ffi.library_path(name)
        assert path is not None, f"the library {name} is not built"
        assert ctypes.CDLL(str(path))[target]


def test_the_table_lists_exactly_the_handlers_of_the_sources():
    # Ops of attention have four handlers each, which a macro of this header names.
    header = (ROOT / "ffi/include/jaxgnn_ffi/attention.h").read_text()
    endings = re.findall(r"XLA_FFI_DEFINE_HANDLER_SYMBOL\(\s*\\\s*op(?:##)?(\w*)", header)
    for platform in ("cpu", "cuda"):
        defined = set()
        for source in (ROOT / "ffi" / platform).glob("*.cc"):
            text = source.read_text()
            defined |= set(re.findall(r"XLA_FFI_DEFINE_HANDLER_SYMBOL\(\s*(\w+)", text))
            for op in re.findall(r"^JAXGNN_DEFINE_ATTENTION\((\w+)", text, re.MULTILINE):
                defined |= {op + ending for ending in endings}
        listed = {target for target, platforms in _ffi.targets().items() if platform in platforms}
        assert defined == listed


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_a_library_depends_on_nothing_but_the_c_and_cxx_runtime(name):
    path = _ffi.library_path(name)
    assert path is not None
    data = path.read_bytes()
    needed = set(re.findall(rb"lib[a-z_+]+\.so(?:\.\d+)?", data))
    opened = {b"libcuda.so.1"} if name == "cuda" else set()  # when a kernel first runs
    assert needed - opened <= {b"libstdc++.so.6", b"libm.so.6", b"libgcc_s.so.1", b"libc.so.6"}


def _forget():
    for cached in (_library.load, _library.why_missing, dispatch._warn_once):
        cached.cache_clear()


@pytest.fixture
def without_library(monkeypatch):
    monkeypatch.setattr(_library, "library_path", lambda platform: None)
    _forget()
    yield
    _forget()


def test_a_missing_library_warns_once_and_none_still_works(without_library):
    graph = CSRGraph.from_edges([0, 1], [1, 0], 2)
    with pytest.warns(UserWarning, match=r"slow path.*libjaxgnn_cpu\.so.*was not built"):
        y = ops.spmm(graph, jnp.eye(2))
    assert y.tolist() == [[0.0, 1.0], [1.0, 0.0]]
    ops.maxk_spmm(graph, ops.maxk(jnp.eye(2), 1))  # a second warning would be an error here


def test_a_missing_library_refuses_by_name(without_library):
    graph = CSRGraph.from_edges([0, 1], [1, 0], 2)
    with pytest.raises(NotImplementedError, match=r"spmm\[ffi\]: needs the compiled library"):
        ops.spmm(graph, jnp.eye(2), implementation="ffi")


def test_insisting_on_a_sparse_kernel_without_one_lists_the_reasons(without_library):
    graph = CSRGraph.from_edges([0, 1], [1, 0], 2)
    with pytest.warns(UserWarning, match="slow path"):
        kept = ops.maxk(jnp.eye(2), 1)
    with pytest.raises(NotImplementedError, match=r"no k-sparse kernel runs here: ffi: needs"):
        ops.sparse_implementation(graph, kept)
    assert maxk_spmm_op is ops.maxk_spmm


def test_a_broken_library_is_reported_not_registered(tmp_path, monkeypatch):
    broken = tmp_path / "libjaxgnn_cpu.so"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(_library, "library_path", lambda platform: broken)
    _forget()
    with pytest.warns(UserWarning, match=r"can not load libjaxgnn_cpu\.so"):
        reason = _library.why_missing("cpu")
    assert "can not be loaded" in reason
    _forget()
