"""``self.log`` of a LightningModule."""

from __future__ import annotations

from typing import Any

import torch

from lightloop import Loop


class Log:
    """What stands in the place of ``LightningModule.log`` while a run lasts.

    A metric object of torchmetrics is asked for its value at the end of the epoch, and reset.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._objects: dict[str, tuple[str, Any]] = {}
        self._used: list[Any] = []
        self.of_epoch = False
        """Whether no batch is being trained on, before the first of an epoch and after its last: what is logged is the epoch's."""

    def __call__(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Any = "mean",
        enable_graph: bool = False,
        sync_dist: bool = False,
        sync_dist_group: Any = None,
        add_dataloader_idx: bool = True,
        batch_size: int | None = None,
        metric_attribute: str | None = None,
        rank_zero_only: bool = False,
    ) -> None:
        """Log ``value``; defaults are Lightning's, and means of epochs are over all ranks whatever ``sync_dist`` says."""
        loop = self._loop
        if loop.replaying or (rank_zero_only and not loop.world.is_main):
            return
        evaluating = loop.evaluation is not None
        step = not evaluating and (not self.of_epoch if on_step is None else on_step)
        epoch = (evaluating or self.of_epoch) if on_epoch is None else on_epoch
        if evaluating and on_step and not epoch:
            raise ValueError(f"metric {name!r}: on_step=True alone has no meaning in evaluation, which takes no steps")
        both = bool(on_step if evaluating else step) and epoch
        name, own, whole = self._names(name, both, evaluating and add_dataloader_idx)
        if hasattr(value, "_forward_cache") and hasattr(value, "compute"):
            if epoch:
                self._objects[whole] = name, value
            value = value._forward_cache
            if value is None or not (step or both):
                return
            epoch = False
        if step and sync_dist and loop.world.size > 1:
            value = loop.world.reduce(torch.as_tensor(value), "mean")
        how = reduce_fx if isinstance(reduce_fx, str) else getattr(reduce_fx, "__name__", repr(reduce_fx))
        how = {"avg": "mean"}.get(how.lower(), how.lower())
        weight: int | None = 1
        if epoch and how == "mean":
            weight = loop.weight_of_batch(name) if batch_size is None else batch_size
        if both and evaluating:
            loop.metrics.put(own, torch.as_tensor(value).detach().clone())
        more: dict[str, Any] = {"reduce": how, "weight": weight, "step_name": own, "epoch_name": whole}
        if step or epoch:
            loop.metrics.log(name, value, step=step, epoch=epoch, bar=prog_bar, **more)

    def compute(self) -> None:
        """Log what the metric objects of the epoch, or the pass, have come to."""
        objects, self._objects = self._objects, {}
        self._used += [metric for _, metric in objects.values()]
        for whole, (name, metric) in objects.items():
            self._loop.metrics.log(name, metric.compute(), step=False, epoch=True, epoch_name=whole)

    def reset(self) -> None:
        """Let the metric objects that were computed begin anew."""
        used, self._used = self._used, []
        for metric in used:
            metric.reset()

    def _names(self, name: str, both: bool, by_loader: bool) -> tuple[str, str, str]:
        """What a metric is called, and what its values of the step and of the epoch are."""
        evaluation = self._loop.evaluation
        several = by_loader and evaluation is not None and evaluation.loader_name is not None
        loader = f"/dataloader_idx_{evaluation.loader_idx}" if several else ""  # type: ignore[union-attr]
        step, epoch = ("_step", "_epoch") if both else ("", "")
        return name + loader, name + step + loader, name + epoch + loader

    def __reduce__(self) -> Any:  # a copy of a module that is made in a run logs nothing
        return _get_unheard, ()


def _get_unheard() -> Any:
    return _unheard


def _unheard(*_: Any, **__: Any) -> None:
    """What the log of a copied module does."""
