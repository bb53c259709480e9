"""Use what steps return besides the loss: metrics under the old magic keys, and outputs for ``*_epoch_end``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from lightloop import Evaluation, Loop, Plugin, hookimpl, option
from lightloop.toolkit import defined, map_leaves, warn

MAGIC = ("log", "progress_bar")
NO_METRICS = (*MAGIC, "hiddens", "weight")
ENDS = {
    "fit": ("training_epoch_end",),
    "validate": ("validation_epoch_end", "validation_end"),
    "test": ("test_epoch_end", "test_end"),
}
"""For each stage the module's method, and what it was once called."""


class Outputs(Plugin):
    """Log metrics in returned mappings, and call the module's ``*_epoch_end`` methods with the outputs of its steps.

    * The metrics in ``log`` and in ``progress_bar``, which go on the bar too, are logged as by ``self.log``. The other
      keys, ``hiddens`` and ``weight`` apart, are metrics as well as far as they are single numbers; those of a training
      step are only looked at (``callback_metrics``) and not kept for a mean. The first output of each stage decides: if
      it has neither of the two keys, none is looked into.
    * ``training_epoch_end(outputs)``, ``validation_epoch_end`` and ``test_epoch_end`` get what the steps returned,
      detached: of training ``[batch][optimizer][split]``, where an axis on which there was never more than one is left
      out, and a bare loss is ``{"loss": loss}``; of evaluation ``[batch]``, or ``[loader][batch]`` if there are several.
      A mapping that they return is logged in the same way, for the epoch.
    """

    name = "outputs"
    before = ("callbacks", "log_every", "validation")
    default = True
    state = ("_reads", "_kept")
    transient = ("_batch", "_ends", "_evaluated")
    state_version = 2

    magic: bool | None = option(
        None,
        "Log what steps return under 'log' and 'progress_bar'; None: if the first output of a stage has one of them.",
        flag="log_outputs",
        enables=False,
    )

    def reset(self) -> None:
        self._ends: dict[str, Callable[[list[Any]], Any]] = {}
        self._reads: dict[str, bool | None] = {}
        self._kept: list[Any] = []
        self._evaluated: list[list[Any]] = []
        self._batch = -1

    @hookimpl
    def setup(self, loop: Loop) -> None:
        for stage, names in ENDS.items():
            for method in filter(None, (defined(loop.module, name) for name in names)):
                self._ends.setdefault(stage, method)
        if "fit" not in self._ends:
            loop.opt_out(self, "before_epoch", "after_epoch", *(["after_forward"] if self.magic is False else []))
        if self._ends.keys() <= {"fit"}:
            loop.opt_out(self, "before_evaluation", "after_evaluation_batches")
            if self.magic is False:
                loop.opt_out(self, "after_evaluation_batch")

    @hookimpl
    def before_epoch(self, loop: Loop) -> None:
        if not loop.batch_idx:  # a resumed run may go on inside an epoch
            self._kept, self._batch = [], -1

    @hookimpl
    def after_forward(self, loop: Loop) -> None:
        if loop.replaying:
            return
        if "fit" in self._ends and loop.output is not None:
            if self._batch != loop.total_batches:
                self._batch = loop.total_batches
                self._kept.append({})
            output = loop.output if isinstance(loop.output, Mapping) else {"loss": loop.output}
            self._kept[-1].setdefault(loop.optimizer_idx, []).append(map_leaves(_detached, output))
        if self._looks_into(loop, "fit", loop.output, "after_forward"):
            self._log(loop, loop.output)

    @hookimpl
    def after_epoch(self, loop: Loop) -> None:
        returned = self._ends["fit"](squeezed(self._kept))
        self._kept = []
        if isinstance(returned, Mapping):
            self._log(loop, returned, on_step=False, on_epoch=True)

    @hookimpl
    def before_evaluation(self, loop: Loop) -> None:
        self._evaluated = []

    @hookimpl
    def after_evaluation_batch(self, loop: Loop, evaluation: Evaluation) -> None:
        if evaluation.stage in self._ends and evaluation.output is not None:
            missing = evaluation.loader_idx + 1 - len(self._evaluated)
            self._evaluated += [[] for _ in range(missing)]
            self._evaluated[evaluation.loader_idx].append(map_leaves(_detached, evaluation.output))
        if self._looks_into(loop, evaluation.stage, evaluation.output, "after_evaluation_batch"):
            self._log(loop, evaluation.output, on_epoch=True)

    @hookimpl
    def after_evaluation_batches(self, loop: Loop, evaluation: Evaluation) -> None:
        if (end := self._ends.get(evaluation.stage)) is not None:
            lists, self._evaluated = self._evaluated, []
            lists += [[] for _ in range(len(evaluation.loaders) - len(lists))]
            returned = end(lists if len(lists) > 1 else lists[0])
            if isinstance(returned, Mapping):
                self._log(loop, returned, on_epoch=True)

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        self.reset()

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        if not all(map(is_plain, self._kept)):
            state["kept"] = None
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict({**state, "kept": state["kept"] or []})
        if state["kept"] is None:
            warn(
                "the checkpoint does not have what training_step returned in this epoch, which is no plain data: "
                "training_epoch_end gets the outputs from here on. Return numbers, text, tensors, and containers of these"
            )

    @classmethod
    def migrate_state(cls, state: Mapping[str, Any], version: int) -> Mapping[str, Any]:
        """Outputs were not kept in version 1."""
        return {"reads": {}, "kept": [], "batch": -1}

    def _looks_into(self, loop: Loop, stage: str, output: Any, hook: str) -> bool:
        reads = self._reads.get(stage, self.magic)
        if reads is None and output is not None:
            reads = isinstance(output, Mapping) and any(key in output for key in MAGIC)
            if not reads and stage not in self._ends:
                loop.opt_out(self, hook)
        self._reads[stage] = reads
        return bool(reads) and isinstance(output, Mapping)

    def _log(self, loop: Loop, output: Mapping[str, Any], **how: Any) -> None:
        found = {key: output.get(key) or {} for key in MAGIC}
        for key, metrics in found.items():
            if not isinstance(metrics, Mapping):
                raise TypeError(f"{key!r} in what a step returns must be a mapping of metrics; it is {metrics!r}")
        metrics = {**found["progress_bar"], **found["log"]}
        for name, value in metrics.items():
            if name != "step":  # what is logged is of today's step, whatever an old module says of it
                loop.log(name, value, prog_bar=name in found["progress_bar"], **how)
        for name, value in output.items():
            if name not in NO_METRICS and name not in metrics and _is_number(value):
                if how:
                    loop.log(name, value, **how)
                else:
                    loop.metrics.put(name, value.detach().reshape(()) if isinstance(value, Tensor) else value)


def squeezed(batches: list[dict[int | None, list[Any]]]) -> list[Any]:
    """``[batch][optimizer][split]``, without the axes of optimizers and splits if there was never more than one."""
    nested: list[Any] = [list(batch.values()) for batch in batches]
    if all(len(splits) == 1 for batch in nested for splits in batch):
        nested = [[splits[0] for splits in batch] for batch in nested]
    if all(len(batch) == 1 for batch in batches):
        nested = [batch[0] for batch in nested]
    return nested


def is_plain(value: Any) -> bool:
    """Whether a checkpoint can hold ``value``."""
    if type(value) in (dict, list, tuple):
        return all(map(is_plain, (*value.keys(), *value.values()) if isinstance(value, dict) else value))
    return value is None or type(value) in (bool, int, float, str, Tensor)


def _detached(leaf: Any, path: str) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf


def _is_number(value: Any) -> bool:
    return (
        value.numel() == 1
        if isinstance(value, Tensor)
        else isinstance(value, (int, float)) and not isinstance(value, bool)
    )
