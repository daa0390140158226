"""Demonstration of ``jaxgnn.fuse`` on networks of plain JAX: a table, and a page for each."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments._plain_networks import NAMES, Edges, PlainNetwork, available, plain_network
from experiments._runs import shown
from experiments.mlp.config import NETWORKS, FuseConfig, Network
from jaxgnn._errors import bad_input
from jaxgnn.fusion import Explanation, explain, fuse
from jaxgnn.testing.timing import device_description


def model_names() -> dict[str, Network | None]:
    """Available networks by name: the nine of the benchmark, and those on graphs.

    A network of the benchmark is given with its sizes, and its name ends with its batch size.
    """
    nine = {f"{network.name()}@{network.batch_size}": network for network in NETWORKS}
    return {**nine, **dict.fromkeys(NAMES)}


def explain_models(config: FuseConfig) -> dict[str, Explanation]:
    """Prints the rewrites of each network and a table, and writes a page for each.

    Args:
      config: the options of the run.

    Returns:
      The explanations by network.

    Raises:
      ValueError: if a requested network is unknown, or its package is not installed.
    """
    config.check()
    known = model_names()
    here = [name for name in known if known[name] is not None or name in available()]
    for name in config.model:
        if name not in known:
            raise bad_input("fuse", "--model", f"among {', '.join(known)}", repr(name))
        if name not in here:
            expected = f"a network whose package is installed: {name.partition('.')[0]} is not"
            raise bad_input("fuse", "--model", expected, repr(name))
    found = {}
    device = device_description()
    print(", ".join(f"{key} {value}" for key, value in device.items()))
    for name in config.model or here:
        found[name] = _explained(name, known[name], config)
        page = config.run / f"fuse_{name.replace(' ', '_')}.html"
        found[name].save_html(page)
        print(f"\n{name}\n{found[name]}\n  page: {shown(page.absolute())}", flush=True)
    print(f"\n{_table(found)}")
    return found


def _explained(name: str, network: Network | None, config: FuseConfig) -> Explanation:
    made = _on_a_graph(name, config) if network is None else _multilayer(network)
    setattr(made.run, "__name__", name)  # noqa: B010
    fused = fuse(made.run, only_if_faster=not config.all_rewrites)
    return explain(fused, *made.arrays, measure=config.measure)


def _on_a_graph(name: str, config: FuseConfig) -> PlainNetwork:
    rng = np.random.default_rng(0)
    senders, receivers = (
        jnp.asarray(rng.integers(0, config.nodes, config.edges), jnp.int32) for _ in range(2)
    )
    return plain_network(name, Edges(senders, receivers, config.nodes), config.dim)


def _multilayer(network: Network) -> PlainNetwork:
    """Linear layers with relu between them; on a CPU an eighth of the widths and of the batch."""
    network = network.reduced() if jax.default_backend() == "cpu" else network
    widths = network.features()
    keys = jax.random.split(jax.random.key(0), len(widths))
    kernels = [
        jax.random.normal(key, (a, b)) / a**0.5
        for key, a, b in zip(keys[1:], widths[:-1], widths[1:], strict=True)
    ]
    biases = [jnp.zeros(width) for width in widths[1:]]
    x = jax.random.normal(keys[0], (network.batch_size, widths[0]))
    return PlainNetwork(partial(_layers, len(kernels)), (x, *kernels, *biases))


def _layers(count: int, x: Any, *parameters: Any) -> Any:
    kernels, biases = parameters[:count], parameters[count:]
    for kernel, bias in zip(kernels[:-1], biases[:-1], strict=True):
        x = jax.nn.relu(x @ kernel + bias)
    return x @ kernels[-1] + biases[-1]


def _table(found: dict[str, Explanation]) -> str:
    titles = "network", "rewrites", "equations", "measured ms", "refused"
    rows = [titles, *(_cells(name, one) for name, one in found.items())]
    widths = [max(len(row[i]) for row in rows) for i in range(len(titles))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)) for r in rows]
    return "\n".join(line.rstrip() for line in lines)


def _cells(name: str, one: Explanation) -> tuple[str, ...]:
    return (
        name,
        str(len(one.findings.applied)),
        f"{one.equations_before} -> {one.equations_after}",
        "-" if one.measured is None else str(one.measured).replace(" ms", "").partition(",")[0],
        str(len(one.findings.refused)),
    )
