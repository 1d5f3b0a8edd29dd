"""The `fit`, `evaluate` and `predict` calls of a model under an elastic strategy: numbered, entered and left together.

A process that starts again runs its script from the top: a call that is over gives what it gave, without being done
again; in
the one where the others are it joins them.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist import keras_internals
from tfdist.errors import RemovedError, UnsupportedError
from tfdist.observe.events import emit
from tfdist.observe.points import reach
from tfdist.strategies.agreements import Agreements
from tfdist.strategies.chief_only import chief_only
from tfdist.strategies.compatibility import facts_of_fit
from tfdist.strategies.ending import Ending
from tfdist.strategies.feeding import Feeding, as_elastic
from tfdist.strategies.function import ElasticFunction
from tfdist.strategies.group import ElasticGroup
from tfdist.strategies.hooks import CallHooks
from tfdist.strategies.inputs import REQUESTS, StepInputs
from tfdist.strategies.progress import Rate, plain
from tfdist.strategies.state import ModelState


class CallIsOver(Exception):
    """While this process was on its way, the others have ended the call."""


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
        self._ending, self._rate = ending, Rate()
        self._number = 0
        self._kind = ""
        self._validates = False

    @property
    def busy(self) -> bool:
        """Whether a call of a Keras model is going on."""
        return bool(self._kind)

    @property
    def predicting(self) -> bool:
        return self._kind == "predict"

    # --- the calls ---

    def keras_call(self, name: str, model: Any, original: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        try:
            if name == "fit":
                return self._fit(model, original, _arguments(original, args, kwargs))
            if name == "evaluate" and not kwargs.get("_use_cached_eval_dataset"):
                return self._evaluate(model, original, _arguments(original, args, kwargs))
            kind = {"evaluate": "test", "test_on_batch": "test", "train_on_batch": "train"}.get(name, "predict")
            with self._doing(kind, "validation" if name == "evaluate" else name):
                if name != "evaluate":
                    self._use(model)
                return original(*args, **kwargs)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            self._ending.failed(error)
            raise

    def _fit(self, model: Any, original: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        self._begin(model)
        user = _callbacks_of(arguments)
        self.agreements.elastic = any(getattr(c, "makes_fit_elastic", False) for c in user)
        self.state.callbacks = [c for c in user if not getattr(c, "makes_fit_elastic", False)]
        self._add_hooks(arguments, CallHooks(self, "fit"))
        self._validates = arguments.get("validation_data") is not None or bool(arguments.get("validation_split"))
        if self.group.session is not None:
            self.group.session.agree(f"fit/{self._number}", facts_of_fit(model, arguments, self.group))

        def body() -> dict[str, Any]:
            try:
                with self._doing("train", "fit"), self.agreements.listening():
                    history = original(**arguments)
            finally:
                model._initial_epoch = None
                self.feeding.forget()
            return {"epoch": plain(history.epoch), "history": plain(history.history)}

        try:
            result, done_here = self._once(body)
        finally:
            self.agreements.elastic = True
        if done_here:
            if self.group.session is not None:  # for a process that comes to this call when it is over
                self.group.end_state = (self._number, self.state.outgoing())
            return model.history
        self.group.fetch_end_state(self._number)
        history = keras.callbacks.History()
        history.set_model(model)
        history.epoch, history.history = result["epoch"], result["history"]
        model.history = history
        return history

    def _evaluate(self, model: Any, original: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        self._begin(model)
        return_dict = arguments.pop("return_dict", False)
        self._add_hooks(arguments, CallHooks(self, "evaluate"))

        def body() -> dict[str, Any]:
            with self._doing("test", "evaluate"), self.agreements.listening():
                return plain(original(**arguments, return_dict=True))

        logs, _ = self._once(body)
        return logs if return_dict else model._flatten_metrics_in_order(logs)

    def _once(self, body: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], bool]:
        """(what the call gave, whether this process took part): done with the others, unless they are done with it."""
        session, key = self.group.session, f"call/{self._number}"
        while True:
            recorded = session.recorded(key) if session is not None else None
            if recorded is not None:
                emit("skipped", f"call {self._number} of the script was over before this process came to it")
                return recorded, False
            try:
                result = body()
                self.group.meeting(f"end of call {self._number}", {})
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
        reach("call_end", call=self._number)
        return result, True

    def _begin(self, model: Any) -> None:
        self._number += 1
        self._use(model)
        reach("call_begin", call=self._number)

    def _use(self, model: Any) -> None:
        if getattr(model, "jit_compile", False) is True:
            raise UnsupportedError(
                "jit_compile=True: the reduction is inside the compiled step, and XLA on CPU has no collectives. "
                "Remove it from compile(), or set jit_compile='auto'"
            )
        if self.state is None or self.state.model is not model:
            self.state = ModelState(model, self.group.progress)
            self.group.state = self.state

    def _add_hooks(self, arguments: dict[str, Any], hooks: CallHooks) -> None:
        given = arguments.get("callbacks")
        if isinstance(given, keras_internals.CallbackList):
            given.append(hooks)
        else:
            arguments["callbacks"] = [*(chief_only(c, self.group) for c in _callbacks_of(arguments)), hooks]

    @contextlib.contextmanager
    def _doing(self, kind: str, phase: str) -> Iterator[None]:
        before = self._kind, self.phase
        self._kind, self.phase = kind, phase
        self._announce(phase)
        try:
            yield
        finally:
            self._kind, self.phase = before
            self._announce(self.phase)

    def _announce(self, phase: str) -> None:
        if self.group.session is not None:
            self.group.session.announce(phase)

    # --- entering a call (from CallHooks, when all user callbacks have begun) ---

    def enter_fit(self) -> None:
        """Compiles; then joins or meets the others, and learns where they are."""
        group, progress = self.group, self.group.progress
        self.state.forget_layout()
        self.state.history = getattr(self.state.model, "history", None)
        if progress.fresh and group.session is not None:
            self._announce("compiling")
            group.form_alone()
            self._compile(self.state.model)
            self._join()
        progress.fresh = False
        if progress.call == self._number:  # the others are inside this call
            self.state.model._initial_epoch = progress.epoch
            self.feeding.start_where_others_are(self.state.model.steps_per_execution)
        else:
            progress.epoch = progress.step = 0
            self._meet_for_call()

    def _compile(self, model: Any) -> None:
        """Train and test step, on rows of the training data, so that nobody waits for this process's tracing."""
        model.train_function.warm_up(self.feeding.peek())
        if self._validates:
            with self._doing("test", "compiling"):
                model.make_test_function()
                model.test_function.warm_up(self.feeding.peek())

    def enter_evaluate(self) -> None:
        """Founders meet in it; who comes later waits for its end (`_join` raises then)."""
        self.state.forget_layout()
        if self.group.progress.fresh and self.group.session is not None:
            self._join()
        self.group.progress.fresh = False
        self._meet_for_call()

    def enter_validation(self) -> None:
        """Before Keras resets the metrics: nobody does so while another member still needs the totals."""
        self.group.meeting("validation", {})

    def enter_by_hand(self) -> None:
        """`train_on_batch` and the like: the founders meet at the first of them."""
        if self.group.progress.fresh:
            self.state.forget_layout()
            if self.group.session is not None:
                self._join()
            self.group.progress.fresh = False

    def _meet_for_call(self) -> None:
        self.group.meeting(f"call {self._number}", {})
        self.group.progress.call = self._number

    def _join(self) -> None:
        """Asks for admission and waits for it; afterwards this member holds the run's state."""
        session = self.group.session
        self._announce("waiting to join")
        session.ready()
        try:
            self.group.settle("joining", admit=True, give_up=self._call_is_over)
        except CallIsOver:
            session.withdraw()
            raise
        self._announce(self.phase)
        if self.group.progress.call > self._number:
            raise CallIsOver  # admitted while the others went on to a later call

    def _call_is_over(self) -> BaseException | None:
        return CallIsOver() if self.group.session.recorded(f"call/{self._number}") is not None else None

    # --- for the wrapped functions ---

    def requests(self) -> list[bool]:
        return self.agreements.requests() if self._kind == "train" else [False] * len(REQUESTS)

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
        return as_elastic(arrays, batch_size, shuffle, self.group.session, self._number)

    def first_step(self, epoch_iterator: Any) -> int:
        return self.feeding.take_first_batch() if self._kind == "train" else 0

    @property
    def stopping(self) -> bool:
        return self.agreements.stopping

    def get_stop(self, model: Any) -> bool:
        return self.agreements.get_stop()

    def set_stop(self, model: Any, value: bool) -> None:
        self.agreements.set_stop(value)


def _arguments(original: Callable[..., Any], args: tuple, kwargs: dict) -> dict[str, Any]:
    return dict(inspect.signature(original).bind(*args, **kwargs).arguments)


def _callbacks_of(arguments: dict[str, Any]) -> list[Any]:
    given = arguments.get("callbacks")
    if isinstance(given, keras_internals.CallbackList):
        return list(given.callbacks)
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple)) else [given]
