"""Scores of edges: how much each edge matters to a prediction of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxgnn._arrays.arrays import checked_tree
from jaxgnn._errors import bad_input
from jaxgnn._modes import evaluated, refusing_changes
from jaxgnn.explain.graph_edits import (
    Structure,
    check_structure,
    graphs_of,
    keep_loops_alone,
    mask_graphs,
    real_slots,
    remove_edge,
    self_loops,
    split_by_relation,
)
from jaxgnn.explain.non_finite import finite_inputs
from jaxgnn.explain.presence_gradients import Learning, gradient, integrated, learnt_mask
from jaxgnn.explain.targets import Target
from jaxgnn.graph import CSRGraph, Incidence

Method = Literal["gradient", "integrated", "mask", "occlusion"]
"""Ways to score edges."""

_WHERE = "explain.edge_scores"


def edge_scores(
    model: Callable[..., Any],
    graph: Structure,
    x: Any,
    edge_features: Any = None,
    *,
    target: Any,
    method: Method = "gradient",
    num_hops: int | None = None,
    steps: int | None = None,
    learning_rate: float = 0.1,
    size: float = 0.02,
    entropy: float = 0.1,
) -> Any:
    """Scores each edge by how much it matters to a prediction.

    - ``"gradient"``: the derivative of the prediction by the presence of the edge, where all edges
      are present (``jaxgnn.graph.MaskedGraph``). One backward pass.
    - ``"integrated"``: integrated gradients (https://arxiv.org/abs/1703.01365), from no edges to
      all. The scores add up to the difference of the two predictions.
    - ``"mask"``: a mask that keeps the probability of the class high with few edges, as in
      GNNExplainer (https://arxiv.org/abs/1903.03894). Scores are in [0, 1], and zero for edges that
      have no influence.
    - ``"occlusion"``: the prediction minus that without the edge, exactly; one evaluation an edge.
      It works with any function of a graph, and alone with an ``Incidence``.

    The first three work with all layers of ``jaxgnn.nn`` on graphs, attention included, and with
    functions of the ops. They compare the model without edges with the model whose edges are
    masked, and raise an error if it reads edges in another way. Self loops are a part of the node:
    they stay present, and score zero.

    Args:
      model: called as ``model(graph, x)``, or ``model(graph, x, edge_features)`` if these are
        given; a layer, a network, or a function. A layer or network is evaluated in evaluation
        mode, without ``rngs``, so that nothing is dropped, and is not changed; of one that a
        function captures, call ``eval()`` before.
      graph: concrete graph of the data.
      x: features of the nodes, or whatever the model takes.
      edge_features: features of the edge slots, [edges, ...]; for a ``HeteroGraph`` a dictionary by
        relation.
      target: the number to explain. A node, for the class that the model predicts for it; a pair
        (node, class); an array of nodes, each explained by itself; or a function of the predictions
        that returns a scalar. Predictions have a row for each node, or each graph of a batch.
      method: one of the names above.
      num_hops: number of layers of the model. Edges further than this from the node, which can not
        reach it, get zero without being evaluated. For a ``CSRGraph`` and nodes as targets; None
        for all edges.
      steps: number of points of ``"integrated"``, 32 by default, or of steps of ``"mask"``, 200.
      learning_rate: of ``"mask"``.
      size: factor of the sum of the mask in the loss of ``"mask"``; larger for fewer edges.
      entropy: factor of the mean entropy of the mask; larger for scores closer to 0 and 1.

    Returns:
      Float32 scores [edge slots] in the order of ``graph.senders``, zero in padding slots; with an
      array of nodes [nodes, edge slots]. For a ``HeteroGraph`` a dictionary by relation; for an
      ``Incidence`` [incidences]. Positive scores support the prediction.

    Raises:
      ValueError: if an argument is not as described, the target does not fit the predictions, the
        model reads edges past the mask and the method is not ``"occlusion"``, or a prediction that
        is explained depends on a number that is not finite. Such numbers elsewhere do no harm.

    Example:
      >>> from flax import nnx
      >>> from jaxgnn import explain, nn
      >>> graph = CSRGraph.from_edges(senders=[0, 1], receivers=[2, 2], num_nodes=3)
      >>> layer = nn.GINConv(1, 1, linear=False, rngs=nnx.Rngs(0))
      >>> x = jnp.array([[5.0], [1.0], [0.0]])
      >>> explain.edge_scores(layer, graph, x, target=2).tolist()
      [5.0, 1.0]
    """
    check_structure(_WHERE, graph)
    _check_options(graph, method, steps, learning_rate, size, entropy)
    features = {"x": x} if edge_features is None else {"x": x, "edge_features": edge_features}
    arguments = tuple(checked_tree(_WHERE, features).values())
    model = evaluated(model)
    with refusing_changes(_WHERE, "model"):
        predictions = jax.jit(lambda: model(graph, *arguments))()
    goal = Target(_WHERE, target, predictions)
    graph, *arguments = finite_inputs(_WHERE, model, (graph, *arguments), predictions, goal)
    candidates = real_slots(graph) & ~self_loops(graph) & _slots_within_hops(graph, goal, num_hops)
    if method == "occlusion":
        scores = _occlusion(model, graph, arguments, goal, candidates)
    else:
        _require_masked(model, graph, arguments)
        options = Learning(steps or 200, learning_rate, size, entropy)
        scores = _presence_scores(model, graph, arguments, goal, candidates, method, options, steps)
    scores = scores[0] if goal.is_one else scores
    return split_by_relation(graph, scores)


def _presence_scores(
    model: Callable[..., Any],
    graph: Any,
    arguments: Sequence[Any],
    goal: Target,
    candidates: Bool[np.ndarray, " slots"],
    method: Method,
    learning: Learning,
    steps: int | None,
) -> Float[Array, "targets slots"]:
    """Returns the scores of a method that differentiates by the presence."""
    chosen = jnp.asarray(candidates, jnp.float32)
    real = jnp.asarray(real_slots(graph), jnp.float32)
    loops = jnp.asarray(self_loops(graph))

    def scores_of(at: tuple[Array, Array] | None) -> Array:
        def run(presence: Array) -> Any:
            return model(mask_graphs(graph, jnp.where(loops, 1, presence)), *arguments)

        if method == "mask":
            return learnt_mask(lambda m: goal.log_probability(run(m), at), chosen, real, learning)
        if method == "integrated":
            return chosen * integrated(lambda m: goal.value(run(m), at), real, steps or 32)
        return chosen * gradient(lambda m: goal.value(run(m), at), real)

    return _scores_of_targets(scores_of, goal)


def _occlusion(
    model: Callable[..., Any],
    graph: Any,
    arguments: Sequence[Any],
    goal: Target,
    candidates: Bool[np.ndarray, " slots"],
) -> Float[Array, "targets slots"]:
    """The differences of the prediction with all edges and without each, one after the other."""
    x, *of_edges = arguments
    given_features = of_edges[0] if of_edges else None
    is_graph = not isinstance(graph, Incidence)
    sizes = [g.num_edges for g in graphs_of(graph)] if is_graph else [candidates.size]
    parts = np.split(candidates, np.cumsum(sizes)[:-1])

    def scores_of(at: tuple[Array, Array] | None) -> Array:
        whole = goal.value(model(graph, *arguments), at)
        scores_of_graphs = []
        for place, chosen in enumerate(parts):
            slots = np.flatnonzero(chosen)
            scores = jnp.zeros(chosen.size, jnp.float32)
            if slots.size:

                def difference(slot: Array, place: int = place) -> Array:
                    less, features = remove_edge(graph, given_features, place, slot)
                    inputs = (x,) if features is None else (x, features)
                    return whole - goal.value(model(less, *inputs), at)

                differences = jax.lax.map(difference, jnp.asarray(slots, jnp.int32))
                scores = scores.at[slots].set(differences)
            scores_of_graphs.append(scores)
        return jnp.concatenate(scores_of_graphs)

    return _scores_of_targets(scores_of, goal)


def _scores_of_targets(
    scores_of: Callable[[Any], Array], goal: Target
) -> Float[Array, "targets slots"]:
    """Returns the scores of each target in turn, in one compiled program."""
    if goal.rows is None:
        return jax.jit(lambda: scores_of(None)[None])()
    at = jnp.asarray(goal.rows, jnp.int32), jnp.asarray(goal.classes, jnp.int32)
    return jax.jit(lambda at: jax.lax.map(scores_of, at))(at)


def _require_masked(model: Callable[..., Any], graph: Any, arguments: Sequence[Any]) -> None:
    """Raises ValueError if a model without edges differs from one whose edges are masked."""
    x, *of_edges = arguments
    bare, features = keep_loops_alone(graph, of_edges[0] if of_edges else None)
    inputs = (x,) if features is None else (x, features)

    @jax.jit
    def both(bare: Any, inputs: tuple[Any, ...], presence: Array) -> tuple[Any, Any]:
        return model(bare, *inputs), model(mask_graphs(graph, presence), *arguments)

    pair = both(bare, inputs, jnp.asarray(self_loops(graph), jnp.float32))
    leaves, of_masked = map(jax.tree.leaves, pair)
    if len(leaves) != len(of_masked):
        raise bad_input(_WHERE, "model", "a function that returns arrays", "one of graphs")
    for expected, actual in zip(leaves, of_masked, strict=True):
        if not jnp.issubdtype(expected.dtype, jnp.floating):
            continue
        a, b = (np.asarray(array, np.float32) for array in (expected, actual))
        scale = float(np.abs(a[np.isfinite(a)]).max(initial=1e-6))
        if not np.allclose(a, b, rtol=2e-2, atol=2e-2 * scale, equal_nan=True):
            wanted = "a function that reads edges through layers and ops of jaxgnn alone"
            got = (
                "one that still reads edges that are masked (by graph.indices, say, or by weights "
                "that it makes); use method='occlusion'"
            )
            raise bad_input(_WHERE, "model", wanted, got)


def _slots_within_hops(graph: Any, goal: Target, num_hops: int | None) -> Any:
    """A mask of the edge slots from which a target can be reached in this number of hops."""
    if num_hops is None:
        return True
    if not isinstance(num_hops, int | np.integer) or isinstance(num_hops, bool) or num_hops < 1:
        raise bad_input(_WHERE, "num_hops", "an int of at least 1, or None", repr(num_hops))
    if type(graph) is not CSRGraph or not graph.is_square or goal.rows is None:
        expected = "None, unless the graph is a square CSRGraph and targets are nodes"
        raise bad_input(_WHERE, "num_hops", expected, num_hops)
    reached = np.zeros(graph.num_rows + 1, bool)  # The last entry is for padding.
    reached[goal.rows] = True
    rows, senders = np.asarray(graph.receivers()), np.asarray(graph.indices)
    within = np.zeros(graph.num_edges, bool)
    for _ in range(num_hops):
        within = reached[rows] & (rows < graph.num_rows)
        reached[senders[within]] = True
    return within


def _check_options(
    graph: Any, method: Any, steps: Any, learning_rate: Any, size: Any, entropy: Any
) -> None:
    if method not in get_args(Method):
        names = ", ".join(map(repr, get_args(Method)))
        raise bad_input(_WHERE, "method", f"one of {names}", repr(method))
    if isinstance(graph, Incidence) and method != "occlusion":
        expected = "'occlusion' for an Incidence, since hypergraph layers take no presence"
        raise bad_input(_WHERE, "method", expected, repr(method))
    if steps is not None and method not in ("integrated", "mask"):
        raise bad_input(_WHERE, "steps", "None for this method", repr(steps))
    is_count = isinstance(steps, int | np.integer) and not isinstance(steps, bool) and steps > 0
    if steps is not None and not is_count:
        raise bad_input(_WHERE, "steps", "an int of at least 1", repr(steps))
    options = {"learning_rate": learning_rate, "size": size, "entropy": entropy}
    for name, number in options.items():
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        is_null = name == "learning_rate" and number == 0
        if not is_number or not 0 <= number < float("inf") or is_null:
            bound = "a positive number" if name == "learning_rate" else "a number of at least 0"
            raise bad_input(_WHERE, name, bound, repr(number))
