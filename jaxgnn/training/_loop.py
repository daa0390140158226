"""The training loop: deterministic, resumable, with few reads of the device."""

import dataclasses
import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import Any, cast

import jax
import optax
from flax import nnx

from ._arguments import Loader, batch_function, check_run, check_training
from ._checkpoints import Checkpoints
from ._config import Best, LoopConfig, describe_selection, is_better
from ._device_errors import LaunchWatch, launching, wait_for_devices
from ._step import (
    DataParallel,
    LossFn,
    ModelState,
    PyTree,
    TrainState,
    all_finite,
    copy_arrays,
    make_step,
    merge_model,
    on_one_device,
    owned,
    split_model,
    start_state,
)
from .files import Row, RowLog
from .processes import Watch, as_first, writes_files
from .progress import Progress, say
from .run import RunFolder


@dataclasses.dataclass(frozen=True)
class FitResult[M: nnx.Module]:
    """The result of ``fit``.

    Models are in the mode of the model that ``fit`` was given, usually training mode: call
    ``model.eval()`` before predictions.

    Attributes:
      model: The model after the last step.
      averaged_model: The model with the average of its parameters; None without
        ``LoopConfig.ema_decay``.
      best_model: The model at the best evaluation; None without ``LoopConfig.select``, or if the
        metric was never finite.
      best: The best evaluation; None if ``best_model`` is None.
      selection: One line about the selected model: its step, the metric and its value, and why it
        was selected; None without ``LoopConfig.select``.
      history: One row a step: ``step``, ``loss``, the metrics of ``loss_fn``, and at evaluations
        those of ``evaluate``. Equal to the run's ``metrics.jsonl``.
      compile_seconds: Time of the first step and of each first step with a new static value,
        in this call of ``fit``.
      ms_per_step: Mean milliseconds of the other steps, including batches, but not evaluations and
        checkpoints. If this call did none, those of the run's earlier calls; None if there were
        none.
      finished: Whether the run is complete: all steps are done, or ``LoopConfig.patience`` ended
        it. False after a stop by ``LoopConfig.max_seconds``.
      stopped_early: Whether ``LoopConfig.patience`` ended the run before its last step.
    """

    model: M
    averaged_model: M | None
    best_model: M | None
    best: Best | None
    history: list[Row]
    compile_seconds: float
    ms_per_step: float | None
    finished: bool
    stopped_early: bool = False
    selection: str | None = None


def fit[M: nnx.Module](
    model: M,
    optimizer: optax.GradientTransformation,
    loss_fn: LossFn,
    batches: Callable[[int], PyTree] | list[PyTree] | Loader,
    *,
    config: LoopConfig,
    evaluate: Callable[..., Mapping[str, float]] | None = None,
    static: Callable[[int], Hashable] | None = None,
    run: RunFolder | None = None,
    resume: bool = True,
    progress: bool = True,
    on_row: Callable[[Row], None] | None = None,
    mesh: jax.sharding.Mesh | None = None,
) -> FitResult[M]:
    """Trains a model.

    A run is a function of its arguments: random numbers depend on ``config.seed`` and the step,
    batches on the step. So a process killed at any moment and started again in the same folder
    continues from its last checkpoint. It ends with the same parameters, bit for bit, and the same
    ``metrics.jsonl`` as an uninterrupted run, if the device's arithmetic is deterministic.

    Args:
      model: The model, in the mode to train in, in which the result's models are too. It is not
        changed. All its ``nnx.Param`` are trained; its other state (batch statistics, random
        streams) is updated too.
      optimizer: Any optax transformation of the parameters, as nested dicts; of an
        ``nnx.Optimizer`` its ``tx``.
      loss_fn: ``loss_fn(model, batch, rngs) -> (loss, metrics)``: a scalar, and a dict of scalars
        for the log. ``rngs`` is an ``nnx.Rngs`` of this step, for
        ``nnx.Dropout.__call__(..., rngs=rngs)``. It is traced: pass arrays it needs in the batch,
        because captured arrays are compiled in as constants.
      batches: Returns the batch of a step, a pytree of arrays. NumPy arrays are copied, so that
        they may be refilled for the next step. If the batch is always the same, return the same
        arrays on the device, which are not copied. New shapes are compiled again. A list of batches
        is repeated in its order. A loader of ``jaxgnn.sampling``, or another object with
        ``steps(start)``, makes batches ahead. A generator is refused, because a resumed run can not
        repeat it.
      config: Lengths and intervals.
      evaluate: ``evaluate(model) -> {name: value}``; the model is in evaluation mode
        (``model.eval()``), and its arrays are deleted after the next step. Use ``jit_apply`` to
        compile the functions it calls.
      static: Returns a hashable value for a step, such as a scheduled ``k``. ``loss_fn`` and
        ``evaluate`` then get it as a further argument; ``loss_fn`` is compiled once for each value,
        and may set static attributes of its model from it, for that call only.
      run: The folder for checkpoints and logs; None writes nothing.
      resume: Whether to resume the run in ``run``. If False, a folder with a run is an error.
      progress: Whether to report on stderr.
      on_row: Called with a copy of each row of the log, in the order of the steps, after it is
        written: ``step``, ``loss``, the metrics of ``loss_fn``, and where the model was evaluated
        those of ``evaluate``. Rows arrive when the device is read, up to ``config.log_every`` at
        once. A resumed run begins with the step after its checkpoint, so that rows between the
        checkpoint and a kill are repeated. An exception in it ends the training.
      mesh: Devices that share each batch, a mesh of one axis. Every array of the batch has the
        examples along its leading axis, and each device gets an equal number of them; scalars go
        to all. ``loss_fn`` runs on each device with its part. The loss, the metrics and changed
        state are means over the devices; they equal those of the whole batch if they are means
        over the examples. Each part draws its own random numbers. A run may be resumed with
        another mesh. ``evaluate`` and the result have the model on one device.

    Returns:
      The trained model, the best model, and the history. All models are in the mode of ``model``,
      usually training mode, also the best one: call ``result.best_model.eval()`` before
      predictions.

    Raises:
      ValueError: An argument is not of its kind; the run's checkpoint is damaged, or does not fit
        the model, the optimizer or ``config.steps``; there is a run to resume but ``resume`` is
        False; ``config.select`` is not among the metrics; names clash; ``loss_fn`` changes the
        shape of the model's state; or the mesh has several axes, or the examples of a batch cannot
        be divided over it.
      FloatingPointError: A loss, or a parameter about to be saved or kept as the best model's, is
        NaN or infinite. The message names the step and the last checkpoint.
      OSError: A file of the run can not be written, for example because the disk is full. The
        message names the last checkpoint, from which the same call resumes.
      RuntimeError: One of several devices fails, for example out of memory. The message names it,
        or the free memory of each if it is unknown. Others may wait for it, so the interpreter then
        exits without waiting for them. If they wait in the launch of a step, no error can be
        raised. After half a minute a line on stderr reports this, with the free memory. The process
        then exits with status 1 after a minute, or ten times the longest time between two reads of
        the device, or ``config.longest_wait_s`` if the step may still be compiled.
    """
    optional = {"evaluate": evaluate, "static": static, "on_row": on_row}
    functions = {"loss_fn": loss_fn} | {n: f for n, f in optional.items() if f is not None}
    check_training("fit", model, optimizer, config, functions)
    check_run("fit", run)
    batch_of_step = batch_function(batches)
    if config.select is not None and evaluate is None:
        raise ValueError(f"fit: config.select is {config.select!r}, but there is no evaluate")
    speaks = writes_files()
    progress = progress and speaks
    parallel = None if mesh is None else DataParallel(mesh)
    graphdef, arrays = split_model(model)
    if parallel is not None:
        arrays = parallel.replicate(arrays)
    with ExitStack() as stack:
        checkpoints = None
        if run is not None:
            opened = Checkpoints(run.checkpoints_path, config.keep_checkpoints)
            checkpoints = stack.enter_context(opened)
        places = None if run is None else run.processes_path
        watch = stack.enter_context(Watch(places, config.longest_wait_s))
        session = _Session(
            config=config,
            graphdef=graphdef,
            state=start_state(arrays, optimizer, averaged=config.ema_decay is not None),
            update=make_step(
                graphdef, optimizer, loss_fn, config.seed, config.ema_decay or 0.0, parallel
            ),
            parallel=parallel,
            watch=watch,
            launches=stack.enter_context(LaunchWatch(arrays, config.longest_wait_s)),
            evaluate=evaluate,
            static=static,
            checkpoints=checkpoints,
            run=run,
            on_row=on_row,
            log=RowLog(None if run is None else run.metrics_path, writes=speaks),
            timing=RowLog(None if run is None else run.timing_path, writes=speaks),
        )
        done = session.restore(resume)
        if batch_of_step is None:  # a loader, which stops making batches at the end
            batch_of_step = stack.enter_context(closing(cast(Loader, batches).steps(done + 1)))
        if done:
            what = "complete at" if session.is_complete else "resuming from"
            say(f"{what} step {done}", progress=progress)
        examples = config.examples_per_step, config.examples
        bar = stack.enter_context(Progress(done, config.steps, *examples, enabled=progress))
        for step in range(done + 1, config.steps + 1):
            if session.stopped:
                break
            session.advance(step, batch_of_step, bar)
        session.summarize()
    if session.out_of_patience:
        say(f"ended early, {session.selection}", progress=progress)
    return session.result()


@dataclasses.dataclass
class _Session:
    """One call of ``fit``: its arguments, and the state that changes from step to step."""

    config: LoopConfig
    graphdef: nnx.GraphDef
    state: TrainState
    update: Callable[..., tuple[TrainState, dict[str, jax.Array]]]
    parallel: DataParallel | None
    watch: Watch
    launches: LaunchWatch
    evaluate: Callable[..., Mapping[str, float]] | None
    static: Callable[[int], Hashable] | None
    checkpoints: Checkpoints | None
    run: RunFolder | None
    on_row: Callable[[Row], None] | None
    log: RowLog
    timing: RowLog
    best: Best | None = None
    best_arrays: ModelState | None = None
    # Steps whose values are still on the device, and the start time of the first of them.
    pending: list[tuple[int, dict[str, jax.Array]]] = dataclasses.field(default_factory=list)
    started: float = 0.0
    compiled: set[tuple[Hashable, ...]] = dataclasses.field(default_factory=set)
    compile_seconds: float = 0.0
    timed_seconds: float = 0.0
    timed_steps: int = 0
    opened: float = dataclasses.field(default_factory=time.monotonic)
    out_of_time: bool = False
    out_of_patience: bool = False
    evaluated: bool = False
    # Evaluations so far, and those since the best one.
    evaluations: int = 0
    waited: int = 0

    def restore(self, resume: bool) -> int:
        """Restores the last checkpoint, if there is one; returns the number of steps done."""
        if self.checkpoints is None:
            return 0
        done = self.checkpoints.latest_step or 0
        if not resume and (done or self.log.rows):
            raise ValueError(
                f"fit: {self.checkpoints.folder.parent} already holds a run; resume it, or use "
                "another folder"
            )
        if done > self.config.steps:
            raise ValueError(
                f"fit: the checkpoint in {self.checkpoints.folder} is of step {done}, beyond "
                f"config.steps = {self.config.steps}"
            )
        if done:
            self.state, self.best_arrays, info = self.checkpoints.restore(self.state)
            self.best = None if info["best"] is None else Best(**info["best"])
        self.log.truncate(done)
        # Keeps all rows, but not an incomplete one, which would make later rows unreadable.
        self.timing.truncate(self.config.steps)
        if len(self.log.rows) != done:
            raise ValueError(
                f"fit: {self.log.path} has {len(self.log.rows)} rows up to step {done} of the "
                f"checkpoint, expected {done}"
            )
        evaluated = [row["step"] for row in self.log.rows if self.config.select in row]
        best_step = 0 if self.best is None else self.best.step
        self.evaluations, self.waited = len(evaluated), sum(s > best_step for s in evaluated)
        self.out_of_patience = self.ends_early(done)
        return done

    def advance(self, step: int, batch_of: Callable[[int], PyTree], bar: Progress) -> None:
        """Does one step, and the actions that are due after it."""
        static = () if self.static is None else (self.static(step),)
        compiling = static not in self.compiled
        if compiling:
            if self.pending:
                self.write(self.collect())
            bar.begin("compiling")
        if not self.pending:
            self.started = time.perf_counter()
        self.watch.at(f"the batch of step {step}")
        batch = owned(batch_of(step))
        if self.parallel is not None:
            batch = self.parallel.divide(batch)
        name = f"step {step}"
        self.watch.at(name, takes_long=compiling)
        with launching(self.state, name), self.launches.launch(name):
            self.state, values = self.update(self.state, batch, static)
        self.pending.append((step, values))
        self.compiled.add(static)

        evaluating = self.evaluate is not None and self.is_due(step, self.config.eval_every)
        saving = self.checkpoints is not None and self.is_due(step, self.config.checkpoint_every)
        reading = self.is_due(step, self.config.log_every)
        if not (compiling or evaluating or saving or reading):
            return
        rows = self.collect(compiling=compiling)
        # An evaluation may take long or fail, so earlier rows are written first.
        self.write(rows[:-1])
        if evaluating:
            if not self.evaluated:
                bar.begin("compiling the evaluation")
            self.add_evaluation(rows[-1], static)
        self.write(rows[-1:])
        self.watch.at(f"what follows step {step}")
        limit = self.config.max_seconds
        if limit is not None:
            self.out_of_time = as_first(time.monotonic() - self.opened >= limit)
        if saving or (self.stopped and self.checkpoints is not None):
            self.save(step)
        bar.update(step, rows[-1], self.ms_per_step)

    def write(self, rows: list[Row]) -> None:
        """Adds rows to the log, and passes them to ``on_row``."""
        with self.writing():
            self.log.append(rows)
        if self.on_row is not None:
            for row in rows:
                self.on_row(dict(row))

    def is_due(self, step: int, every: int) -> bool:
        """Whether an action of every ``every`` steps, and of the end, is due after ``step``."""
        return step == self.config.steps or (every > 0 and step % every == 0)

    def collect(self, *, compiling: bool = False) -> list[Row]:
        """Waits for the pending steps and returns their rows; measures the time."""
        steps = [step for step, _ in self.pending]
        waiting = f"the losses up to step {steps[-1]}"
        self.watch.at(waiting, takes_long=compiling)
        wait_for_devices(self.pending[-1][1], waiting)
        values = jax.device_get([values for _, values in self.pending])
        seconds = time.perf_counter() - self.started
        self.launches.steps_took(seconds)
        self.pending.clear()
        self.watch.at(f"the log of step {steps[-1]}")
        if compiling:
            self.compile_seconds += seconds
            timing = {"compile_seconds": seconds}
        else:
            self.timed_seconds += seconds
            self.timed_steps += len(steps)
            timing = {"steps": len(steps), "ms_per_step": 1e3 * seconds / len(steps)}
        with self.writing():
            self.timing.append([{"step": steps[-1], **timing}])
        # The names in a row are in alphabetical order, as jit returns them; the loss comes first.
        rows = [
            {"step": step, "loss": float(row.pop("loss")), **{n: float(v) for n, v in row.items()}}
            for step, row in zip(steps, values, strict=True)
        ]
        for index, row in enumerate(rows):
            if not math.isfinite(row["loss"]):
                self.write(rows[:index])
                raise FloatingPointError(
                    f"fit: the loss is {row['loss']} at step {row['step']}; {self.last_checkpoint}"
                )
        return rows

    def add_evaluation(self, row: Row, static: tuple[Hashable, ...]) -> None:
        """Evaluates the model into ``row``, and keeps it if it is the best so far."""
        assert self.evaluate is not None
        self.evaluated = True
        self.watch.at(f"the evaluation after step {row['step']}", takes_long=True)
        model = self.merged(self.state.averaged_model)
        model.eval()
        metrics = {name: float(value) for name, value in self.evaluate(model, *static).items()}
        clash = row.keys() & metrics.keys()
        if clash:
            raise ValueError(f"fit: evaluate and loss_fn both return {sorted(clash)}")
        row |= metrics
        self.evaluations, self.waited = self.evaluations + 1, self.waited + 1
        if is_better("fit", self.config, metrics, self.best, "evaluate returned"):
            self.waited = 0
            step, arrays = int(row["step"]), self.state.averaged_model
            # A metric may be finite where the model is not: the largest of NaNs is the first.
            self.check_parameters(step, arrays.params)
            self.best, self.best_arrays = Best(step, metrics), copy_arrays(arrays)
        if self.config.patience is not None:
            self.out_of_patience = as_first(self.ends_early(int(row["step"])))

    def ends_early(self, step: int) -> bool:
        """Whether ``config.patience`` ends the run after ``step``, before its last one."""
        patience = self.config.patience
        return patience is not None and self.waited >= patience and step < self.config.steps

    def save(self, step: int) -> None:
        """Writes a checkpoint, unless the parameters are broken."""
        assert self.checkpoints is not None
        self.watch.at(f"the checkpoint of step {step}", takes_long=True)
        # The loss of a step is computed before its update, and does not check the result.
        self.check_parameters(step, self.state.model.params)
        best = None if self.best is None else dataclasses.asdict(self.best)
        with self.writing():
            self.checkpoints.save(step, self.state, self.best_arrays, {"best": best})
        self.summarize()

    def summarize(self) -> None:
        """Writes the summary of the run."""
        if self.run is None:
            return
        best = None
        if self.best is not None:
            # JSON has no NaN, which unselected metrics may be.
            metrics = {n: v if math.isfinite(v) else None for n, v in self.best.metrics.items()}
            best = {"step": self.best.step, "metrics": metrics}
        names = {"select": self.config.select, "select_mode": self.config.mode}
        with self.writing():
            self.run.write_summary({**names, "best": best, "selection": self.selection})

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Adds the last checkpoint, from which a run resumes, to errors of writing its files."""
        try:
            yield
        except OSError as error:
            failed = OSError(f"fit: {error}; {self.last_checkpoint}")
            failed.errno = error.errno
            raise failed from None

    def check_parameters(self, step: int, params: PyTree) -> None:
        """Raises if a parameter is not finite."""
        if not all_finite(params):
            raise FloatingPointError(
                f"fit: a parameter is NaN or infinite after step {step}; {self.last_checkpoint}"
            )

    def merged(self, arrays: ModelState) -> Any:
        """The model with the given arrays; on one device, if several share the batches."""
        if self.parallel is not None:
            arrays = on_one_device(arrays)
        return merge_model(self.graphdef, arrays)

    @property
    def last_checkpoint(self) -> str:
        """Description of the last checkpoint, for errors."""
        if self.checkpoints is None or self.checkpoints.latest_step is None:
            return "there is no checkpoint"
        return f"last checkpoint: {self.checkpoints.folder / str(self.checkpoints.latest_step)}"

    @property
    def ms_per_step(self) -> float | None:
        """Mean milliseconds of the steps that did not compile, of this call or of earlier ones."""
        if self.timed_steps:
            return 1e3 * self.timed_seconds / self.timed_steps
        # Earlier versions did not write the number of steps of a row.
        rows = [row for row in self.timing.rows if "ms_per_step" in row]
        total = sum(row.get("steps", 1) for row in rows)
        return sum(row["ms_per_step"] * row.get("steps", 1) for row in rows) / (total or 1) or None

    @property
    def stopped(self) -> bool:
        """Whether no further step is done: the time is over, or no better evaluation came."""
        return self.out_of_time or self.out_of_patience

    @property
    def is_complete(self) -> bool:
        """Whether the run has its last step."""
        return len(self.log.rows) == self.config.steps or self.out_of_patience

    @property
    def selection(self) -> str | None:
        """One line about the selected model."""
        return describe_selection(self.config, self.best, self.evaluations)

    def result(self) -> FitResult[Any]:
        """The result after the last step."""
        best, state = self.best_arrays, self.state
        averaged = None if state.average is None else state.averaged_model
        return FitResult(
            model=self.merged(state.model),
            averaged_model=None if averaged is None else self.merged(averaged),
            best_model=None if best is None else self.merged(best),
            best=self.best,
            history=self.log.rows,
            compile_seconds=self.compile_seconds,
            ms_per_step=self.ms_per_step,
            finished=self.is_complete,
            stopped_early=self.out_of_patience,
            selection=self.selection,
        )
