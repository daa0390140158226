"""Scores of classifiers and of rankings, equal to scikit-learn and the Open Graph Benchmark.

``roc_auc``, ``average_precision``, ``mrr`` and ``hits_at_k`` are computed on the device. They work
under ``jit`` and ``vmap``, on one list of scores or on a batch of them, with masks for padding.
``accuracy``, ``micro_f1`` and ``mean_roc_auc`` of node classifiers are computed on the host.
"""

from jaxgnn._suggestions import suggest_names as _suggest_names
from jaxgnn.metrics._binary import average_precision as average_precision
from jaxgnn.metrics._binary import roc_auc as roc_auc
from jaxgnn.metrics._classes import accuracy as accuracy
from jaxgnn.metrics._classes import mean_roc_auc as mean_roc_auc
from jaxgnn.metrics._classes import micro_f1 as micro_f1
from jaxgnn.metrics._ranking import Ties as Ties
from jaxgnn.metrics._ranking import hits_at_k as hits_at_k
from jaxgnn.metrics._ranking import mrr as mrr

_suggest_names(__name__)
