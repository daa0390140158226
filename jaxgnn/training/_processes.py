"""Agreement between several processes that train together."""

import jax
import numpy as np
from jax.experimental import multihost_utils


def writes_files() -> bool:
    """Whether this process writes and reports for all; only process 0 does."""
    return jax.process_index() == 0


def wait_for_all(what: str) -> None:
    """Waits until all processes arrive; ``what`` names the place, the same for all."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(what)


def as_first(flag: bool) -> bool:
    """Returns the flag of process 0 on all processes, such as that its time is over."""
    if jax.process_count() == 1:
        return flag
    return bool(multihost_utils.broadcast_one_to_all(np.array(flag)))
