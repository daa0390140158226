"""Colours of lines and bars: one for each implementation, the same in every picture."""

import zlib
from collections.abc import Iterable

# Ten colours that differ in lightness as well as in hue, dark enough to read on white.
PALETTE = (
    "#1f77b4",
    "#ff7f0e",
    "#2ca02c",
    "#d62728",
    "#9467bd",
    "#8c564b",
    "#e377c2",
    "#7f7f7f",
    "#bcbd22",
    "#17becf",
)

_GEOMETRIC = "#7a0f4d"

_IMPLEMENTATIONS = {
    # This library.
    "xla": PALETTE[0],
    "pallas": PALETTE[1],
    "ffi": PALETTE[2],
    # Other libraries, in shades that the palette does not have.
    "numpy": "#b0b0b0",
    "scipy": "#5b3a8c",
    "jax": "#0b3c6f",
    "jraph": "#c49c00",
    "torch": "#b0122b",
    "torch compiled": "#f0696b",
    "torch_geometric": _GEOMETRIC,
    "torch-geometric": _GEOMETRIC,
    "pyg": _GEOMETRIC,
    "pyg convs": "#e89ac7",
    "liger": "#00695c",
}


def colour(label: str) -> str:
    """The colour of an implementation or a peer, or of any other label.

    Args:
      label: The name, in upper or lower case. An unknown name gets a colour of the palette that
        depends only on its text, so that two names may share a colour; ``colours`` gives several
        labels different ones.

    Returns:
      A colour as ``#rrggbb``.
    """
    known = _IMPLEMENTATIONS.get(label.lower())
    return known or PALETTE[zlib.crc32(label.encode()) % len(PALETTE)]


def colours(labels: Iterable[str]) -> dict[str, str]:
    """A colour for each label of one picture.

    Args:
      labels: The labels in the order in which they are drawn. Labels known to ``colour`` have
        their fixed colour. The others take the unused colours of the palette in order, and start
        again after the last one.

    Returns:
      Label -> colour as ``#rrggbb``.
    """
    found = {label: _IMPLEMENTATIONS.get(label.lower()) for label in labels}
    free = [shade for shade in PALETTE if shade not in found.values()] or list(PALETTE)
    others = [label for label, shade in found.items() if shade is None]
    turns = {label: free[place % len(free)] for place, label in enumerate(others)}
    return {label: shade or turns[label] for label, shade in found.items()}
