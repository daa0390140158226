"""Scores of classifiers and of rankings, computed on the device.

All of them work under ``jit`` and ``vmap``, on one list of scores or on a batch of them, with masks
for padding. They equal scikit-learn and the evaluators of the Open Graph Benchmark, also for ties.
``jaxgnn.metrics.host`` has the scores of node classifiers that experiments compute on the host.
"""

from jaxgnn._suggestions import suggest_names as _suggest_names
from jaxgnn.metrics._binary import average_precision as average_precision
from jaxgnn.metrics._binary import roc_auc as roc_auc
from jaxgnn.metrics._ranking import Ties as Ties
from jaxgnn.metrics._ranking import hits_at_k as hits_at_k
from jaxgnn.metrics._ranking import mrr as mrr

_suggest_names(__name__)
