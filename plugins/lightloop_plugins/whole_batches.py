"""Read whole batches of a TensorDataset at once, not sample by sample."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset, default_collate

from lightloop import Loop, Plugin, hookimpl
from lightloop.toolkit import remade


class WholeBatches(Plugin):
    """Read a plain DataLoader over a TensorDataset batch by batch, which takes a fraction of the time.

    Batches, their order, and the random numbers that the sampler draws stay what they are. A loader that is anything more
    than that is read as it is: with a ``collate_fn``, workers, a class of the user's for itself or the dataset.
    """

    name = "whole_batches"
    default = True

    @hookimpl(wrapper=True)
    def prepare_loader(self, loop: Loop) -> Generator[None, Any, Any]:
        loader = yield
        return remade(loader, dataset=Whole(*loader.dataset.tensors), collate_fn=_as_it_is) if can(loader) else loader


class Whole(TensorDataset):
    """A TensorDataset that gives many samples at once, collated."""

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        """The batch of the samples at ``indices``, as ``default_collate`` makes it of them."""
        index = torch.tensor(indices)
        return [
            tensor.index_select(0, index.to(tensor.device, non_blocking=tensor.device.type != "mps"))
            for tensor in self.tensors
        ]


def can(loader: Any) -> bool:
    """Whether ``loader`` does nothing but collate samples of tensors."""
    return (
        type(loader) is DataLoader
        and type(loader.dataset) is TensorDataset
        and loader.collate_fn is default_collate
        and loader.batch_sampler is not None
        and loader.num_workers == 0
        and all(type(each) is Tensor and each.layout is torch.strided for each in loader.dataset.tensors)
    )


def _as_it_is(batch: Any) -> Any:
    return batch
