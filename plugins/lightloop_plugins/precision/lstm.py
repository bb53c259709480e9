"""Train ``nn.LSTM`` under autocast on a processor for which oneDNN has no LSTM of that type."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle


def bypass_onednn(module: nn.Module, dtype: torch.dtype) -> list[RemovableHandle]:
    """Make the LSTM layers of ``module`` run without oneDNN where it cannot compute them in ``dtype`` on this processor.

    torch hands an autocast LSTM to oneDNN without asking whether the processor has the instructions (AVX-512 or AMX), and
    fails with "could not create a primitive descriptor". Without oneDNN torch computes the same layer by itself, slower.

    Returns:
        the handles of the hooks that do this, to be removed after the run; none where there is nothing to do.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, nn.LSTM)]
    if not layers or not torch._C._get_mkldnn_enabled() or _onednn_has_lstm(dtype):
        return []
    before = [layer.register_forward_pre_hook(_switch_off) for layer in layers]
    return before + [layer.register_forward_hook(_switch_on, always_call=True) for layer in layers]


def _onednn_has_lstm(dtype: torch.dtype) -> bool:
    """Whether a tiny LSTM can be run in ``dtype``: the processor's own answer."""
    layer = nn.LSTM(1, 1, device="meta").to_empty(device="cpu")  # so that no random numbers are drawn
    try:
        with torch.enable_grad(), torch.autocast("cpu", dtype):
            layer(torch.zeros(1, 1, 1))
    except RuntimeError:
        return False
    return True


def _switch_off(layer: nn.Module, arguments: object) -> None:
    torch._C._set_mkldnn_enabled(False)  # torch.backends.mkldnn.flags would set TF32 as well, and warn of it


def _switch_on(layer: nn.Module, arguments: object, output: object) -> None:
    torch._C._set_mkldnn_enabled(True)
