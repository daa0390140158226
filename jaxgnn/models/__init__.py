"""Complete networks: node classifiers, simulators, potentials, language models, Sudoku solvers."""

from jaxgnn._suggestions import suggest_names as _suggest_names
from jaxgnn.models._atomic_sample import atomic_sample as atomic_sample
from jaxgnn.models._causal_lm import CausalLM as CausalLM
from jaxgnn.models._encode_process_decode import EncodeProcessDecode as EncodeProcessDecode
from jaxgnn.models._expert_lm import ExpertGraphLM as ExpertGraphLM
from jaxgnn.models._expert_lm import expert_output_orthogonality as expert_output_orthogonality
from jaxgnn.models._expert_lm import expert_weight_orthogonality as expert_weight_orthogonality
from jaxgnn.models._gcnii import GCNII as GCNII
from jaxgnn.models._graph_transformer import GraphTransformer as GraphTransformer
from jaxgnn.models._hypergraph_gnn import HypergraphGNN as HypergraphGNN
from jaxgnn.models._hypergraph_gnn import HypergraphKind as HypergraphKind
from jaxgnn.models._maxk_gnn import MaxKGNN as MaxKGNN
from jaxgnn.models._nequip import NequIP as NequIP
from jaxgnn.models._painn import PaiNN as PaiNN
from jaxgnn.models._potential import Potential as Potential
from jaxgnn.models._potential import energy_forces_stress as energy_forces_stress
from jaxgnn.models._rollout import random_walk_noise as random_walk_noise
from jaxgnn.models._rollout import rollout as rollout
from jaxgnn.models._schnet import SchNet as SchNet
from jaxgnn.models._sudoku_gnn import SudokuGNN as SudokuGNN
from jaxgnn.models._sudoku_relational import CandidateNetwork as CandidateNetwork
from jaxgnn.models._sudoku_relational import (
    EquivariantRelationalNetwork as EquivariantRelationalNetwork,
)
from jaxgnn.models._sudoku_relational import (
    RecurrentRelationalNetwork as RecurrentRelationalNetwork,
)
from jaxgnn.models.atomic_geometry import AtomicEdges as AtomicEdges
from jaxgnn.models.atomic_geometry import atomic_edges as atomic_edges
from jaxgnn.models.sudoku_boards import sudoku_constraint_graph as sudoku_constraint_graph
from jaxgnn.models.sudoku_boards import sudoku_constraint_loss as sudoku_constraint_loss
from jaxgnn.models.sudoku_boards import sudoku_cross_entropy as sudoku_cross_entropy
from jaxgnn.models.sudoku_boards import sudoku_digits as sudoku_digits
from jaxgnn.models.sudoku_boards import sudoku_focal_loss as sudoku_focal_loss
from jaxgnn.models.sudoku_boards import sudoku_graph as sudoku_graph
from jaxgnn.models.sudoku_boards import sudoku_positions as sudoku_positions
from jaxgnn.models.sudoku_boards import sudoku_relations as sudoku_relations

_suggest_names(__name__)
