"""What type checkers hold the hooks of a plugin to; at run time there is nothing of it.

A method that implements a hook takes any of the hook's arguments, by their names, and returns what the hook returns; a
wrapper is a generator. Where a method is marked with ``typing.override`` beside ``hookimpl``, a name that is no hook's is
an error as well.
"""
# pyright: reportRedeclaration=false

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from torch import Tensor

from lightloop.evaluation import Evaluation
from lightloop.inputs.optimizers import Setup
from lightloop.loop import Loop

T = TypeVar("T")
R = TypeVar("R", covariant=True)
Around: TypeAlias = Generator[None, Any, Any]

MYPY = False  # which is True for mypy, and for no other
if not MYPY:  # one form for each choice of arguments, with self
    class _Nothing(Protocol[R]):
        def __call__(self, plugin: Any, /) -> R | Around: ...

    class _Loop(Protocol[R]):
        def __call__(self, plugin: Any, /, *, loop: Loop) -> R | Around: ...

    class _Batch(Protocol[R]):
        def __call__(self, plugin: Any, /, *, batch: Any) -> R | Around: ...

    class _LoopBatch(Protocol[R]):
        def __call__(self, plugin: Any, /, *, loop: Loop, batch: Any) -> R | Around: ...

    class _Epoch(Protocol[R]):
        def __call__(self, plugin: Any, /, *, epoch: int) -> R | Around: ...

    class _LoopEpoch(Protocol[R]):
        def __call__(self, plugin: Any, /, *, loop: Loop, epoch: int) -> R | Around: ...

    class _NormType(Protocol[R]):
        def __call__(self, plugin: Any, /, *, norm_type: float) -> R | Around: ...

    class _LoopNormType(Protocol[R]):
        def __call__(self, plugin: Any, /, *, loop: Loop, norm_type: float) -> R | Around: ...

    class _Error(Protocol[R]):
        def __call__(self, plugin: Any, /, *, error: BaseException) -> R | Around: ...

    class _LoopError(Protocol[R]):
        def __call__(self, plugin: Any, /, *, loop: Loop, error: BaseException) -> R | Around: ...

    class _Evaluation(Protocol[R]):
        def __call__(self, plugin: Any, /, *, evaluation: Evaluation) -> R | Around: ...

    class _LoopEvaluation(Protocol[R]):
        def __call__(self, plugin: Any, /, *, loop: Loop, evaluation: Evaluation) -> R | Around: ...

    class _Loader(Protocol[R]):
        def __call__(self, plugin: Any, /, *, loader: Iterable[Any]) -> R | Around: ...

    class _Stage(Protocol[R]):
        def __call__(self, plugin: Any, /, *, stage: str) -> R | Around: ...

    class _LoopLoader(Protocol[R]):
        def __call__(self, plugin: Any, /, *, loop: Loop, loader: Iterable[Any]) -> R | Around: ...

    class _LoopStage(Protocol[R]):
        def __call__(self, plugin: Any, /, *, loop: Loop, stage: str) -> R | Around: ...

    class _LoaderStage(Protocol[R]):
        def __call__(self, plugin: Any, /, *, loader: Iterable[Any], stage: str) -> R | Around: ...

    class _LoopLoaderStage(Protocol[R]):
        def __call__(self, plugin: Any, /, *, loop: Loop, loader: Iterable[Any], stage: str) -> R | Around: ...

    class _Metrics(Protocol[R]):
        def __call__(self, plugin: Any, /, *, metrics: Mapping[str, float]) -> R | Around: ...

    class _Step(Protocol[R]):
        def __call__(self, plugin: Any, /, *, step: int) -> R | Around: ...

    class _LoopMetrics(Protocol[R]):
        def __call__(self, plugin: Any, /, *, loop: Loop, metrics: Mapping[str, float]) -> R | Around: ...

    class _LoopStep(Protocol[R]):
        def __call__(self, plugin: Any, /, *, loop: Loop, step: int) -> R | Around: ...

    class _MetricsStep(Protocol[R]):
        def __call__(self, plugin: Any, /, *, metrics: Mapping[str, float], step: int) -> R | Around: ...

    class _LoopMetricsStep(Protocol[R]):
        def __call__(self, plugin: Any, /, *, loop: Loop, metrics: Mapping[str, float], step: int) -> R | Around: ...

    TakesLoop: TypeAlias = _Nothing[T] | _Loop[T]
    TakesBatch: TypeAlias = _Nothing[T] | _Loop[T] | _Batch[T] | _LoopBatch[T]
    TakesEpoch: TypeAlias = _Nothing[T] | _Loop[T] | _Epoch[T] | _LoopEpoch[T]
    TakesNormType: TypeAlias = _Nothing[T] | _Loop[T] | _NormType[T] | _LoopNormType[T]
    TakesError: TypeAlias = _Nothing[T] | _Loop[T] | _Error[T] | _LoopError[T]
    TakesEvaluation: TypeAlias = _Nothing[T] | _Loop[T] | _Evaluation[T] | _LoopEvaluation[T]
    TakesLoader: TypeAlias = (
        _Nothing[T]
        | _Loop[T]
        | _Loader[T]
        | _Stage[T]
        | _LoopLoader[T]
        | _LoopStage[T]
        | _LoaderStage[T]
        | _LoopLoaderStage[T]
    )
    TakesMetrics: TypeAlias = (
        _Nothing[T]
        | _Loop[T]
        | _Metrics[T]
        | _Step[T]
        | _LoopMetrics[T]
        | _LoopStep[T]
        | _MetricsStep[T]
        | _LoopMetricsStep[T]
    )

else:  # it compares without self; which arguments there are lightloop.testing.mypy_plugin looks after
    TakesLoop: TypeAlias = Callable[..., T | Around]
    TakesBatch: TypeAlias = Callable[..., T | Around]
    TakesEpoch: TypeAlias = Callable[..., T | Around]
    TakesNormType: TypeAlias = Callable[..., T | Around]
    TakesError: TypeAlias = Callable[..., T | Around]
    TakesEvaluation: TypeAlias = Callable[..., T | Around]
    TakesLoader: TypeAlias = Callable[..., T | Around]
    TakesMetrics: TypeAlias = Callable[..., T | Around]

class Implementations:
    """Every hook, as the attribute that a plugin may have; in the order of :class:`lightloop.Hooks`."""

    setup: TakesLoop[None]
    prepare_loader: TakesLoader[Iterable[Any] | None]
    configure_optimizers: TakesLoop[Setup | None]
    before_fit: TakesLoop[None]
    epochs_remain: TakesLoop[bool | None]
    epoch_batches: TakesEpoch[float | None]
    epoch_steps: TakesEpoch[float | None]
    total_steps: TakesLoop[float | None]
    before_epoch: TakesLoop[None]
    read_batches: TakesLoop[Iterable[tuple[Any, bool]] | None]
    move_batch: TakesBatch[Any]
    before_batch: TakesLoop[None]
    split_batch: TakesLoop[Sequence[Any] | None]
    select_optimizers: TakesLoop[Sequence[int | None] | None]
    hold_step: TakesLoop[bool | None]
    plan_window: TakesLoop[int | None]
    forward: TakesLoop[Any]
    after_forward: TakesLoop[None]
    before_backward: TakesLoop[None]
    backward: TakesLoop[bool | None]
    after_backward: TakesLoop[None]
    reduce_gradients: TakesLoop[None]
    unscale_gradients: TakesLoop[None]
    before_step: TakesLoop[None]
    grad_norm: TakesNormType[Tensor | None]
    step: TakesLoop[bool | None]
    after_step: TakesLoop[None]
    on_step_skipped: TakesLoop[None]
    zero_grad: TakesLoop[bool | None]
    after_batch: TakesLoop[None]
    between_batches: TakesLoop[None]
    may_stop: TakesLoop[bool | None]
    after_epoch: TakesLoop[None]
    before_evaluation: TakesEvaluation[None]
    before_evaluation_batch: TakesEvaluation[None]
    evaluate_batch: TakesEvaluation[Any]
    after_evaluation_batch: TakesEvaluation[None]
    after_evaluation_batches: TakesEvaluation[None]
    after_evaluation: TakesEvaluation[None]
    log_metrics: TakesMetrics[None]
    on_interrupt: TakesLoop[None]
    on_error: TakesError[None]
    after_fit: TakesLoop[None]
    teardown: TakesLoop[None]
