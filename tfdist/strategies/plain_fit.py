"""`fit` without a tfdist strategy, in one process: where it is, how it is entered in the middle, who saves it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfdist import keras_internals
from tfdist.checkpoint import resuming
from tfdist.checkpoint.saving import Saving
from tfdist.observe.events import emit
from tfdist.observe.points import reach
from tfdist.strategies.feeding import as_elastic
from tfdist.strategies.progress import Progress, plain
from tfdist.strategies.state import ModelState

if TYPE_CHECKING:
    from tfdist.checkpoint.options import CheckpointOptions
    from tfdist.checkpoint.run import Run


class Alone:
    """Implements `saver.Team` for a process without others."""

    parts, part, generation = 1, 0, 0

    def __init__(self, run_id: str):
        self.run_id = run_id

    def may_commit(self, step: int) -> str:
        return ""

    def broken(self) -> str:
        return ""


class PlainFit:
    """Implements `keras_internals.Calls` and `saving.Host` for the `fit` calls that have an `AsyncCheckpoint`."""

    def __init__(self, run: Run, options: CheckpointOptions):
        self._run, self._options = run, options
        self._state: ModelState | None = None
        self.saving: Saving | None = None
        self._model: Any = None
        self._number = self._epochs = 0
        self._evaluating = self._skips = False
        self._resumes_at: tuple[int, int] | None = None  # (pass, batches of it) of the data
        self._iterator: Any = None
        self._epoch_iterator: Any = None
        self._indexed: Any = None  # the elastic_dataset that is trained on, if it is one
        self._known_batches: int | None = None

    @property
    def state(self) -> ModelState:
        return self._state

    @property
    def _progress(self) -> Progress:
        return self.state.progress

    # --- the call ---

    def keras_call(self, name: str, model: Any, original: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        if name != "fit" or self._model is not None:
            before, self._evaluating = self._evaluating, True
            try:
                return original(*args, **kwargs)
            finally:
                self._evaluating = before
        arguments = dict(inspect.signature(original).bind(*args, **kwargs).arguments)
        self._run.claim(None)
        self._run.fits += 1
        self._number, self._model = self._run.fits, model
        x = arguments.get("x")
        self._indexed = x if hasattr(x, "cardinality_steps") else None
        progress = Progress(call=self._number, committed=self._run.committed, clock=self._run.committed, fresh=False)
        self._state = ModelState(model, progress)
        self._state.callbacks = [
            c for c in keras_internals.callbacks_in(arguments.get("callbacks")) if not hasattr(c, "guest_calls")
        ]
        self._epochs = int(arguments.get("epochs", 1))
        found = self._run.look(self._options)
        self._skips = found is not None and int(found.facts["progress"]["call"]) > self._number
        if self._skips:
            arguments |= {"epochs": 0, "verbose": 0}  # Keras builds what is to be built, and nothing is trained
            if isinstance(arguments.get("x"), tf.data.Dataset):
                make_passes(arguments["x"], int(self._run.results.get(str(self._number), {}).get("passes", 0)))
        try:
            with keras_internals.guest(self):
                return original(**arguments)
        finally:
            model._initial_epoch = None
            if self.saving is not None:
                self.saving.close()
            self._model = self.saving = self._iterator = self._epoch_iterator = self._resumes_at = None

    def after_all(self, hook: str, *args: Any) -> None:
        """Told by `keras_hooks`, when all callbacks have had their turn."""
        if self._model is None:
            return
        if hook == "on_train_begin":
            self._begin()
        elif hook == "on_train_end":
            self._end()
        elif hook == "on_epoch_end":
            self._progress.epoch, self._progress.step = int(args[0]) + 1, 0
            self.saving.after_epoch(args[1] if len(args) > 1 else None)
        elif hook == "on_train_batch_end":
            self._note_step(int(args[0]), args[1] if len(args) > 1 else None)
            self.saving.after_step()

    def _begin(self) -> None:
        state, found = self.state, self._run.found
        state.history = self._model.history
        if self._skips:
            self._install_end_state()
            return
        if found is not None and int(found.facts["progress"]["call"]) == self._number:
            state.forget_layout()
            self._create_variables()
            resuming.check(state, found)
            resuming.install(state, found, self._run.take_arrays())
            self._run.found = None  # the calls after this one begin as they are
            self._model._initial_epoch = self._progress.epoch
            self._resumes_at = (self._progress.data_pass, self._progress.data_step)
        self.saving = Saving(self._run, self._options, self, self._number)

    def made(self, epoch_iterator: Any) -> None:
        """The first one that a `fit` makes is that of its training data."""
        if self._epoch_iterator is None and not self._evaluating and self._model is not None:
            self._epoch_iterator = epoch_iterator

    def _create_variables(self) -> None:
        """All that a checkpoint may hold, before anything is put into it."""
        model = self._model
        dataset, _ = keras_internals.data_of(self._epoch_iterator)
        if isinstance(dataset, tf.distribute.DistributedDataset):
            self.state.build_optimizer()  # Keras has built the rest for its strategy
            return
        batch = tf.nest.map_structure(_two_rows, dataset.element_spec, expand_composites=False)
        with model.distribute_strategy.scope():
            keras_internals.create_variables(model, batch)
        self.state.build_optimizer()

    def _install_end_state(self) -> None:
        """What the call in the middle of which the script was begins with, as far as the script can see it."""
        emit("skipped", f"fit call {self._number} of the script was over before this process came to it")
        found = self._run.end_of(self._number)
        if found is None:
            emit("debug", f"the end state of call {self._number} is not kept; the call in progress has its own")
            return
        resuming.install_end(self.state, found, self._run.read(found))

    def _end(self) -> None:
        history = self._model.history
        if self._skips:
            result = self._run.results.get(str(self._number), {"epoch": [], "history": {}})
            self._run.committed = int(result.get("committed", self._run.committed))
            history.epoch, history.history = list(result["epoch"]), {k: list(v) for k, v in result["history"].items()}
            return
        self._run.committed = self._progress.committed
        self.saving.end(
            {
                "epoch": plain(history.epoch),
                "history": plain(history.history),
                "passes": self.position_after_epoch()["data_pass"],
                "committed": self._run.committed,
            }
        )

    # --- where it is (keras_internals.Calls) ---

    def batches(self, epoch_iterator: Any, executions: Iterator[Any]) -> Iterator[Any]:
        if self._evaluating or self._model is None:
            for execution in executions:
                reach("validation_step", phase="validation")
                yield execution
            return
        self._known_batches = epoch_iterator.num_batches
        first = 0
        if self._resumes_at is not None:
            first = self._progress.step - self._progress.step % epoch_iterator.steps_per_execution
            self._make_passes(*self._resumes_at[:1])
            self.state.install_pending()
        for begin, end, iterator in executions:
            if iterator is not self._iterator:
                self._enter_pass(iterator, first)
            if begin >= first:
                reach("step_begin", step=self._progress.committed, epoch=self._progress.epoch, phase="fit")
                yield begin, end, iterator

    def _make_passes(self, passes: int) -> None:
        """A data set that is shuffled anew in each pass is at its pass after as many iterators as there were."""
        dataset, _ = keras_internals.data_of(self._epoch_iterator)
        make_passes(dataset if self._indexed is None else self._indexed, passes)

    def _enter_pass(self, iterator: Any, first: int) -> None:
        progress = self._progress
        if self._resumes_at is not None:
            progress.data_pass, progress.data_step = self._resumes_at
            self._resumes_at = None
            for _ in range(progress.data_step):
                next(iterator)
            keras_internals.add_steps_seen(self._epoch_iterator, progress.data_step - first)
        else:
            progress.data_pass += self._iterator is not None
            if self._indexed is not None:
                progress.data_pass = self._indexed.epochs.next_epoch
            progress.data_step = 0
        self._iterator = iterator

    def _note_step(self, end: int, logs: Any) -> None:
        progress = self._progress
        done = end + 1
        if self._known_batches:
            done = min(done, self._known_batches)
        steps = max(0, done - progress.step)
        progress.step = done
        progress.data_step += steps
        progress.committed += steps
        progress.clock = progress.committed
        progress.epoch_logs = logs
        self.state.commit()

    def logs_before(self) -> dict[str, Any]:
        return dict(self._progress.epoch_logs or {}) if self._model is not None and not self._evaluating else {}

    # --- saving.Host ---

    def team(self) -> Alone:
        return Alone(self._run.run_id)

    def agreed(self, due: bool, busy: bool, at: str) -> tuple[bool, bool]:
        return due and not busy, due and busy

    def epoch_is_over(self) -> bool:
        return bool(self._known_batches) and self._progress.step >= self._known_batches

    def call_is_over(self) -> bool:
        return self._progress.epoch >= self._epochs or bool(self._model.stop_training)

    def position_after_epoch(self) -> dict[str, int]:
        progress = self._progress
        at = {"epoch": progress.epoch, "step": 0, "data_pass": progress.data_pass, "data_step": progress.data_step}
        return at | ({"data_pass": at["data_pass"] + 1, "data_step": 0} if self._pass_is_over() else {})

    def _pass_is_over(self) -> bool:
        """An epoch is a pass, unless `steps_per_epoch` says otherwise."""
        if self._epoch_iterator is None:
            return False
        _, batches = keras_internals.data_of(self._epoch_iterator)
        whole = self._epoch_iterator.steps_per_epoch is None
        return whole or (batches is not None and self._progress.data_step >= batches)

    # --- what else Keras asks (keras_internals.Calls) ---

    def wrap_function(self, kind: str, model: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def array_dataset(self, arrays: Any, batch_size: int, shuffle: Any) -> Any | None:
        """Arrays become an `elastic_dataset`, whose order is known in every epoch; others' of this `fit` do not."""
        if self._evaluating or self._model is None:
            return None
        dataset = as_elastic(arrays, batch_size, shuffle, None, self._number)
        if self._indexed is None and self._epoch_iterator is None:
            self._indexed = dataset
        return dataset

    @property
    def stopping(self) -> bool:
        return False

    def get_stop(self, model: Any) -> bool:
        return bool(model.__dict__.get("_tfdist_stop_training", False))

    def set_stop(self, model: Any, value: bool) -> None:
        """Keras keeps it."""


def _two_rows(spec: Any) -> Any:
    """A stand-in for a batch of which only shapes and types are looked at."""
    if not isinstance(spec, tf.TensorSpec):
        return None
    return tf.zeros([2, *(n or 1 for n in spec.shape[1:])], spec.dtype) if spec.dtype != tf.string else None


def make_passes(dataset: Any, passes: int) -> None:
    """Brings a data set to where it is after so many passes, without reading it."""
    if hasattr(dataset, "cardinality_steps"):
        dataset.epochs.start_at(passes)
        return
    for _ in range(passes):
        iter(dataset)
