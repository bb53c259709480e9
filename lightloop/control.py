"""What plugins and users may ask of a run while it goes on: always by a request with a reason, never by a bare flag."""

from __future__ import annotations


class Control:
    """Requests: for the end of training or of the epoch, and to pass over a step or a batch."""

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
        """Why training is to end, if somebody asked for it: an interrupt's reason, or that of the first to ask."""
        return self.interrupt_reason or (self.stop_reasons[0] if self.stop_reasons else None)

    def stop(self, reason: str) -> None:
        """Ask for the end of training at the next batch boundary; minimums may delay it, nothing loses it."""
        self.asked = True
        if reason not in self.stop_reasons:
            self.stop_reasons.append(reason)

    def withdraw_stop(self, reason: str) -> None:
        """Take back a :meth:`stop` that has not happened yet; what others asked for stands."""
        if reason in self.stop_reasons:
            self.stop_reasons.remove(reason)

    def interrupt(self, reason: str) -> None:
        """Ask for the end of training at the next batch boundary, whatever the minimums say."""
        self.interrupt_reason = self.interrupt_reason or reason
        self.asked = True

    def end_epoch(self, reason: str) -> None:
        """Ask for the end of this epoch after this batch; it counts as finished, and the next one follows."""
        self.end_epoch_reason = self.end_epoch_reason or reason
        self.asked = True

    def skip_step(self, reason: str) -> None:
        """Ask, from before_step, that the step is not taken; the window's gradient is dropped."""
        self.skip_step_reason = self.skip_step_reason or reason

    def skip_batch(self, reason: str) -> None:
        """Ask, from before_batch, that the batch is passed over; later, that the rest of its pieces are."""
        self.skip_batch_reason = self.skip_batch_reason or reason
