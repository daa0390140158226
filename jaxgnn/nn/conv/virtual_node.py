"""A node that is connected to all others of its graph."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn._errors import bad_input
from jaxgnn.graph import GraphBatch
from jaxgnn.nn.shared.common_options import DocumentedModule
from jaxgnn.nn.shared.graph_ids import check_batch, check_features, of_nodes, rows_where, sums
from jaxgnn.nn.shared.linear import FusedMLP
from jaxgnn.nn.shared.maxk import check_widths
from jaxgnn.nn.shared.options import checked_options


class VirtualNode(DocumentedModule):
    """Adds a node to each graph by which all of its nodes exchange messages at any distance.

    ``x_i ← x_i + v_g`` for the nodes of each graph ``g``, and ``v_g ← v_g + mlp(v_g + Σ_i x_i)``
    with the new ``x``. Use one before each convolution of a network; the state of the virtual nodes
    is passed from one to the next. See https://arxiv.org/abs/1704.01212. This is the form in the
    examples of the Open Graph Benchmark with a residual connection.

    Args:
      hidden_features: width of the perceptron's hidden layer; None for twice ``features``.
      dtype: dtype of the perceptron; None for the promoted dtype of input and parameters.

    Example:
      >>> pair = GraphSample(senders=[0], receivers=[1], num_nodes=2)
      >>> batch = GraphBatch.from_graphs([pair, pair], pad_to=(8, 4))
      >>> layer = nn.VirtualNode(5, rngs=nnx.Rngs(0))
      >>> x, state = layer(jnp.ones((8, 5)), batch)
      >>> x.shape, state.shape
      ((8, 5), (3, 5))
    """

    @checked_options()
    def __init__(
        self,
        features: int,
        *,
        hidden_features: int | None = None,
        implementation: ops.Name | None = None,
        dtype: jnp.dtype | None = None,
        param_dtype: jnp.dtype = jnp.float32,
        rngs: nnx.Rngs,
    ):
        hidden = 2 * features if hidden_features is None else hidden_features
        check_widths("VirtualNode", features, hidden)
        self.features = features
        self.mlp = FusedMLP(
            [features, hidden, features],
            activation="relu",
            implementation=implementation,
            dtype=dtype,
            param_dtype=param_dtype,
            rngs=rngs,
        )

    def __call__(
        self,
        x: Float[Array, "nodes features"],
        batch: GraphBatch,
        state: Float[Array, "graphs features"] | None = None,
    ) -> tuple[Float[Array, "nodes features"], Float[Array, "graphs features"]]:
        """Adds the virtual nodes to the others, and the others to the virtual nodes.

        Args:
          state: features of the virtual nodes, [graphs, features], from the previous layer; None
            for zeros.

        Returns:
          The new features of the nodes, zeros for padding, and of the virtual nodes, zeros for
          padding graphs.

        Raises:
          ValueError: if ``x`` does not have a row for each node slot of the batch, or ``x`` or
            ``state`` has another width.
        """
        check_batch("VirtualNode", x, batch)
        check_features("VirtualNode", x, self.features)
        shape = (batch.num_graphs, self.features)
        if state is None:
            state = jnp.zeros(shape, x.dtype)
        elif state.shape != shape:
            raise bad_input("VirtualNode", "state", f"of shape {shape}", f"shape {state.shape}")
        node_mask = jnp.asarray(batch.node_mask)
        x = rows_where(node_mask, x + of_nodes(state.astype(x.dtype), batch))
        heard = self.mlp(state + sums(x, batch).astype(state.dtype))
        return x, rows_where(jnp.asarray(batch.graph_mask), state + heard.astype(state.dtype))
