"""The familiar form of a callback: a class whose methods are called at the events of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

if TYPE_CHECKING:
    from lightloop.trainer import Trainer


class Callback:
    """The base class of callbacks: override methods, and pass an object to ``Trainer(callbacks=[...])``.

    The methods stand in the order of a run. Callbacks are told in the order of the list, and before the module, whose
    methods of the same names are told too, without ``trainer`` and ``module``. A method may take fewer arguments than
    it has here. Subclassing is for help with names alone: any object with such methods serves.
    """

    def setup(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """A run begins; ``stage`` is "fit", "validate", "test" or "predict"."""

    def on_fit_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Loaders and optimizers exist; nothing has been evaluated or trained."""

    def on_sanity_check_start(self, trainer: Trainer, module: nn.Module) -> None:
        """The check of the validation data before training begins."""

    def on_sanity_check_end(self, trainer: Trainer, module: nn.Module) -> None:
        """It is over."""

    def on_train_start(self, trainer: Trainer, module: nn.Module) -> None:
        """The first epoch of this fit is about to begin."""

    def on_epoch_start(self, trainer: Trainer, module: nn.Module) -> None:
        """A training epoch begins; the older name."""

    def on_train_epoch_start(self, trainer: Trainer, module: nn.Module) -> None:
        """A training epoch begins; also one that a resumed run goes on in."""

    def on_batch_start(self, trainer: Trainer, module: nn.Module, batch: Any, batch_idx: int) -> int | None:
        """A training batch begins; the older name."""
        return None

    def on_train_batch_start(self, trainer: Trainer, module: nn.Module, batch: Any, batch_idx: int) -> int | None:
        """A training batch begins; returning -1 passes it over and ends the epoch."""
        return None

    def on_before_backward(self, trainer: Trainer, module: nn.Module, loss: Tensor) -> None:
        """The loss is about to be differentiated."""

    def on_after_backward(self, trainer: Trainer, module: nn.Module) -> None:
        """The gradient of a piece was added; it may be part of a window's."""

    def on_before_optimizer_step(self, trainer: Trainer, module: nn.Module, optimizer: Optimizer) -> None:
        """The gradients are whole and unscaled, not yet measured or clipped."""

    def on_before_zero_grad(self, trainer: Trainer, module: nn.Module, optimizer: Optimizer) -> None:
        """A window is over: its step was taken or skipped, its gradients are still there."""

    def on_train_batch_end(
        self, trainer: Trainer, module: nn.Module, outputs: Mapping[str, Any] | None, batch: Any, batch_idx: int
    ) -> None:
        """A training batch is done; ``outputs`` is a mapping with ``loss``, detached, or None."""

    def on_batch_end(self, trainer: Trainer, module: nn.Module) -> None:
        """A training batch is done; the older name."""

    def on_train_epoch_end(self, trainer: Trainer, module: nn.Module) -> None:
        """A training epoch is over; validation at its end follows. What is logged now is of this epoch."""

    def on_epoch_end(self, trainer: Trainer, module: nn.Module) -> None:
        """A training epoch is over; the older name."""

    def on_validation_start(self, trainer: Trainer, module: nn.Module) -> None:
        """A pass over validation data begins."""

    def on_validation_epoch_start(self, trainer: Trainer, module: nn.Module) -> None:
        """The same moment."""

    def on_validation_batch_start(
        self, trainer: Trainer, module: nn.Module, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A validation batch begins."""

    def on_validation_batch_end(
        self, trainer: Trainer, module: nn.Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A validation batch is done; ``outputs`` is what the step returned."""

    def on_validation_epoch_end(self, trainer: Trainer, module: nn.Module) -> None:
        """Every batch is done; what is logged now is among the metrics of the pass."""

    def on_validation_end(self, trainer: Trainer, module: nn.Module) -> None:
        """The pass is over, however it ended; its metrics are known."""

    def on_test_start(self, trainer: Trainer, module: nn.Module) -> None:
        """A pass over test data begins."""

    def on_test_epoch_start(self, trainer: Trainer, module: nn.Module) -> None:
        """The same moment."""

    def on_test_batch_start(
        self, trainer: Trainer, module: nn.Module, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A test batch begins."""

    def on_test_batch_end(
        self, trainer: Trainer, module: nn.Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A test batch is done; ``outputs`` is what the step returned."""

    def on_test_epoch_end(self, trainer: Trainer, module: nn.Module) -> None:
        """Every batch is done; what is logged now is among the metrics of the pass."""

    def on_test_end(self, trainer: Trainer, module: nn.Module) -> None:
        """The pass is over, however it ended; its metrics are known."""

    def on_predict_start(self, trainer: Trainer, module: nn.Module) -> None:
        """A pass over prediction data begins."""

    def on_predict_epoch_start(self, trainer: Trainer, module: nn.Module) -> None:
        """The same moment."""

    def on_predict_batch_start(
        self, trainer: Trainer, module: nn.Module, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A prediction batch begins."""

    def on_predict_batch_end(
        self, trainer: Trainer, module: nn.Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A prediction batch is done; ``outputs`` is what the step returned."""

    def on_predict_epoch_end(self, trainer: Trainer, module: nn.Module) -> None:
        """Every batch is done; what is logged now is among the metrics of the pass."""

    def on_predict_end(self, trainer: Trainer, module: nn.Module) -> None:
        """The pass is over, however it ended; its metrics are known."""

    def on_keyboard_interrupt(self, trainer: Trainer, module: nn.Module) -> None:
        """The user or the system ended the run early."""

    def on_exception(self, trainer: Trainer, module: nn.Module, exception: BaseException) -> None:
        """The run ends with ``exception``, an interruption included."""

    def on_train_end(self, trainer: Trainer, module: nn.Module) -> None:
        """Training is over, however it ended; told if on_train_start was."""

    def on_fit_end(self, trainer: Trainer, module: nn.Module) -> None:
        """The fit is over, however it ended."""

    def teardown(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """The last event of a run, for whatever must be put back."""

    def on_save_checkpoint(self, trainer: Trainer, module: nn.Module, checkpoint: dict[str, Any]) -> None:
        """A checkpoint is written; what is put into ``checkpoint`` comes back on load."""

    def on_load_checkpoint(self, trainer: Trainer, module: nn.Module, checkpoint: dict[str, Any]) -> None:
        """A checkpoint was read; ``checkpoint`` has what on_save_checkpoint put there."""

    def state_dict(self) -> dict[str, Any]:
        """What of this object must survive a restart: plain containers, numbers, strings and tensors."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
