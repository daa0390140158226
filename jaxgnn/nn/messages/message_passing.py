"""Message passing: edge MLPs, and repeated steps with shared parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count, pairwise
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jaxgnn import ops
from jaxgnn._arrays.arrays import require_no_heads
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph
from jaxgnn.nn.messages.message_functions import (
    FunctionMessages,
    FunctionUpdate,
    plain_function,
    takes_graph,
)
from jaxgnn.nn.messages.node_updates import NodeUpdate
from jaxgnn.nn.shared.common_options import DocumentedModule
from jaxgnn.nn.shared.dropout import require_stream, training_rngs
from jaxgnn.nn.shared.linear import promoted
from jaxgnn.nn.shared.maxk import check_widths
from jaxgnn.nn.shared.node_draws import bernoulli_of_edges
from jaxgnn.nn.shared.options import activation as known_activation
from jaxgnn.nn.shared.options import anything, checked_options, is_integer
from jaxgnn.ops.core.eager import run_compiled

# States that ``recompute_every="auto"`` stores at a time: two levels for Sudoku networks.
_MOST_STATES = 24

_kernel_init = nnx.initializers.lecun_normal()
_bias_init = nnx.initializers.zeros_init()


class EdgeMLP(DocumentedModule):
    """Messages of an MLP over both ends of each edge, aggregated at the receivers.

    The parameters are a list ``layers`` of ``nnx.Linear`` whose input is ``[h_i ; h_j ; e_ij]``,
    receiver first.

    Args:
      features: width of the node features; a pair (receivers, senders) for bipartite graphs.
      widths: widths of the layers; the last is the width of a message.
      edge_features: width of the edge features, zero if there are none.
      reduce: aggregation of the messages: ``"sum"``, ``"mean"`` or ``"max"``.
      activation: activation after each layer except the last.
      edge_dropout: probability of dropping an edge in training. The other messages are scaled up,
        except for a mean.
      use_bias: whether to add biases.
      kernel_init: initialiser of the kernels.
      bias_init: initialiser of the biases.

    Example:
      >>> messages = nn.EdgeMLP(8, [16, 4], activation="gelu", rngs=nnx.Rngs(0))
      >>> messages(CSRGraph.from_edges([0, 1], [1, 0], 2), jnp.ones((2, 8))).shape
      (2, 4)
    """

    @checked_options(activation=known_activation)
    def __init__(
        self,
        features: int | tuple[int, int],
        widths: Sequence[int],
        *,
        edge_features: int = 0,
        reduce: ops.Reduce = "sum",
        activation: ops.Activation | None = "relu",
        edge_dropout: float = 0.0,
        use_bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        kernel_init: nnx.Initializer = _kernel_init,
        bias_init: nnx.Initializer = _bias_init,
        implementation: ops.Name | None = None,
        rngs: nnx.Rngs,
    ):
        name = type(self).__name__
        is_pair = isinstance(features, Sequence) and len(features) == 2
        ends = tuple(features) if is_pair else (features, features)
        if isinstance(features, Sequence) and not is_pair:
            raise bad_input(name, "features", "a width or a pair of them", features)
        if not isinstance(widths, Sequence) or not widths:
            raise bad_input(name, "widths", "of at least one layer", widths)
        check_widths(name, *ends, *widths)
        if edge_dropout and reduce == "max":
            raise bad_input(name, "edge_dropout", "0 for reduce='max'", edge_dropout)
        options: dict[str, Any] = {"use_bias": use_bias, "dtype": dtype, "rngs": rngs}
        options |= {"param_dtype": param_dtype, "kernel_init": kernel_init, "bias_init": bias_init}
        pairs = pairwise([sum(ends) + edge_features, *widths])
        self.layers = nnx.List(nnx.Linear(*pair, **options) for pair in pairs)
        self.edge_features = edge_features
        self.reduce: ops.Reduce = reduce
        self.activation: ops.Activation | None = activation
        self.edge_dropout = edge_dropout
        self.deterministic: bool | None = None
        self.dtype = dtype
        self.implementation = implementation

    def __call__(
        self,
        graph: CSRGraph,
        h: Float[Array, "*batch nodes d"] | tuple[Array, Array],
        edge_features: Float[Array, "*batch edges e"] | None = None,
        *,
        weights: Float[Array, "*batch edges"] | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "*batch nodes m"]:
        """Returns the aggregated messages of each node.

        Args:
          graph: graph whose rows are the receivers.
          h: features of the nodes, or a pair of the features of receivers and of senders.
          edge_features: features of the edge slots, with the leading axes of ``h`` or without.
          weights: weight of each edge, with the leading axes of ``h`` or shared by them; None for
            the weights of the graph.
        """
        width = 0 if edge_features is None else edge_features.shape[-1]
        if width != self.edge_features:
            expected = f"{self.edge_features} wide, as the layer was made"
            raise bad_input(type(self).__name__, "edge_features", expected, width)
        ends = tuple(h) if isinstance(h, tuple | list) else (h,)
        arrays, *layers = promoted(self.dtype, self.layers, *ends, edge_features)
        *ends, edge_features = arrays
        name, rate = type(self).__name__, self.edge_dropout
        rngs = training_rngs(name, self.deterministic, rate, rngs)
        if rngs is not None:
            weights = self._drop(graph, weights, ends[0].shape[:-2], rngs)
        return ops.edge_mlp_aggregate(
            graph,
            tuple(ends) if len(ends) > 1 else ends[0],
            ops.EdgeMLPParams(*layers),
            edge_features,
            reduce=self.reduce,
            weights=weights,
            activation=self.activation,
            implementation=self.implementation,
        )

    def _drop(self, graph: CSRGraph, weights: Array | None, leading, rngs: nnx.Rngs) -> Array:
        kept = 1.0 - self.edge_dropout
        shape, key = (*leading, graph.num_edges), rngs.dropout()
        mask = bernoulli_of_edges(type(self).__name__, key, kept, graph, shape, len(leading))
        if weights is None:
            require_no_heads(type(self).__name__, "graph", graph.weights)
            weights = graph.weights
        weights = jnp.ones((), jnp.float32) if weights is None else weights
        return jnp.where(mask, weights / kept, 0)


def _is_node_update(value: Any) -> bool:
    """Returns whether an object has the methods of a ``NodeUpdate``."""
    methods = (getattr(value, name, None) for name in ("start", "features", "__call__"))
    return all(map(callable, methods))


def _update(value: Any) -> str | None:
    """Checks for a ``NodeUpdate``, or a function."""
    expected = None if _is_node_update(value) else plain_function(value)
    return None if expected is None else f"a NodeUpdate, {expected}"


def _reduce(value: Any) -> str | None:
    """Checks for None, or one or several reductions."""
    reductions = get_args(ops.Aggregation)
    names = [value] if isinstance(value, str) else value
    is_good = names is None or (
        isinstance(names, Sequence) and len(names) > 0 and all(name in reductions for name in names)
    )
    return None if is_good else f"None, one of {', '.join(reductions)}, or several of them"


class MessagePassing(DocumentedModule):
    """Steps of messages and updates with the same parameters: ``h ← update(h, messages(h))``.

    Messages and updates may be a user's own functions. With ``reduce``, a step is::

        h_i ← update(h_i, reduce_j messages(h_i, h_j, e_ij))

    where ``messages(x_dst, x_src, edges)`` is called once with the features at the receivers and at
    the senders of all edges, [*batch, edges, d] each, and with the features of edges [*batch,
    edges, e], or None; it returns [*batch, edges, m]. ``update(x, aggregated)``, in a call with
    inputs ``update(x, aggregated, inputs)``, is called with all nodes. A function with parameters
    must be an ``nnx.Module`` with such a ``__call__``, not a function that captures a module.
    If a call has ``rngs``, both also get ``rngs`` of the step. The arrays of edges are stored for
    the backward pass unless steps are recomputed. In padding slots ``messages`` gets the arrays of
    the last edge, and zeros if the graph has no edge.

    The steps are one ``nnx.scan``, compiled once for any number of steps. For the backward pass
    each step stores the node arrays that the update needs; the op recomputes arrays of edges.
    With ``recompute_every=1`` only the state of each step is stored, and each step is recomputed.
    With ``recompute_every=k`` the state of every k-th step is stored; the backward pass recomputes
    k states at a time, and each of these steps once more. ``"auto"`` stores at most 24 states at a
    time for up to 6,561 steps, in nested segments: it recomputes each step once for up to 24 steps,
    twice for up to 144, and three times for up to 512.

    Args:
      messages: an ``EdgeMLP``, or a module that is called with the same arguments; with ``reduce``
        a function or module of the arrays of each edge.
      update: an ``MLPUpdate``, ``GRUUpdate``, ``LSTMUpdate``, or another ``NodeUpdate``; or a
        function or module. Changes to the state of these modules, such as statistics, are dropped,
        so they must draw random numbers from the ``rngs`` of the call and not from streams that
        they hold.
      reduce: None for messages that are aggregated already; or how those of each edge are, by a
        reduction of ``ops.aggregate``, or by several, whose results stand side by side. A graph
        with weights or scales is refused then: weights can be features of edges.
      num_steps: number of steps, unless a call gives another. If there is one, a function may
        change the width of the features.
      recompute_every: number of steps between stored states, ``"auto"``, or None to store
        everything.

    Example:
      >>> rngs = nnx.Rngs(0)
      >>> layer = nn.MessagePassing(
      ...     nn.EdgeMLP(8, [16, 4], rngs=rngs),
      ...     nn.GRUUpdate(8, 4, rngs=rngs),
      ...     num_steps=3,
      ... )
      >>> graph = CSRGraph.from_edges([0, 1], [1, 0], 2)
      >>> layer(graph, jnp.ones((2, 8))).shape
      (2, 8)
      >>> readout = nnx.Linear(8, 3, rngs=rngs)
      >>> h, logits = layer(graph, jnp.ones((2, 8)), num_steps=5, readout=readout)
      >>> logits.shape
      (5, 2, 3)

      With a user's own functions:

      >>> layer = nn.MessagePassing(
      ...     lambda x_dst, x_src, edges: edges * (x_src - x_dst),
      ...     lambda x, aggregated: x + aggregated,
      ...     reduce="max",
      ... )
      >>> layer(graph, jnp.array([[1.0], [4.0]]), jnp.array([[2.0], [3.0]])).tolist()
      [[7.0], [-5.0]]
    """

    @checked_options(update=_update, reduce=_reduce, num_steps=anything)
    def __init__(
        self,
        messages: Callable[..., Array],
        update: NodeUpdate | Callable[..., Array],
        *,
        reduce: ops.Aggregation | Sequence[ops.Aggregation] | None = None,
        num_steps: int = 1,
        recompute_every: int | Literal["auto"] | None = None,
    ):
        name = type(self).__name__
        _require_positive(name, "num_steps", num_steps)
        if recompute_every is not None and recompute_every != "auto":
            _require_positive(name, "recompute_every", recompute_every)
        if reduce is not None:
            expected = plain_function(messages)
            if expected is not None:
                raise bad_input(name, "messages", expected, type(messages).__name__)
            if isinstance(messages, EdgeMLP):
                raise bad_input(name, "reduce", "None for an EdgeMLP, which has its own", reduce)
            messages = FunctionMessages(messages, reduce)
        elif not takes_graph(messages):
            expected = "one of those of ops.aggregate, such as 'sum', or several of them, for "
            expected += "messages that are a function of x_dst, x_src and edges"
            raise bad_input(name, "reduce", expected, None)
        self.messages = messages
        self.update: Any = update if _is_node_update(update) else FunctionUpdate(update)
        self.num_steps = num_steps
        self.recompute_every = recompute_every

    def __call__(
        self,
        graph: CSRGraph,
        h: Float[Array, "*batch nodes d"] | tuple[Array, Array],
        edge_features: Float[Array, "*#batch edges e"] | None = None,
        *,
        inputs: Float[Array, "*batch nodes x"] | None = None,
        weights: Float[Array, "*batch edges"] | None = None,
        num_steps: int | None = None,
        warm_up: Int[Array, ""] | int | None = None,
        readout: Callable[[Array], Any] | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> Array | tuple[Array, Any]:
        """Runs the steps.

        Args:
          graph: graph shared by the leading axes of ``h``. If it is a constant with uniform
            degrees, sums need no scatters.
          h: features of the nodes, which keep their dtype; for one step of functions of one's own
            also a pair ``(x_dst, x_src)`` of those of receivers and of senders.
          edge_features: features of the edge slots, for the messages of every step.
          inputs: inputs of each node, for the updates of every step.
          weights: weight of each edge, for the messages of every step; None for the weights of the
            graph. Not supported by a function of messages.
          num_steps: number of steps; None for the layer's.
          warm_up: number of steps to run before these, which may be traced. They have no readout
            and no gradient, so that training uses the late states of a longer run for the cost of
            its forward pass.
          readout: a module or function of the features after each step. Outside ``jit``, a new
            function object is compiled again at each call.
          rngs: random streams with one named ``dropout`` in training, which gives each step a
            separate key; None in evaluation.

        Returns:
          The features after the last step; with a ``readout``, a pair of the features and the
          readout's results for all steps, stacked along a new first axis.

        Raises:
          ValueError: if shapes do not fit each other or the layers, ``num_steps`` is not positive,
            or a module draws from its own random stream.
        """
        steps = self.num_steps if num_steps is None else num_steps
        _require_positive(type(self).__name__, "num_steps", steps)
        if rngs is not None:
            require_stream(type(self).__name__, rngs)
        # The scan works on copies made from arrays: the modules and their variables may belong to
        # an outer trace, which a step could not change.
        graphdef, modules = nnx.split((self.messages, self.update, readout))
        arrays = nnx.to_pure_dict(modules), edge_features, inputs, weights
        draws = warm_up is not None and rngs is not None
        warm_up_key = rngs.dropout() if draws else None
        keys = None if rngs is None else jax.random.split(rngs.dropout(), steps)
        state, outputs = run_compiled(
            _run_steps,
            _Steps(graphdef, int(steps), self.recompute_every),
            (graph, arrays, self.update.start(h), warm_up, warm_up_key, keys),
        )
        features: Array = self.update.features(state)
        return features if readout is None else (features, outputs)


class _Steps(NamedTuple):
    """Static description of the steps: the structure of the modules, and the number of steps."""

    graphdef: Any
    number: int
    recompute_every: int | Literal["auto"] | None


def _run_steps(steps: _Steps, arguments: tuple[Any, ...]) -> tuple[Any, Any]:
    """Returns the state after the last step, and the readout's result for each step."""
    graph, arrays, state, warm_up, warm_up_key, keys = arguments

    def run_step(arrays, state, key):
        modules, edge_features, inputs, weights = arrays
        messages, update, readout = copies = nnx.merge(steps.graphdef, modules)
        drawn = _drawn(copies)
        step_rngs = None if key is None else nnx.Rngs(dropout=key)
        arrived = messages(
            graph, update.features(state), edge_features, weights=weights, rngs=step_rngs
        )
        state = update(state, arrived, inputs, rngs=step_rngs)
        output = None if readout is None else readout(update.features(state))
        _require_same(drawn, _drawn(copies))
        return state, output

    if warm_up is not None:
        state = _warmed_up(run_step, arrays, state, warm_up_key, warm_up)

    if steps.number == 1 and steps.recompute_every is None:
        state, output = run_step(arrays, state, None if keys is None else keys[0])
        return state, jax.tree.map(lambda y: y[None], output)

    def step(state, key):
        new, output = run_step(arrays, state, key)
        _require_kept(state, new)
        return new, output

    if steps.recompute_every is None:
        return _scan(step, state, keys, steps.number)
    # XLA merges nothing across the steps of a scan, so no barrier is needed.
    step = nnx.remat(step, prevent_cse=False)
    spans = _spans(steps.number, steps.recompute_every)
    return _scan_segments(step, state, keys, steps.number, spans)


def _drawn(modules: Any) -> list[Array]:
    """Returns how many numbers each random stream of the modules has drawn."""
    return jax.tree.leaves(nnx.to_pure_dict(nnx.state(modules, nnx.RngCount)))


def _require_same(drawn: list[Array], afterwards: list[Array]) -> None:
    """Raises if a step drew from a module's own stream, which would repeat the same numbers."""
    if any(a is not b for a, b in zip(drawn, afterwards, strict=True)):
        expected = "modules that draw random numbers from the rngs of the call"
        raise bad_input("MessagePassing", "modules", expected, "a random stream of their own")


def _require_kept(state: Any, new: Any) -> None:
    """Raises unless a step keeps the shapes of the state, which is the input of the next step."""
    before, after = (jax.tree.map(jnp.shape, kept) for kept in (state, new))
    if before != after:
        expected = f"such that the features keep their shape, {before}, from step to step"
        raise bad_input("MessagePassing", "update", expected, after)


def _warmed_up(run_step: Callable, arrays: Any, state: Any, key: Any, steps: Any) -> Any:
    """Returns the state after ``steps`` more steps, without gradient if there are any."""
    constants, first = lax.stop_gradient((arrays, state))

    def body(i, state):
        key_of_step = None if key is None else jax.random.fold_in(key, i)
        new, _ = run_step(constants, state, key_of_step)
        _require_kept(state, new)
        return new

    later = lax.fori_loop(0, steps, body, first)
    return jax.tree.map(lambda new, old: jnp.where(steps > 0, new, old), later, state)


def _scan(step: Callable, state: Any, keys: Any, steps: int) -> tuple[Any, Any]:
    axes = (nnx.Carry, 0)
    return nnx.scan(step, in_axes=axes, out_axes=axes, length=steps)(state, keys)


def _spans(steps: int, every: int | Literal["auto"]) -> list[int]:
    """Returns the number of steps of a segment, of its sub-segments, and so on."""
    if every != "auto":
        return [every] if 1 < every < steps else []

    def parts(levels: int) -> int:
        return next(b for b in count(1) if b**levels >= steps)

    # The fewest levels within the limit of states; each level recomputes all steps once.
    held = {levels: levels * parts(levels) for levels in range(1, _MOST_STATES + 1)}
    levels = min(held, key=lambda levels: (max(held[levels], _MOST_STATES), levels))
    return [parts(levels) ** k for k in range(levels - 1, 0, -1)]


def _scan_segments(
    step: Callable, state: Any, keys: Any, steps: int, spans: Sequence[int]
) -> tuple[Any, Any]:
    """Runs ``_scan``, but stores one state a segment and recomputes segments in the backward."""
    spans = [span for span in spans if span < steps]
    if not spans:
        return _scan(step, state, keys, steps)
    every, *inner = spans
    segments, rest = divmod(steps, every)
    whole, tail = segments * every, jax.tree.map(lambda k: k[segments * every :], keys)
    keys = jax.tree.map(lambda k: k[:whole].reshape(segments, every, *k.shape[1:]), keys)
    segment = nnx.remat(
        lambda state, keys: _scan_segments(step, state, keys, every, inner), prevent_cse=False
    )
    state, outputs = _scan(segment, state, keys, segments)
    outputs = jax.tree.map(lambda y: y.reshape(whole, *y.shape[2:]), outputs)
    if rest:
        state, last = _scan_segments(step, state, tail, rest, inner)
        outputs = jax.tree.map(lambda y, z: jnp.concatenate([y, z]), outputs, last)
    return state, outputs


def _require_positive(where: str, argument: str, number: Any) -> None:
    if not is_integer(number) or number < 1:
        raise bad_input(where, argument, "an int of at least 1", repr(number))
