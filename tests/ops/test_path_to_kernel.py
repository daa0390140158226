"""From the public function of an op to its kernel a reader passes few modules."""

import traceback
from pathlib import Path

import jax
import pytest

import jaxgnn
from jaxgnn import ops
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.registry import OPS
from pallas_kernels import simt, tensor_cores
from tests.ops._calls import ON_A_GPU

MOST_STOPS = 7
ROOT = Path(jaxgnn.__file__).parent.parent
# What is passed in any op: it gives a function its derivatives, and does nothing else.
PLUMBING = "jaxgnn/_derivatives/"


class _Launched(Exception):
    """The kernel is reached."""


def _stops():
    """The modules of the library on the stack, the caller first, each once."""
    files = (Path(frame.filename) for frame in traceback.extract_stack())
    ours = [file.relative_to(ROOT).as_posix() for file in files if file.is_relative_to(ROOT)]
    passed = [file for file in dict.fromkeys(ours) if not file.startswith(PLUMBING)]
    return [file for file in passed if file.startswith(("jaxgnn/", "pallas_kernels/"))]


@pytest.mark.parametrize("name", ON_A_GPU)
def test_the_way_to_a_kernel_has_at_most_seven_stops(name, monkeypatch):
    def launch(*args, **options):
        raise _Launched(_stops())

    monkeypatch.setattr(dispatch, "current_platform", lambda: "cuda")
    monkeypatch.setattr(simt, "launch", launch)
    monkeypatch.setattr(tensor_cores, "launch", launch)
    with jaxgnn.default_implementation("pallas"), pytest.raises(_Launched) as found:
        jax.jit(ON_A_GPU[name], static_argnums=0).trace(ops)
    (stops,) = found.value.args
    assert len(stops) <= MOST_STOPS, stops
    assert stops[-1].startswith("pallas_kernels/")


def test_every_op_with_a_kernel_is_asked():
    assert {op.name for op in OPS if op.pallas} == set(ON_A_GPU)
