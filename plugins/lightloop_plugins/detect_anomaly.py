"""Let autograd find the operation whose backward produced NaN."""

from __future__ import annotations

import torch

from lightloop import Loop, Plugin, hookimpl, option


class DetectAnomaly(Plugin):
    """Run with ``torch.autograd``'s anomaly detection: a NaN in backward is an error that shows its forward operation.

    It slows training several times over. The process-wide setting is put back however the run ends.
    """

    name = "detect_anomaly"
    tags = ("watches",)
    before = ("accelerator", "strategy")
    transient = ("_before",)

    on: bool = option(
        False, "Let autograd check each backward operation for NaN; slow.", flag="detect_anomaly", switch=True
    )

    def validate(self) -> None:
        self._before: tuple[bool, bool] | None = None

    @hookimpl
    def setup(self, loop: Loop) -> None:
        self._before = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
        torch.autograd.set_detect_anomaly(True)

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        if self._before is not None:
            torch.autograd.set_detect_anomaly(*self._before)
            self._before = None
