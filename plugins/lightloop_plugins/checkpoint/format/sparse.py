"""Sparse tensors as the dense ones that they are made of, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lightloop_plugins.checkpoint.errors import CheckpointError

_ROWS = {"sparse_csr": torch.sparse_csr, "sparse_bsr": torch.sparse_bsr}
_COLUMNS = {"sparse_csc": torch.sparse_csc, "sparse_bsc": torch.sparse_bsc}
_COMPRESSED = {**_ROWS, **_COLUMNS}


def taken(value: Tensor, path: str) -> tuple[str, dict[str, Any]]:
    """The layout of ``value``, and what it is made of."""
    layout, value = str(value.layout).rpartition(".")[2], value.detach()
    size = list(value.shape)
    if layout == "sparse_coo":
        parts = {"indices": value._indices(), "values": value._values(), "coalesced": value.is_coalesced()}
        return layout, {"size": size, **parts}
    if layout in _ROWS:
        return layout, {
            "size": size,
            "compressed": value.crow_indices(),
            "plain": value.col_indices(),
            "values": value.values(),
        }
    if layout in _COLUMNS:
        return layout, {
            "size": size,
            "compressed": value.ccol_indices(),
            "plain": value.row_indices(),
            "values": value.values(),
        }
    raise CheckpointError(f"{path or 'the state'}: a tensor of layout {value.layout} cannot be stored: store it dense")


def made(layout: str, parts: Mapping[str, Any]) -> Tensor:
    """The tensor of which :func:`taken` told; indices that are none of its are refused."""
    size, values = parts["size"], parts["values"]
    if layout == "sparse_coo":
        whole = torch.sparse_coo_tensor(parts["indices"], values, size, check_invariants=True)
        return whole.coalesce() if parts["coalesced"] else whole
    return torch.sparse_compressed_tensor(
        parts["compressed"], parts["plain"], values, size, layout=_COMPRESSED[layout], check_invariants=True
    )
