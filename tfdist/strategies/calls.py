"""The `fit`, `evaluate` and `predict` calls of a model under an elastic strategy: numbered, entered together, left together."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist import keras_internals
from tfdist.errors import (
    MemberLostError,
    RemovedError,
    UnsupportedError,
)
from tfdist.observe.events import emit
from tfdist.observe.points import reach
from tfdist.strategies.chief_only import chief_only
from tfdist.strategies.ending import Ending
from tfdist.strategies.compatibility import facts_of_fit
from tfdist.strategies.feeds import DistributedFeed, FeedIterator, GlobalFeed, IndexedFeed, LocalBatches
from tfdist.strategies.function import ElasticFunction
from tfdist.strategies.group import ElasticGroup
from tfdist.strategies.hooks import CallHooks
from tfdist.strategies.inputs import REQUESTS, StepInputs
from tfdist.strategies.progress import Rate, plain
from tfdist.strategies.state import ModelState


class CallIsOver(Exception):  # noqa: N818 (control flow)
    """While this process was on its way, the others have ended the call."""


class KerasCalls:
    """Implements `keras_internals.Calls` for one strategy."""

    def __init__(self, group: ElasticGroup, inputs: StepInputs, ending: Ending):
        self.group, self.inputs = group, inputs
        self.state: ModelState | None = None
        self.phase = "idle"
        self.elastic = False
        self.number = 0
        self.current: ElasticFunction | None = None
        self._feed: DistributedFeed | None = None
        self._first_step = 0
        self._kind = ""
        self._wants_stop = self._after_batch = False
        self.ending = ending
        self._rate = Rate()
        group.wants_stop = lambda: self._wants_stop
        self._exit_requested: int | None = None

    @property
    def predicting(self) -> bool:
        return self._kind.startswith("predict")

    # --- calls ---

    def keras_call(self, name: str, model: Any, original: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        if name == "fit":
            return self._guarded(lambda: self._fit(model, original, args, kwargs))
        if name == "evaluate" and not kwargs.get("_use_cached_eval_dataset"):
            return self._guarded(lambda: self._evaluate(model, original, args, kwargs))
        if name == "evaluate":
            with self._as_kind("test"), self._in_phase("validation"):
                return original(*args, **kwargs)
        with self._as_kind(name), self._in_phase(name):
            self._use(model)
            return original(*args, **kwargs)

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """An error of the user's own stops the job everywhere, with this worker's traceback."""
        try:
            return call()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            self.ending.failed(error)
            raise

    def _fit(self, model: Any, original: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        bound = inspect.signature(original).bind(*args, **kwargs)
        arguments = dict(bound.arguments)
        if getattr(model, "jit_compile", False) is True:
            raise UnsupportedError(
                "jit_compile=True: XLA on CPU has no collectives, and the reduction is inside the compiled step. "
                "Remove it from compile(), or set jit_compile='auto'"
            )
        self._begin_call()
        self._use(model)
        given = arguments.get("callbacks")
        user = list(given.callbacks) if isinstance(given, keras_internals.CallbackList) else _as_list(given)
        self.elastic = any(getattr(c, "makes_fit_elastic", False) for c in user)
        hooks = CallHooks(self, "fit")
        if isinstance(given, keras_internals.CallbackList):
            given.append(hooks)
        else:
            arguments["callbacks"] = [*(chief_only(c, self.group) for c in user), hooks]
        self.state.callbacks = [c for c in user if not getattr(c, "makes_fit_elastic", False)]
        facts = facts_of_fit(model, arguments, self.group)
        if self.group.session is not None:
            self.group.session.agree(f"fit/{self.number}", facts)
        key = f"call/{self.number}"
        while True:
            recorded = self._recorded(key)
            if recorded is not None:
                return self._skip_fit(model, recorded)
            try:
                with self._as_kind("train"), self._in_phase("fit"), self._signals():
                    history = original(**arguments)
                break
            except CallIsOver:
                continue
            except RemovedError as error:
                self._rejoin(error)
            finally:
                model._initial_epoch = None
                self._first_step, self._feed = 0, None
        self._end_call(key, {"epoch": history.epoch, "history": plain(history.history)})
        return history

    def _skip_fit(self, model: Any, recorded: dict[str, Any]) -> Any:
        import keras

        history = keras.callbacks.History()
        history.set_model(model)
        history.epoch, history.history = recorded["epoch"], recorded["history"]
        model.history = history
        emit("skipped", f"call {self.number} (fit) was over before this process came: its History is installed")
        return history

    def _evaluate(self, model: Any, original: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        self._begin_call()
        self._use(model)
        arguments = dict(inspect.signature(original).bind(*args, **kwargs).arguments)
        return_dict = arguments.pop("return_dict", False)
        hooks = CallHooks(self, "evaluate")
        given = arguments.get("callbacks")
        if isinstance(given, keras_internals.CallbackList):
            given.append(hooks)
        else:
            arguments["callbacks"] = [*_as_list(given), hooks]
        key = f"call/{self.number}"
        while True:
            recorded = self._recorded(key)
            if recorded is None:
                try:
                    with self._as_kind("test"), self._in_phase("evaluate"):
                        logs = original(**arguments, return_dict=True)
                    self._end_call(key, {"logs": plain(logs)})
                except CallIsOver:
                    continue
                except RemovedError as error:
                    self._rejoin(error)
                    continue
            else:
                logs = recorded["logs"]
                emit("skipped", f"call {self.number} (evaluate) was over before this process came")
            return logs if return_dict else model._flatten_metrics_in_order(logs)

    def _begin_call(self) -> None:
        self.number += 1
        reach("call_begin", call=self.number)

    def _recorded(self, key: str) -> dict[str, Any] | None:
        return self.group.session.recorded(key) if self.group.session is not None else None

    def _end_call(self, key: str, result: dict[str, Any]) -> None:
        """All leave a call together; what it gave is kept for a process that comes later."""
        self.group.meeting(f"end of call {self.number}", {})
        if self.group.session is not None:
            self.group.session.record(key, result)
        self.phase = "idle"
        reach("call_end", call=self.number)

    def _use(self, model: Any) -> None:
        if self.state is None or self.state.model is not model:
            self.state = ModelState(model, self.group.progress)
            self.group.state = self.state
        self.state.history = None

    @contextlib.contextmanager
    def _as_kind(self, kind: str) -> Iterator[None]:
        before, self._kind = self._kind, kind
        try:
            yield
        finally:
            self._kind = before

    @contextlib.contextmanager
    def _in_phase(self, phase: str) -> Iterator[None]:
        before, self.phase = self.phase, phase
        self._announce(phase)
        try:
            yield
        finally:
            self.phase = before
            self._announce(before)

    def _announce(self, phase: str) -> None:
        if self.group.session is not None:
            self.group.session.announce(phase)

    # --- entering a call ---

    def enter_fit(self) -> None:
        """When all user callbacks have begun: compiles, then joins or meets the others, and learns where they are."""
        group, feed = self.group, self._feed
        self.state.forget_layout()
        self.state.history = getattr(self.state.model, "history", None)
        if group.progress.fresh and group.session is not None:
            self._announce("compiling")
            group.form_alone()
            self.model_function("train").warm_up(iter(feed))
            self.join()
        group.progress.fresh = False
        if group.progress.call == self.number:  # the others are inside this call
            self.state.model._initial_epoch = group.progress.epoch
            self._first_step = group.progress.step
            feed.start_at(group.progress.data_pass, group.progress.data_step)
        else:
            group.progress.epoch = group.progress.step = 0
            self._meet_for_call()

    def enter_evaluate(self) -> None:
        """An `evaluate` of its own: founders meet in it, later ones wait for its end."""
        self.state.forget_layout()
        if self.group.progress.fresh and self.group.session is not None:
            self.join()
        self.group.progress.fresh = False
        self._meet_for_call()

    def _meet_for_call(self) -> None:
        self.group.meeting(f"call {self.number}", {})
        self.group.progress.call = self.number

    def end_epoch(self, epoch: int) -> None:
        """`stop_training` is agreed: if one wants to stop, all do."""
        self._after_batch = False
        stops = self.group.meeting(f"epoch {epoch}", {"stop": self._wants_stop})
        if any(answer["stop"] for answer in stops.values()):
            self._wants_stop = self.group.stop_agreed = True

    def after_batch(self, now: bool) -> None:
        """Whether Keras looks at `stop_training` next, between two batches."""
        self._after_batch = now

    def join(self) -> None:
        """Asks for admission, and waits for it; then this member holds the run's state."""
        session = self.group.session
        self._announce("waiting to join")
        session.ready()
        try:
            self.group.settle("joining", give_up=self._call_over)
        except CallIsOver:
            session.withdraw()
            raise
        self._announce(self.phase)
        if self.group.progress.call > self.number:
            raise CallIsOver  # admitted while the others went on to a later call

    def _call_over(self) -> BaseException | None:
        return CallIsOver() if self._recorded(f"call/{self.number}") is not None else None

    def ensure_member(self, model: Any) -> None:
        """For calls outside of `fit` and `evaluate`: the founders meet at the first of them."""
        if self.group.progress.fresh:
            self._use(model)
            self.state.forget_layout()
            if self.group.session is None:
                self.group.progress.fresh = False
            else:
                self.join()

    def _rejoin(self, error: RemovedError) -> None:
        emit("removed", f"this process was removed ({error}); it joins again as a new incarnation")
        if not self.elastic and self._kind == "train":
            raise error
        self.group.join_again()

    def model_function(self, kind: str) -> ElasticFunction:
        return getattr(self.state.model, f"{kind}_function")

    # --- between steps ---

    def requests(self) -> list[bool]:
        session = self.group.session
        if session is None or not self.elastic or self._kind != "train":
            return [False] * len(REQUESTS)
        return [self._exit_requested is not None, bool(session.requests().join_waiting), False, False]

    def boundary(self, iterator: FeedIterator) -> None:
        """Before a training step: acts on what the step before has brought to all members' knowledge."""
        wanted = [bool(v) for v in self._last_control()]
        if not any(wanted):
            return
        self._forget_control()
        leaving = self._exit_requested is not None
        if leaving:
            self.group.session.request_leave("asked to stop")
        self.group.settle("leave" if wanted[0] else "join", leaving=leaving)
        if leaving:
            emit("left", f"this worker leaves at step {self.group.progress.committed}, as asked; the others go on")
            self.ending.left()
            sys.exit(self._exit_requested)

    def _last_control(self) -> list[float]:
        """Requests that the last committed step brought, summed over the members."""
        return self.model_function("train").last_control

    def _forget_control(self) -> None:
        function = self.model_function("train")
        if isinstance(function, ElasticFunction):
            function.last_control = []

    def recover(self, error: BaseException) -> None:
        """After a step that failed because of another member."""
        session = self.group.session
        if not self.elastic and self._kind == "train":
            raise MemberLostError(self.group.generation, session.lost if session else {}, _first_line(error)) from error
        self._forget_control()
        self.group.settle(_first_line(error))

    def committed(self, rows: int) -> None:
        self.state.commit()
        session = self.group.session
        if session is not None:
            progress = self.group.progress
            session.mark_committed(progress.committed)
            session.publish(
                epoch=progress.epoch,
                step=progress.committed,
                generation=self.group.generation,
                samples_per_second=self._rate.per_second(rows),
            )

    # --- the Keras side (keras_internals.Calls) ---

    def wrap_function(self, kind: str, model: Any, function: Any) -> Any:
        if kind == "predict" or isinstance(function, ElasticFunction):
            return function
        return ElasticFunction(kind, model, function, self)

    def make_function(self, kind: str, model: Any) -> Callable[..., Any]:
        """Keras's own function, made anew; the wrapper stays in its place."""
        wrapper = getattr(model, f"{kind}_function")
        getattr(model, f"make_{kind}_function")(force=True)
        inner = getattr(model, f"{kind}_function").function
        setattr(model, f"{kind}_function", wrapper)
        return inner

    def distribute(self, dataset: tf.data.Dataset) -> Any:
        """The feed for a dataset that Keras hands to `experimental_distribute_dataset`; None outside of Keras calls."""
        if not self._kind:
            return None
        if self.predicting:
            return LocalBatches(dataset, self.group.devices)
        if hasattr(dataset, "cardinality_steps"):
            epochs = dataset.epochs
            return self._remember(DistributedFeed(IndexedFeed(dataset), epochs.next_epoch, epochs.handed_out))
        return self._remember(DistributedFeed(GlobalFeed(dataset)))

    def _remember(self, feed: DistributedFeed) -> DistributedFeed:
        if self._kind == "train" and self._feed is None:
            self._feed = feed
        return feed

    def array_dataset(self, arrays: Any, batch_size: int, shuffle: Any) -> Any | None:
        from tfdist.data import elastic_dataset
        from tfdist.strategies.arrays import as_arrays, run_seed

        source = as_arrays(arrays)
        if source is None or self.predicting:
            return None
        return elastic_dataset(source, batch_size, shuffle=bool(shuffle), seed=run_seed(self.group.session, self.number))

    def first_step(self, epoch_iterator: Any) -> int:
        first, self._first_step = self._first_step, 0
        return first

    def get_stop(self, model: Any) -> bool:
        """What Keras reads after each batch and epoch; a wish of this worker alone is made everybody's first."""
        if self._wants_stop and self._after_batch and not self.group.stop_agreed:
            self.group.stop_all()
        if self.group.stop_agreed:
            self._wants_stop = True
        return self._wants_stop

    def set_stop(self, model: Any, value: bool) -> None:
        self._wants_stop = value
        if not value:
            self.group.stop_agreed = False

    @property
    def stopping(self) -> bool:
        return self.group.stop_agreed

    @contextlib.contextmanager
    def running(self, function: ElasticFunction) -> Iterator[None]:
        before, self.current = self.current, function
        try:
            yield
        finally:
            self.current = before

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if self.elastic and self.group.session is not None:
            from tfdist.strategies.leaving import leave_on_sigterm

            with leave_on_sigterm(self.ask_to_leave):
                yield
        else:
            yield

    def ask_to_leave(self, exit_code: int) -> None:
        self._exit_requested = exit_code


def _as_list(callbacks: Any) -> list[Any]:
    if callbacks is None:
        return []
    return list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0][:200]
