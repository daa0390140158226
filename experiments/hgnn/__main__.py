"""Command line: ``python -m experiments.hgnn lm|nodes``."""

from __future__ import annotations

import sys
from typing import Annotated

import tyro

from experiments.hgnn.config import LMConfig, NodesConfig
from experiments.hgnn.lm import lm as run_lm
from experiments.hgnn.nodes import nodes as run_nodes


def lm(config: Annotated[LMConfig, tyro.conf.arg(name="")]) -> None:
    """Train language models of 1, 2, 4 and 8 experts, coupled and not, on Python's help."""
    run_lm(config)


def nodes(config: Annotated[NodesConfig, tyro.conf.arg(name="")]) -> None:
    """Classify the nodes of a hypergraph: digits, or published cocitations and coauthorships."""
    run_nodes(config)


def main() -> None:
    """Runs a command; a bad option or data file ends it with one line."""
    commands = {"lm": lm, "nodes": nodes}
    try:
        tyro.extras.subcommand_cli_from_dict(commands, prog="python -m experiments.hgnn")
    except (ValueError, FileNotFoundError, NotImplementedError, FloatingPointError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
