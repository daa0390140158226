"""Options of a training loop, and the choice of its best model by a metric."""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Literal

Mode = Literal["max", "min"]

# Words in names of metrics of which the largest value is the best, and the smallest.
_WORDS: dict[Mode, set[str]] = {
    "max": {
        *("accuracy", "acc", "f1", "auc", "auroc", "auprc", "roc", "precision", "recall", "ap"),
        *("map", "mrr", "hit", "hits", "ndcg", "r2", "mcc", "iou", "dice", "kappa", "bleu"),
    },
    "min": {
        *("loss", "losses", "logloss", "nll", "crossentropy", "kl", "brier", "perplexity", "ppl"),
        *("error", "errors", "err", "mse", "rmse", "mae", "mape", "msle", "rmsd"),
    },
}
# Words that may turn the meaning of the others around, as in ``neg_mean_squared_error``.
_INVERTING = {"neg", "negative", "minus", "inverse", "one", "not", "no", "without", "reduction"}


def mode_of_name(name: str) -> tuple[Mode, str] | None:
    """Whether the largest or the smallest value of a metric is the best, by the words of its name.

    Returns:
      The mode and the word that decides it; None if the name has no such word, words of both modes,
      or one such as ``neg``.
    """
    words = re.findall("[a-z]+[0-9]*", name.lower())
    deciding = [(mode, word) for word in words for mode in _WORDS if word in _WORDS[mode]]
    if len({mode for mode, _ in deciding}) != 1 or _INVERTING & set(words):
        return None
    return deciding[0]


@dataclasses.dataclass(frozen=True)
class LoopConfig:
    """Length of training and intervals of its actions. Steps count from 1.

    Attributes:
      steps: Number of updates of the whole run, including those before a resume.
      eval_every: Steps between evaluations; 0 evaluates only after the last step.
      checkpoint_every: Steps between checkpoints; 0 saves only after the last step.
      log_every: Steps between reads of the device. Every step still has its row in the log. A
        small value stalls the device, a large one delays progress and errors.
      keep_checkpoints: Number of newest checkpoints to keep.
      seed: Seed of the random numbers passed to ``loss_fn``.
      select: The evaluation metric that selects the best model; None keeps no best model.
      select_mode: Whether the best is the largest or the smallest value, ``"max"`` or ``"min"``.
        None decides by the name: ``"validation accuracy"`` is ``"max"``, ``"mse"`` is ``"min"``. A
        name without such a word needs it. The first of equal values wins. NaN and infinite values
        are never selected.
      patience: Number of evaluations in a row without a better value of ``select`` after which the
        run ends early, with a checkpoint. A resumed run counts on. None never ends early.
      ema_decay: Decay of a moving average of the parameters; None for no average. ``evaluate``, the
        best model and ``FitResult.averaged_model`` then use the average instead of the parameters.
        It takes the memory of two copies of them, which keeps it accurate with a decay near 1.
      max_seconds: Seconds of a call of ``fit`` after which it stops early, with a checkpoint, at
        the next read of the device. The same call then resumes. None never stops.
      longest_wait_s: With several processes: longest time in seconds that one may spend at one
        place of the training, such as a compilation, an evaluation or a checkpoint. It then ends
        with an error that names the place and, if known, the process that it has waited for. Where
        a process only submits steps to its devices, the others wait for it for 40 seconds. With one
        process and several devices: longest time of the launch of a step with its compilation.
      examples_per_step: For the progress report, which then shows examples per second.
      examples: Name of the examples in the progress report.

    Raises:
      ValueError: A value is out of range; ``select_mode`` is None, and the name of the metric does
        not show whether its largest or its smallest value is the best; or ``patience`` has no
        ``select``.
    """

    steps: int
    eval_every: int = 0
    checkpoint_every: int = 0
    log_every: int = 10
    keep_checkpoints: int = 2
    seed: int = 0
    select: str | None = None
    select_mode: Mode | None = None
    ema_decay: float | None = None
    max_seconds: float | None = None
    longest_wait_s: float = 3600.0
    examples_per_step: int | None = None
    examples: str = "examples"
    patience: int | None = None

    def __post_init__(self):
        checks = (
            ("steps", self.steps >= 1, "at least 1"),
            ("eval_every", self.eval_every >= 0, "at least 0"),
            ("checkpoint_every", self.checkpoint_every >= 0, "at least 0"),
            ("log_every", self.log_every >= 1, "at least 1"),
            ("keep_checkpoints", self.keep_checkpoints >= 1, "at least 1"),
            ("longest_wait_s", self.longest_wait_s > 0, "above 0"),
            ("select", self.select is None or isinstance(self.select, str), "a name, or None"),
            ("select_mode", self.select_mode in ("max", "min", None), "'max', 'min' or None"),
            ("patience", self.patience is None or _is_count(self.patience), "None or at least 1"),
            ("ema_decay", self.ema_decay is None or 0.0 < self.ema_decay < 1.0, "in (0, 1)"),
        )
        for name, fits, expected in checks:
            if not fits:
                got = getattr(self, name)
                raise ValueError(f"LoopConfig.{name}: expected {expected}, got {got!r}")
        if self.patience is not None and self.select is None:
            raise ValueError(
                "LoopConfig.patience: expected select to name the metric to wait for, got None"
            )
        tells = self.select is None or mode_of_name(self.select) is not None
        if self.select_mode is None and not tells:
            raise ValueError(
                f"LoopConfig.select_mode: expected 'max' or 'min', as the name {self.select!r} "
                "does not show which value is the best, got None"
            )

    @property
    def mode(self) -> Mode:
        """Whether the largest or the smallest value of ``select`` is the best."""
        by_name = mode_of_name(self.select or "")
        return self.select_mode or (by_name[0] if by_name else "max")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


@dataclasses.dataclass(frozen=True)
class Best:
    """The best evaluation of a run: its step, and all metrics of that evaluation."""

    step: int
    metrics: dict[str, float]


def is_better(
    where: str, config: LoopConfig, metrics: Mapping[str, float], best: Best | None, source: str
) -> bool:
    """Whether an evaluation is better than the best so far by ``config.select``.

    Raises:
      ValueError: The metric is missing; the message names the source of the others.
    """
    name = config.select
    if name is None:
        return False
    if name not in metrics:
        raise ValueError(f"{where}: config.select is {name!r}, {source} {list(metrics)}")
    sign = 1 if config.mode == "max" else -1
    better = best is None or sign * metrics[name] > sign * best.metrics[name]
    return better and math.isfinite(metrics[name])


def describe_selection(config: LoopConfig, best: Best | None, evaluations: int) -> str | None:
    """One line about the selected model: the metric, its value and step, and why it was selected.

    None if ``config.select`` is None.
    """
    if config.select is None:
        return None
    extreme = "largest" if config.mode == "max" else "smallest"
    counted = "1 evaluation" if evaluations == 1 else f"{evaluations} evaluations"
    if best is None:
        return f"no model: {config.select!r} was finite in none of {counted}"
    value = best.metrics[config.select]
    return (
        f"step {best.step}, whose {config.select!r} of {value:.6g} is the {extreme} of {counted} "
        f"({_reason(config)})"
    )


def _reason(config: LoopConfig) -> str:
    """Reason of the mode of a configuration, as text."""
    by_name = mode_of_name(config.select or "")
    if config.select_mode is not None or by_name is None:
        return f"select_mode is {config.mode!r}"
    return f"{by_name[1]!r} in its name means {by_name[0]!r}"
