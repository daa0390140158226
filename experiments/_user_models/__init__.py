"""Networks in the style of their users: Haiku, Flax Linen, jraph, e3nn-jax and plain JAX.

``jaxgnn.fuse`` is measured on them as they are. They have the structure of published models and
none of this library's ops. Each is built for a size, with random points, features and parameters.
The packages that a network needs are imported when it is built.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass

from experiments._user_models._model import Size as Size
from experiments._user_models._model import UserModel as UserModel


@dataclass(frozen=True)
class Entry:
    """A network and its sizes.

    Attributes:
      module: the module of this package that builds it, in a function of the network's name.
      needs: packages to import beside those of this library.
      cpu: its sizes on a CPU of few cores.
      gpu: its sizes on a GPU, those of publications.
    """

    module: str
    needs: tuple[str, ...]
    cpu: tuple[Size, ...]
    gpu: tuple[Size, ...]

    @property
    def missing(self) -> list[str]:
        """The packages that it needs and that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


MODELS: dict[str, Entry] = {
    "graphcast": Entry(
        "weather",
        ("haiku",),
        (Size(4_000, 8, 64, 2),),
        (Size(40_962, 8, 256, 4), Size(40_962, 8, 512, 4, "bfloat16")),
    ),
    "gns": Entry("particles", ("haiku",), (Size(2_000, 24, 64, 2),), (Size(20_000, 24, 128, 5),)),
    "graph_network": Entry("layers", ("haiku",), (Size(4_000, 20, 64),), (Size(50_000, 20, 128),)),
    "schnet": Entry(
        "potentials", ("haiku",), (Size(1_000, 50, 64, 2),), (Size(10_000, 50, 128, 3),)
    ),
    "painn": Entry(
        "potentials", ("haiku",), (Size(1_000, 48, 32, 2),), (Size(10_000, 48, 128, 3),)
    ),
    "nequip": Entry(
        "potentials", ("haiku", "e3nn_jax"), (Size(500, 24, 8, 2),), (Size(10_000, 24, 32, 2),)
    ),
    "molecules": Entry("molecules", (), (Size(2_600, 2, 64, 3),), (Size(2_600, 2, 256, 5),)),
    "lennard_jones": Entry("particles", (), (Size(8_000, 48, 1),), (Size(100_000, 64, 1),)),
    "dense_messages": Entry(
        "particles", (), (Size(4_000, 32, 64, 2),), (Size(40_000, 32, 128, 2),)
    ),
    "gcn": Entry("layers", ("haiku",), (Size(10_000, 16, 64, 2),), (Size(100_000, 16, 256, 2),)),
    "gat": Entry("layers", ("haiku",), (Size(10_000, 16, 64),), (Size(100_000, 16, 128),)),
}
"""All networks, by name."""


def user_model(name: str, size: Size) -> UserModel:
    """Builds a network.

    Args:
      name: one of ``MODELS``.
      size: its size.

    Raises:
      ModuleNotFoundError: if a package that it needs is not installed.
    """
    module = importlib.import_module(f"{__name__}.{MODELS[name].module}")
    return getattr(module, name)(size)
