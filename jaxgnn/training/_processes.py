"""What several processes that train together agree on."""

import jax
import numpy as np
from jax.experimental import multihost_utils


def writes_files() -> bool:
    """Whether this process writes and reports for all: process 0 does."""
    return jax.process_index() == 0


def wait_for_all(what: str) -> None:
    """Waits until all processes are here; ``what`` names the place, the same for all."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(what)


def as_first(flag: bool) -> bool:
    """The flag of process 0, such as that its clock has run out."""
    if jax.process_count() == 1:
        return flag
    return bool(multihost_utils.broadcast_one_to_all(np.array(flag)))
