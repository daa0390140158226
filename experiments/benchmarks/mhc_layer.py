"""Times ``ops.mhc_layer``, a layer with hyper-connections, with the identity as the layer.

Run ``python -m experiments.benchmarks.mhc_layer``. Because the wrapped layer is the identity, all
time is that of the hyper-connection. Gradients are those to x, phi, alpha and bias. It is compared
with the layers of Liger and TransformerEngine, and one in plain torch, where these are installed.
Bytes: the sum of the bytes of ``mhc_pre`` and ``mhc_post``, in ``_streams.bytes_moved``, where the
backward pass adds the two gradients of x without another pass. Where its two ends are linked,
``mhc_layer`` moves one array of the streams less in the backward. The count does not change, so
that its share of the limit can be compared with that of the separate ops.
"""

from __future__ import annotations

from collections.abc import Iterator

from experiments.benchmarks import _mhc_peers, _streams
from experiments.benchmarks._cases import Candidate, Case, implementations
from experiments.benchmarks._command import command
from experiments.benchmarks._session import Options, Session, run_op
from experiments.benchmarks._workloads import STREAMS, Streams
from jaxgnn import ops

_ARRAYS = _streams.Arrays(("x", "phi", "alpha", "bias"), "y")


def cases(workload: Streams) -> Iterator[Case]:
    """Yields a case for every dtype and direction."""
    return _streams.cases("mhc_layer", workload, _ARRAYS, _candidates)


def _candidates(direction: str, inputs: list[tuple]) -> dict[str, Candidate]:
    return {
        **implementations(_build, direction, inputs),
        **_mhc_peers.candidates(direction, inputs),
    }


def _build(name: ops.Name):
    return lambda _, arrays: (ops.mhc_layer(lambda h: h, *arrays, implementation=name), None)


if __name__ == "__main__":
    command(lambda options: run_op(cases, Session.start(options, STREAMS)), Options, __doc__)
