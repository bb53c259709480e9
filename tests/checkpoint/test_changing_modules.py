"""Modules whose tensors appear, grow or are sparse are resumed to the bit; the module has its turn before it is refused."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from lightloop import Module
from lightloop_plugins.checkpoint.errors import CheckpointError
from tests.checkpoint.optimizer_rig import assert_resumes, fit

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*Sparse:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*quantize:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.ao:DeprecationWarning"),
]


class Base(Module):
    def __init__(self, make=None):
        super().__init__()
        self.layer = nn.Linear(6, 1)

    def loss(self, x, y):
        return nn.functional.mse_loss(self.layer(x).squeeze(1), y)

    def training_step(self, batch, batch_idx):
        return self.loss(*batch)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Bank(Base):
    """Keeps samples, and takes the bank of a checkpoint whatever its length."""

    def __init__(self, make=None):
        super().__init__()
        self.register_buffer("bank", torch.zeros(0, 6))

    def loss(self, x, y):
        self.bank = torch.cat([self.bank, x[:1]])
        return super().loss(x + 0.1 * self.bank.mean(0), y)

    def _load_from_state_dict(self, state, prefix, *arguments):
        if f"{prefix}bank" in state:
            self.bank = torch.empty_like(state[f"{prefix}bank"])
        super()._load_from_state_dict(state, prefix, *arguments)


class Told(Base):
    """A buffer that appears with the first batch; on_load_checkpoint makes it."""

    def loss(self, x, y):
        if not hasattr(self, "mean"):
            self.register_buffer("mean", torch.zeros(6))
        self.mean.lerp_(x.mean(0), 0.1)
        return super().loss(x - self.mean, y)

    def on_load_checkpoint(self, checkpoint):
        if "mean" in checkpoint.get("state_dict", {}):
            self.register_buffer("mean", torch.zeros(6))


class Cache(Base):
    """A cache that is in no state_dict and grows; one that appears."""

    def __init__(self, make=None):
        super().__init__()
        self.register_buffer("cache", torch.zeros(1), persistent=False)

    def loss(self, x, y):
        self.cache = torch.cat([self.cache, x.mean().reshape(1)])
        if not hasattr(self, "late"):
            self.register_buffer("late", x.mean(), persistent=False)
        return super().loss(x + self.cache.mean() + self.late, y)


class Sparse(Base):
    """Sparse buffers of every layout, one of which no state_dict has."""

    def __init__(self, make=None):
        super().__init__()
        self.register_buffer("coo", torch.eye(6).to_sparse())
        self.register_buffer("csr", torch.eye(6).to_sparse_csr(), persistent=False)

    def loss(self, x, y):
        self.coo = (self.coo * 1.1).coalesce()
        return super().loss((self.coo @ x.T).T + (self.csr @ x.T).T, y)


class Rows(Base):
    """An embedding with sparse gradients."""

    def __init__(self, make=None):
        super().__init__()
        self.rows = nn.Embedding(12, 6, sparse=True)

    def loss(self, x, y):
        at = (x[:, 0].abs() * 100).long() % 12
        return super().loss(x + self.rows(at), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Pruned(Base):
    """Half of the weights are pruned after some batches; a checkpoint with the mask makes it pruned at once."""

    def loss(self, x, y):
        if self.loop.total_batches == 2:
            prune.l1_unstructured(self.layer, "weight", 0.5)
        return super().loss(x, y)

    def on_load_checkpoint(self, checkpoint):
        if "layer.weight_orig" in checkpoint.get("state_dict", {}) and not prune.is_pruned(self.layer):
            prune.identity(self.layer, "weight")


class Observed(Base):
    """Quantization-aware training: scales are found while it goes on."""

    def __init__(self, make=None):
        super().__init__()
        quantization = torch.ao.quantization
        self.fake = quantization.FakeQuantize(
            observer=quantization.MovingAveragePerChannelMinMaxObserver,
            quant_min=-128,
            quant_max=127,
            dtype=torch.qint8,
            qscheme=torch.per_channel_symmetric,
            ch_axis=1,
        )

    def loss(self, x, y):
        return super().loss(self.fake(x), y)


class Lazy(Base):
    """A layer that learns its width from the first batch, after the optimizer was made."""

    def __init__(self, make=None):
        super().__init__()
        self.layer = nn.LazyLinear(1)
        self.norm = nn.LazyBatchNorm1d()

    def loss(self, x, y):
        return super().loss(self.norm(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


CHANGING = [Bank, Told, Cache, Sparse, Rows, Pruned, Observed, Lazy]


@pytest.mark.parametrize("kind", CHANGING)
def test_it_goes_on_to_the_bit(tmp_path, kind):
    assert_resumes(tmp_path, None, net=kind, accumulate_grad_batches=2 if kind is Rows else 1)


def test_what_is_no_room_for_is_refused_and_leaves_the_module_as_it_was(tmp_path):
    class Grown(Base):
        def __init__(self, make=None):
            super().__init__()
            self.register_buffer("kept", torch.zeros(2))

        def loss(self, x, y):
            self.kept = torch.cat([self.kept, x.mean().reshape(1)])
            return super().loss(x, y)

    fit(tmp_path, None, 3, net=Grown)
    made = []

    def again(make):
        torch.manual_seed(5)
        made.append(Grown())
        return made[0]

    with pytest.raises(
        CheckpointError, match=r"(?s)buffer kept has shape \[5\].*on_load_checkpoint.*size mismatch for kept"
    ):
        fit(tmp_path, None, None, "auto", net=again)
    torch.manual_seed(5)
    assert torch.equal(made[0].layer.weight, Grown().layer.weight)
    assert made[0].kept.tolist() == [0.0, 0.0]


def test_a_tensor_that_cannot_be_stored_is_named(tmp_path):
    class Nested(Base):
        def __init__(self, make=None):
            super().__init__()
            self.register_buffer("quantized", torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8))

    with pytest.raises(
        CheckpointError, match=r"module\.buffers\.quantized: a tensor that is quantized cannot be stored"
    ):
        fit(tmp_path, None, net=Nested)
