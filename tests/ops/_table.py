"""Parametrisation shared by the tests of the ops."""

from jaxgnn.ops import _dispatch as dispatch
from jaxgnn.ops._dispatch import Kernel
from jaxgnn.testing import GRAPHS

BUILT = {case.name: case.build() for case in GRAPHS}


def usable(kernel: Kernel) -> list[str]:
    """The implementations that run on the platform at hand."""
    platform = dispatch.current_platform()
    return [n for n, entry in kernel.implementations.items() if platform in entry.platforms]


def longest_row(graph) -> int:
    """Terms in the longest sum of an aggregation or of its transpose."""
    degrees = graph.degrees().max(), graph.transpose().degrees().max()
    return max(1, *(int(d) for d in degrees))
