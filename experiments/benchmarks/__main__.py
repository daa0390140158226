"""``python -m experiments.benchmarks``: times every op."""

import tyro

from experiments.benchmarks.run_all import main
from experiments.benchmarks._session import Options

main(tyro.cli(Options, description=__doc__))
