"""Tools for experiments: the training loop, run folders, checkpoints, reports and plots.

Generic over Flax NNX modules and pytrees: nothing here depends on graphs.
"""

from jaxgnn._suggestions import rename_deprecated as _rename_deprecated

from ._checkpoints import load_model as load_model
from ._config import Best as Best
from ._config import LoopConfig as LoopConfig
from ._export import export_csv as export_csv
from ._export import export_tensorboard as export_tensorboard
from ._loop import FitResult as FitResult
from ._loop import fit as fit
from ._many import ManyResult as ManyResult
from ._many import fit_many as fit_many
from ._step import jit_apply as jit_apply
from ._table import Confusion as Confusion
from ._table import Table as Table
from .files import read_rows as read_rows
from .plots import plot_curves as plot_curves
from .progress import phase as phase
from .report import write_report as write_report
from .run import RunFolder as RunFolder

_rename_deprecated(
    __name__,
    accuracy="jaxgnn.metrics.accuracy",
    micro_f1="jaxgnn.metrics.micro_f1",
    roc_auc="jaxgnn.metrics.mean_roc_auc",
)
