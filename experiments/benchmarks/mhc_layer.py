"""Times a layer with hyper-connections: ``mhc_pre``, ``sinkhorn``, ``mhc_post``, no layer between.

Run ``python -m experiments.benchmarks.mhc_layer``. What is wrapped is the identity, so that all
time is that of the hyper-connection; gradients are those to x, phi, alpha and bias. Beside ours
are the layers of Liger and TransformerEngine, and one in plain torch, where these are installed:
see ``_mhc_peers``. Bytes: those of ``mhc_pre`` and ``mhc_post``, as ``_streams.bytes_moved``
counts, whose backward adds the two gradients of x without another pass.
"""

from __future__ import annotations

from collections.abc import Iterator

import tyro

from experiments.benchmarks import _mhc_peers, _streams
from experiments.benchmarks._cases import Candidate, Case, implementations
from experiments.benchmarks._session import Options, Session, run_op
from experiments.benchmarks._workloads import STREAMS, Streams
from jaxgnn import ops

_ARRAYS = _streams.Arrays(("x", "phi", "alpha", "bias"), "y")


def cases(workload: Streams) -> Iterator[Case]:
    """Every dtype and direction."""
    return _streams.cases("mhc_layer", workload, _ARRAYS, _candidates)


def _candidates(direction: str, inputs: list[tuple]) -> dict[str, Candidate]:
    return {
        **implementations(_build, direction, inputs),
        **_mhc_peers.candidates(direction, inputs),
    }


def _build(name: ops.Name):
    def layer(_, arrays):
        x, h_in, h_post, logits = ops.mhc_pre(*arrays, return_streams=True, implementation=name)
        h_res = ops.sinkhorn(logits, implementation=name)
        return ops.mhc_post(x, h_in, h_post, h_res, implementation=name), None

    return layer


if __name__ == "__main__":
    run_op(cases, Session.start(tyro.cli(Options, description=__doc__), STREAMS))
