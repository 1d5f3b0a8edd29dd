"""The `fit`, `evaluate` and `predict` calls of a model under an elastic strategy: numbered, entered and left together.

A process that starts again runs its script from the top: a call that is over gives what it gave, without being done
again; in the one where the others are it joins them.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist import keras_internals
from tfdist.errors import IncompatibleError, RemovedError, StateLostError
from tfdist.observe.events import emit
from tfdist.observe.points import reach
from tfdist.strategies.agreements import Agreements
from tfdist.strategies.checkpointed import CheckpointedFit
from tfdist.strategies.chief_only import chief_only
from tfdist.strategies.compatibility import check_compiled, check_data, facts_of_fit
from tfdist.strategies.ending import Ending
from tfdist.strategies.entering import CallIsOver, Entering
from tfdist.strategies.feeding import Feeding, as_elastic
from tfdist.strategies.function import ElasticFunction
from tfdist.strategies.group import ElasticGroup, first_line
from tfdist.strategies.hooks import CallHooks
from tfdist.strategies.inputs import REQUESTS, StepInputs
from tfdist.strategies.progress import Rate, plain
from tfdist.strategies.state import ModelState


class KerasCalls:
    """Implements `keras_internals.Calls` for one strategy.

    Attributes:
        state: of the model in use.
        current: the wrapped function that runs now, if any.
        phase: what this worker does, in a word, for people.
    """

    def __init__(self, group: ElasticGroup, inputs: StepInputs, ending: Ending):
        self.group, self.inputs = group, inputs
        self.agreements = Agreements(group, ending)
        self.feeding = Feeding(group)
        self.state: ModelState | None = None
        self.current: ElasticFunction | None = None
        self.phase = "idle"
        self.entering = Entering(self)
        self._ending, self._rate = ending, Rate()
        self.number = 0
        self._kind = ""
        self.validates = False
        self.checkpointed: CheckpointedFit | None = None

    @property
    def busy(self) -> bool:
        """Whether a call of a Keras model is going on."""
        return bool(self._kind)

    @property
    def evaluating(self) -> bool:
        return self._kind == "test"

    @property
    def predicting(self) -> bool:
        return self._kind == "predict"

    # --- the calls ---

    def keras_call(self, name: str, model: Any, original: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        try:
            if name == "fit":
                return self._fit(model, original, _arguments(original, args, kwargs))
            if name == "evaluate" and not kwargs.get("_use_cached_eval_dataset"):
                arguments = _arguments(original, args, kwargs)
                if self.busy:
                    return self._evaluate_inside(original, arguments)
                return self._evaluate(model, original, arguments)
            kind = {"evaluate": "test", "test_on_batch": "test", "train_on_batch": "train"}.get(name, "predict")
            with self.doing(kind, "validation" if name == "evaluate" else name):
                if name != "evaluate":
                    self._use(model)
                return original(*args, **kwargs)
        except SystemExit:
            self._ending.interrupted()
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if isinstance(error, IncompatibleError):
                self.announce(f"refused, {first_line(error)}")  # whoever waits for this process reads it
            self._ending.failed(error)
            raise

    def _fit(self, model: Any, original: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        check_data(arguments, self.group)
        self._begin(model)
        user = keras_internals.callbacks_in(arguments.get("callbacks"))
        self.agreements.elastic = any(getattr(c, "makes_fit_elastic", False) for c in user)
        self.state.callbacks = [c for c in user if not getattr(c, "makes_fit_elastic", False)]
        self._add_hooks(arguments, CallHooks(self, "fit"))
        self.feeding.steps_per_epoch = arguments.get("steps_per_epoch")
        self.checkpointed = self._checkpointed(user)
        self.validates = arguments.get("validation_data") is not None or bool(arguments.get("validation_split"))
        if self.group.session is not None:
            self.group.session.agree(f"fit/{self.number}", facts_of_fit(model, arguments, self.group))

        def body() -> dict[str, Any]:
            try:
                with self.doing("train", "fit"), self.agreements.listening():
                    history = original(**arguments)
            finally:
                model._initial_epoch = None
                self.feeding.forget()
            result = {"epoch": plain(history.epoch), "history": plain(history.history)}
            if self.checkpointed is not None:
                self.checkpointed.end(result)
            return result

        try:
            result, done_here = self._once(body)
        finally:
            self.agreements.elastic = True
            if self.checkpointed is not None:
                self.checkpointed.close()
        if done_here:
            if self.group.session is not None:  # for a process that comes to this call when it is over
                self.group.end_state = (self.number, self.state.outgoing())
            return model.history
        self._take_end_state()
        history = keras.callbacks.History()
        history.set_model(model)
        history.epoch, history.history = result["epoch"], result["history"]
        model.history = history
        return history

    def _checkpointed(self, callbacks: list[Any]) -> CheckpointedFit | None:
        """Of a `fit` that has an `AsyncCheckpoint`."""
        callback = keras_internals.the_one_that_saves(callbacks)
        if callback is None:
            return None
        callback.owner = CheckpointedFit(self, callback.run, callback.options, self.number, callback)
        return callback.owner

    def _take_end_state(self) -> None:
        """Of a `fit` that was over before this process came to it: from a member, else from its checkpoint."""
        try:
            if not self.group.fetch_end_state(self.number):
                emit("debug", f"the end state of call {self.number} is not kept: a later call has gone on from it")
        except StateLostError:
            if self.checkpointed is None or not self.checkpointed.install_end_state():
                raise

    def _evaluate(self, model: Any, original: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        check_data(arguments, self.group)
        self._begin(model)
        self.checkpointed = None
        return_dict = arguments.pop("return_dict", False)
        self._add_hooks(arguments, CallHooks(self, "evaluate"))

        def body() -> dict[str, Any]:
            with self.doing("test", "evaluate"), self.agreements.listening():
                return plain(original(**arguments, return_dict=True))

        logs, _ = self._once(body)
        return logs if return_dict else model._flatten_metrics_in_order(logs)

    def _evaluate_inside(self, original: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """In a callback: a part of the call that goes on, as validation is; all members come to it."""
        check_data(arguments, self.group)
        where = f"evaluate in {callback_on_the_way()}"
        self._add_hooks(arguments, CallHooks(self, where))
        with self.doing("test", where):
            return original(**arguments)

    def _once(self, body: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], bool]:
        """(what the call gave, whether this process took part): done with the others, unless they are done with it."""
        session, key = self.group.session, f"call/{self.number}"
        while True:
            recorded = session.recorded(key) if session is not None else None
            if recorded is None and self.checkpointed is not None:
                recorded = self.checkpointed.result_of_call()
                if recorded is not None and session is not None:
                    session.record(key, recorded)  # for those who join later
            if recorded is not None:
                emit("skipped", f"call {self.number} of the script was over before this process came to it")
                return recorded, False
            try:
                result = body()
                self.group.meeting(f"end of call {self.number}", {})
                break
            except CallIsOver:
                continue
            except RemovedError as error:
                if not self.agreements.elastic:
                    raise
                emit("removed", f"{error.reason}: this process joins again as a new incarnation")
                self.group.join_again()
                session = self.group.session
        if session is not None:
            session.record(key, result)
        self.agreements.leave_if_asked()
        reach("call_end", call=self.number)
        return result, True

    def _begin(self, model: Any) -> None:
        self.number += 1
        self._use(model)
        reach("call_begin", call=self.number)

    def _use(self, model: Any) -> None:
        check_compiled(model)
        if self.state is None or self.state.model is not model:
            self.state = ModelState(model, self.group.progress)
            self.group.state = self.state

    def _add_hooks(self, arguments: dict[str, Any], hooks: CallHooks) -> None:
        given = arguments.get("callbacks")
        if isinstance(given, keras_internals.CallbackList):
            given.append(hooks)
        else:
            user = keras_internals.callbacks_in(given)
            arguments["callbacks"] = [*(chief_only(c, self.group) for c in user), hooks]

    @contextlib.contextmanager
    def doing(self, kind: str, phase: str) -> Iterator[None]:
        before = self._kind, self.phase
        self._kind, self.phase = kind, phase
        self.announce(phase)
        try:
            yield
        finally:
            self._kind, self.phase = before
            self.announce(self.phase)

    def announce(self, phase: str) -> None:
        if self.group.session is not None:
            self.group.session.announce(phase)

    # --- for the wrapped functions ---

    def requests(self) -> list[float]:
        return self.agreements.requests() if self._kind == "train" else [0.0] * len(REQUESTS)

    def committed(self, rows: int) -> None:
        """Notes that a step of `rows` rows is done."""
        self.state.commit()
        session, progress = self.group.session, self.group.progress
        if session is not None:
            session.mark_committed(progress.committed)
            session.publish(
                epoch=progress.epoch,
                step=progress.committed,
                generation=self.group.generation,
                samples_per_second=self._rate.per_second(rows),
            )

    @contextlib.contextmanager
    def running(self, function: ElasticFunction) -> Iterator[None]:
        before, self.current = self.current, function
        try:
            yield
        finally:
            self.current = before

    def make_function(self, kind: str, model: Any) -> Callable[..., Any]:
        """Keras's own function, made anew; the wrapper stays in its place."""
        wrapper = getattr(model, f"{kind}_function")
        getattr(model, f"make_{kind}_function")(force=True)
        inner = getattr(model, f"{kind}_function").function
        setattr(model, f"{kind}_function", wrapper)
        return inner

    # --- for Keras (keras_internals.Calls) ---

    def wrap_function(self, kind: str, model: Any, function: Any) -> Any:
        if kind == "predict" or isinstance(function, ElasticFunction):
            return function
        return ElasticFunction(kind, model, function, self)

    def distribute(self, dataset: tf.data.Dataset) -> Any:
        """The feed of a dataset that Keras hands to `experimental_distribute_dataset`; None outside of Keras calls."""
        return self.feeding.distribute(self._kind, dataset) if self._kind else None

    def array_dataset(self, arrays: Any, batch_size: int, shuffle: Any) -> Any | None:
        if self.predicting:
            return None
        return as_elastic(arrays, batch_size, shuffle, self.group.session, self.number)

    def batches(self, epoch_iterator: Any, executions: Iterator[Any]) -> Iterator[Any]:
        first = 0
        if self._kind == "train":
            first = self.feeding.take_first_batch()
            self.state.install_pending()
        end, iterator = -1, None
        for begin, end, iterator in executions:
            if begin >= first:
                yield begin, end, iterator
        feed, _ = keras_internals.data_of(epoch_iterator)
        if getattr(feed, "sharded", None) is None or epoch_iterator.steps_per_epoch is not None:
            return
        while True:  # Keras knows the length of this worker's data only: the pass is over when nobody has any more
            begin, end = end + 1, end + epoch_iterator.steps_per_execution
            yield begin, end, iterator

    def made(self, epoch_iterator: Any) -> None:
        """The data come through `distribute`."""

    def logs_before(self) -> dict[str, Any]:
        return dict(self.group.progress.epoch_logs or {}) if self._kind == "train" else {}

    @property
    def stopping(self) -> bool:
        return self.agreements.stopping or self.feeding.sharded

    def get_stop(self, model: Any) -> bool:
        return self.agreements.get_stop()

    def set_stop(self, model: Any, value: bool) -> None:
        self.agreements.set_stop(value)


def callback_on_the_way() -> str:
    """The innermost callback of the user's through which the present code was reached, by its class."""
    frame = sys._getframe()
    while (frame := frame.f_back) is not None:
        one = frame.f_locals.get("self")
        if isinstance(one, keras.callbacks.Callback) and not isinstance(one, (keras.callbacks.CallbackList, CallHooks)):
            return type(one).__name__
    return "a callback"


def _arguments(original: Callable[..., Any], args: tuple, kwargs: dict) -> dict[str, Any]:
    return dict(inspect.signature(original).bind(*args, **kwargs).arguments)
