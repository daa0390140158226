"""One graph over the devices of a mesh: partitions, sharded graphs, the exchange of rows."""

from jaxgnn._suggestions import suggest_names as _suggest_names
from jaxgnn.distributed._partition import Method as Method
from jaxgnn.distributed._partition import Partition as Partition
from jaxgnn.distributed._partition import partition as partition
from jaxgnn.distributed._processes import check_same as check_same
from jaxgnn.distributed._processes import initialize as initialize
from jaxgnn.distributed._sharded import halo_exchange as halo_exchange
from jaxgnn.distributed._sharded import sharded as sharded
from jaxgnn.distributed._sharded_graph import Exchange as Exchange
from jaxgnn.distributed._sharded_graph import ShardedGraph as ShardedGraph
from jaxgnn.distributed._sharded_graph import shard as shard
from jaxgnn.distributed._sharded_matrix import ShardedMatrix as ShardedMatrix
from jaxgnn.graph import Halo as Halo
from jaxgnn.graph import LocalGraph as LocalGraph
from jaxgnn.graph import mean_over_nodes as mean_over_nodes
from jaxgnn.graph import sum_over_devices as sum_over_devices

_suggest_names(__name__)
