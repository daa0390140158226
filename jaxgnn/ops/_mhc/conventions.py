"""The constants in which published implementations of hyper-connections differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jaxgnn.ops._mhc.checks import check_count, check_number
from jaxgnn.ops.core.checks import check_choice

Preset = Literal["paper", "seed", "tilekernels", "liger"]


@dataclass(frozen=True)
class MHCConvention:
    """The constants of a hyper-connection, as keyword arguments for the ops.

    The defaults are the defaults of ``mhc_pre``, ``sinkhorn`` and ``mhc_post``.

    Attributes:
      norm_eps: added to the mean square of a token.
      pre_eps: added to the weights of the streams, the sigmoid ``h_pre``.
      post_scale: multiplies the sigmoid in ``h_post``.
      iterations: number of pairs of divisions in ``sinkhorn``.
      eps: added to the result of the first division in ``sinkhorn`` and to every later sum.
      last: the axis that ``sinkhorn`` normalises last, whose sums are exact: ``"rows"`` or
        ``"columns"``.
      transposed: whether streams are mixed by ``h_resᵀ x`` instead of ``h_res x``.

    Raises:
      ValueError: if a constant is not as above, or negative.

    Example:
      >>> from jaxgnn import ops
      >>> ops.MHC_PRESETS["tilekernels"].sinkhorn
      {'iterations': 10, 'eps': 1e-06, 'last': 'columns'}
    """

    norm_eps: float = 1e-6
    pre_eps: float = 1e-6
    post_scale: float = 2.0
    iterations: int = 20
    eps: float = 1e-6
    last: Literal["rows", "columns"] = "rows"
    transposed: bool = False

    def __post_init__(self):
        name = "MHCConvention"
        for constant in ("norm_eps", "pre_eps", "post_scale", "eps"):
            check_number(name, constant, getattr(self, constant))
        check_count(name, "iterations", self.iterations)
        check_choice(name, "last", self.last, "rows", "columns")
        check_choice(name, "transposed", self.transposed, True, False)

    @property
    def pre(self) -> dict[str, Any]:
        """Keyword arguments of ``mhc_pre``."""
        return {
            "norm_eps": self.norm_eps,
            "pre_eps": self.pre_eps,
            "post_scale": self.post_scale,
        }

    @property
    def sinkhorn(self) -> dict[str, Any]:
        """Keyword arguments of ``sinkhorn``."""
        return {"iterations": self.iterations, "eps": self.eps, "last": self.last}

    @property
    def post(self) -> dict[str, Any]:
        """Keyword arguments of ``mhc_post``."""
        return {"transposed": self.transposed}


class _Presets(Mapping[Preset, MHCConvention]):
    """A read-only mapping that can be copied and pickled."""

    def __init__(self, conventions: dict[Preset, MHCConvention]):
        self._conventions = dict(conventions)

    def __getitem__(self, name: Preset) -> MHCConvention:
        return self._conventions[name]

    def __iter__(self) -> Iterator[Preset]:
        return iter(self._conventions)

    def __len__(self) -> int:
        return len(self._conventions)

    def __repr__(self) -> str:
        return repr(self._conventions)


MHC_PRESETS: Mapping[Preset, MHCConvention] = _Presets(
    {
        # https://arxiv.org/abs/2512.24880: columns, then rows; eps of the norm from its table 5.
        "paper": MHCConvention(norm_eps=1e-20, pre_eps=0.0, eps=0.0),
        # The Ascend operators (CANN) and the Triton kernels derived from them.
        "seed": MHCConvention(last="columns", transposed=True),
        # https://github.com/deepseek-ai/TileKernels: the default arguments of its modelling layer.
        "tilekernels": MHCConvention(
            post_scale=1.0, iterations=10, last="columns", transposed=True
        ),
        # https://github.com/linkedin/Liger-Kernel. Its columns are exact, though it applies H x.
        "liger": MHCConvention(pre_eps=0.0, last="columns"),
    }
)
"""The conventions of other implementations by name, read-only."""
