"""Requests that plugins and users make of a running loop: each has a reason; there are no bare flags."""

from __future__ import annotations


class Control:
    """Requests to stop training, to end the epoch, and to skip a step or a batch."""

    def __init__(self) -> None:
        self.asked = False
        """Whether this process may have asked for an end: of training, or of the epoch."""
        self.stop_reasons: list[str] = []
        self.interrupt_reason: str | None = None
        self.end_epoch_reason: str | None = None
        self.skip_step_reason: str | None = None
        self.skip_batch_reason: str | None = None

    @property
    def stop_reason(self) -> str | None:
        """The reason to stop training: that of an interrupt, else of the first stop request; None without a request."""
        return self.interrupt_reason or (self.stop_reasons[0] if self.stop_reasons else None)

    def stop(self, reason: str) -> None:
        """Stop training at the next batch boundary; minimums (``min_epochs``) may delay it, but it is never lost."""
        self.asked = True
        if reason not in self.stop_reasons:
            self.stop_reasons.append(reason)

    def withdraw_stop(self, reason: str) -> None:
        """Withdraw a :meth:`stop` request that has not taken effect; requests with other reasons stand."""
        if reason in self.stop_reasons:
            self.stop_reasons.remove(reason)

    def interrupt(self, reason: str) -> None:
        """Stop training at the next batch boundary, regardless of minimums."""
        self.interrupt_reason = self.interrupt_reason or reason
        self.asked = True

    def end_epoch(self, reason: str) -> None:
        """End this epoch after this batch; it counts as finished, and the next one follows."""
        self.end_epoch_reason = self.end_epoch_reason or reason
        self.asked = True

    def skip_step(self, reason: str) -> None:
        """Skip this step and drop the window's gradient; to be called in before_step."""
        self.skip_step_reason = self.skip_step_reason or reason

    def skip_batch(self, reason: str) -> None:
        """Skip the batch if called in before_batch; if called later, skip the rest of its pieces."""
        self.skip_batch_reason = self.skip_batch_reason or reason
