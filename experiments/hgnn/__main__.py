"""Command line: ``python -m experiments.hgnn lm|nodes``."""

from __future__ import annotations

from typing import Annotated

import tyro

from experiments._command import run_commands
from experiments._seeds import ONE_SEED, Repeats
from experiments.hgnn.config import LMConfig, NodesConfig

Seeds = Annotated[Repeats, tyro.conf.arg(name="")]


def lm(config: Annotated[LMConfig, tyro.conf.arg(name="")], repeats: Seeds = ONE_SEED) -> None:
    """Train language models of 1, 2, 4 and 8 experts, coupled and not, on Python's help."""
    config.check()
    repeats.check("lm")
    from experiments.hgnn.lm import lm as run_lm

    run_lm(config, repeats)


def nodes(
    config: Annotated[NodesConfig, tyro.conf.arg(name="")], repeats: Seeds = ONE_SEED
) -> None:
    """Classify the nodes of a hypergraph: digits, or published cocitations and coauthorships."""
    repeats.check("nodes")
    config.check()
    from experiments.hgnn.nodes import nodes_all

    nodes_all(config, repeats)


def main() -> None:
    """Runs a command; an invalid option or data file ends it with a one-line error."""
    run_commands("experiments.hgnn", lm, nodes)


if __name__ == "__main__":
    main()
