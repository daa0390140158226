"""``python -m experiments.benchmarks``: times every op."""

import tyro

from experiments.benchmarks._session import Options
from experiments.benchmarks.run_all import main

if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
