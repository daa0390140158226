"""Deprecated names of scores that ``jaxgnn.metrics`` computes on the host."""

from jaxgnn._suggestions import rename_deprecated as _rename_deprecated

_rename_deprecated(
    __name__,
    accuracy="jaxgnn.metrics.accuracy",
    micro_f1="jaxgnn.metrics.micro_f1",
    roc_auc="jaxgnn.metrics.mean_roc_auc",
)
