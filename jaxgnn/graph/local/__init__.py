"""``LocalGraph``: the part of a graph that one device has, and its halo."""
