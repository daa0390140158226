"""What tests have benchmarks run in processes of their own; imports little, to start fast."""

import os
import time

from experiments.benchmarks._watched import Begun, Device, Measured


def stuck_in_the_second_case(options, done):
    """In the place of ``measurements``: the second of three cases never ends."""
    yield Device({"device": "none"}, [("tiny", str(i)) for i in range(3)])
    for case in range(done, 3):
        yield Begun("compiling plain")
        if case == 1:
            time.sleep(60)
        yield Measured({"workload": "tiny", "model": str(case)})


def ended_by_the_system(options, done):
    """In the place of ``measurements``: its process ends in the midst of a case."""
    yield Device({"device": "none"}, [("tiny", "0")])
    yield Begun("measuring")
    os._exit(9)
