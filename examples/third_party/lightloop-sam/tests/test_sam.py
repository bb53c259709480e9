import pytest
import torch
from lightloop_sam import Sam
from torch import nn

from lightloop import Module, Trainer
from lightloop.testing import PluginContract, run_ranks, values_of

RHO, LR = 0.5, 0.1


class TestContract(PluginContract):
    plugin = "sam"
    options = {"rho": 0.05}  # noqa: RUF012  # as in the contract, nobody changes it


class Square(Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(3.0))
        self.calls = 0

    def training_step(self, batch):
        self.calls += 1
        return batch * self.w.square()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=LR)


@pytest.mark.parametrize("batches", [1, 2, 4])
def test_a_step_is_that_of_the_paper_however_many_batches_it_has(batches):
    module = Square()
    result = Trainer(["-*"], sam_rho=RHO, accumulate_grad_batches=batches).fit(module, [torch.tensor(1.0)] * batches)
    assert module.w.item() == pytest.approx(2.3)  # 3 - 0.1 * 2 * (3 + 0.5)
    assert (module.calls, result.global_step) == (2 * batches, 1)


def test_it_climbs_in_proportion_to_the_weights_if_it_is_to():
    module = Square()
    Trainer(["-*"], sam_rho=RHO, sam_adaptive=True).fit(module, [torch.tensor(1.0)])
    assert module.w.item() == pytest.approx(3 - LR * 2 * (3 + 3 * RHO))


class Net(Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def loss(self, batch):
        return self.net(batch).float().square().mean()

    def training_step(self, batch, loop):
        weight = 1 + loop.world.rank
        return {"loss": self.loss(batch[loop.world.rank]), "weight": weight}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=LR, momentum=0.5)


def batches(ranks=1):
    return list(torch.randn(5, ranks, 6, 3, generator=torch.Generator().manual_seed(1)))


def by_hand(data, accumulate=1, clip=None, dtype=None):
    """The algorithm as the paper has it; weights of ranks are 1, 2."""
    module = Net()
    optimizer, parameters = module.configure_optimizers(), list(module.parameters())

    def evaluate(window):
        optimizer.zero_grad()
        for batch in window:
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                losses = [module.loss(part) * (1 + rank) for rank, part in enumerate(batch)]
            (sum(losses) / sum(range(1, len(batch) + 1)) / len(window)).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(parameters, clip)

    for start in range(0, len(data), accumulate):
        window = data[start : start + accumulate]
        evaluate(window)
        norm = torch.stack([p.grad.norm() for p in parameters]).norm()
        old = [p.detach().clone() for p in parameters]
        with torch.no_grad():
            for p in parameters:
                p.add_(p.grad * (RHO / (norm + 1e-12)))
        evaluate(window)
        with torch.no_grad():
            for p, before in zip(parameters, old, strict=True):
                p.copy_(before)
        optimizer.step()
    return module.state_dict()


def trained(ranks, **options):
    module = Net()
    result = Trainer(["-*"], sam_rho=RHO, **options).fit(module, batches(ranks))
    return module.state_dict(), result.global_step


def assert_close(one, other, within):
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=within, atol=within)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_it_is_the_algorithm_by_hand(accumulate, clip):
    state, _ = trained(1, accumulate_grad_batches=accumulate, gradient_clip_val=clip)
    assert_close(state, by_hand(batches(), accumulate, clip), 1e-6)


@pytest.mark.parametrize(("precision", "dtype"), [("bf16-mixed", torch.bfloat16), ("16-mixed", torch.float16)])
def test_in_mixed_precision_too(precision, dtype):
    scale = {"precision_init_scale": 2.0**8} if precision == "16-mixed" else {}
    state, steps = trained(1, precision=precision, **scale)
    assert steps == 5
    assert_close(state, by_hand(batches(), dtype=dtype), 2e-2 if dtype is torch.bfloat16 else 2e-3)


def on_ranks():
    return [
        trained(2, strategy=strategy, accumulate_grad_batches=accumulate)[0]
        for strategy in ("ddp", "fsdp")
        for accumulate in (1, 2)
    ]


def test_several_processes_climb_and_step_together():
    hand = [by_hand(batches(2), accumulate) for accumulate in (1, 2)] * 2
    for states in values_of(run_ranks(on_ranks, 2)):
        for state, wanted in zip(states, hand, strict=True):
            assert_close(state, wanted, 2e-6)


def test_what_it_cannot_do_is_refused():
    with pytest.raises(ValueError, match=r"sam_rho \(sam.rho\) must be a number from 0; it is -1"):
        Sam(rho=-1.0)

    class Lbfgs(Square):
        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters())

    with pytest.raises(ValueError, match="sam_rho cannot be had with LBFGS, which evaluates the loss by itself"):
        Trainer(["-*"], sam_rho=RHO).fit(Lbfgs(), [torch.tensor(1.0)])

    class Manual(Square):
        automatic_optimization = False

    with pytest.raises(
        ValueError, match="sam_rho cannot go forward again for a training_step that optimizes by itself"
    ):
        Trainer(["-*", "manual_optimization"], sam_rho=RHO).fit(Manual(), [torch.tensor(1.0)])
    assert "sam" in [plugin.name for plugin in Trainer(["-*"], sam_rho=0.05).plugins]
