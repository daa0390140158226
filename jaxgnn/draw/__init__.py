"""Pictures of graphs and of embeddings, by matplotlib, networkx and scikit-learn.

These come with ``pip install 'jaxgnn[draw]'``, and are imported by the first call.
"""

from jaxgnn._suggestions import suggest_names as _suggest_names
from jaxgnn.draw.embedding import Projection as Projection
from jaxgnn.draw.embedding import draw_embedding as draw_embedding
from jaxgnn.draw.graph import Layout as Layout
from jaxgnn.draw.graph import draw_graph as draw_graph

_suggest_names(__name__)
