"""Times ``ops.mhc_post_pre`` against the pair of ops that it fuses, with all gradients.

Run ``python -m experiments.benchmarks.mhc_post_pre``. A pair is ``mhc_post`` and the ``mhc_pre``
of the next layer, in one compiled function, by the implementation before its name. Bytes: the bytes
of the fused op, for the pair too, so that both have the same limit.
"""

from __future__ import annotations

from collections.abc import Iterator

from experiments.benchmarks import _streams
from experiments.benchmarks._cases import Candidate, Case, implementations
from experiments.benchmarks._command import command
from experiments.benchmarks._session import Options, Session, run_op
from experiments.benchmarks._workloads import STREAMS, Streams
from jaxgnn import ops

_ARRAYS = _streams.Arrays(
    ("x", "f", "h_post", "h_res", "phi", "alpha", "bias"), ("y", "h_in", "h_post", "h_res")
)


def cases(workload: Streams) -> Iterator[Case]:
    """Yields a case for every dtype and direction."""
    return _streams.cases("mhc_post_pre", workload, _ARRAYS, _candidates)


def _candidates(direction: str, inputs: list[tuple]) -> dict[str, Candidate]:
    pairs = implementations(_build_pair, direction, inputs)
    return {
        **implementations(_build, direction, inputs),
        **{f"{name} pair": candidate for name, candidate in pairs.items()},
    }


def _build(name: ops.Name):
    return lambda _, arrays: (ops.mhc_post_pre(*arrays, implementation=name), None)


def _build_pair(name: ops.Name):
    def pair(_, arrays):
        *for_post, phi, alpha, bias = arrays
        y = ops.mhc_post(*for_post, implementation=name)
        return ops.mhc_pre(y, phi, alpha, bias, return_streams=True, implementation=name), None

    return pair


if __name__ == "__main__":
    command(lambda options: run_op(cases, Session.start(options, STREAMS)), Options, __doc__)
