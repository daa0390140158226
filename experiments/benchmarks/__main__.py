"""``python -m experiments.benchmarks``: times every op."""

from experiments.benchmarks._command import command
from experiments.benchmarks._session import Options
from experiments.benchmarks.run_all import main

if __name__ == "__main__":
    command(main, Options, __doc__)
