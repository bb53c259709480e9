"""FSDP on two ranks over gloo, where its numbers are not in the contract."""

import os

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from lightloop import Module, Plugin, Trainer, hookimpl
from lightloop.testing.accelerator_runs import Blocks, samples
from lightloop.testing.ranks import run_ranks, values_of
from lightloop_plugins.accelerators.fsdp.sharding import whole_state

pytestmark = pytest.mark.processes


def trainer(*plugins, **options):
    return Trainer(
        ["-*", "lockstep", *plugins], **{"strategy": "fsdp", "fsdp_min_size": 100, "fsdp_timeout": 60.0, **options}
    )


def rank():
    return int(os.environ["RANK"])


class Look(Plugin):
    name = "look"
    after = ("strategy", "clip", "grad_norm")

    def __init__(self, look):
        self.look, self.seen = look, []

    @hookimpl
    def before_step(self, loop):
        self.seen.append(self.look(loop))


class ThreeFour(Module):
    """Its gradient is 3 on the first rank's shard and 4 on the second's."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))

    def training_step(self, batch):
        return (self.w * torch.tensor([3.0, 4.0])).sum() * batch

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


class OneLoss(Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
        self.forwards = 0

    def training_step(self, batch):
        self.forwards += 1
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        matrices = [each for each in self.parameters() if each.ndim == 2]
        rest = [each for each in self.parameters() if each.ndim == 1]
        return [torch.optim.SGD(matrices, lr=0.1, momentum=0.9), torch.optim.AdamW(rest, lr=0.1)]


def one_loss(strategy):
    data = torch.randn(10, 2, 6, generator=torch.Generator().manual_seed(1))
    data = (
        list(data[rank() :: 2])
        if strategy
        else [torch.cat([one, two]) for one, two in zip(data[::2], data[1::2], strict=True)]
    )
    module, options = OneLoss(), {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1}
    run = trainer(**options) if strategy else Trainer(["-*"], **options)
    run.fit(module, data)
    return module.state_dict(), module.forwards, run.loop.optimizer_steps


def test_one_loss_of_several_optimizers_comes_to_what_one_process_comes_to():
    weights, forwards, steps = one_loss(None)
    for found in values_of(run_ranks(one_loss, 2, "fsdp")):
        assert found[1:] == (forwards, steps) == (5, [3, 3])
        torch.testing.assert_close(found[0], weights, rtol=0, atol=1e-6)


def three_four():
    look = Look(lambda loop: (loop.grad_norm(2.0).item(), loop.module.w.grad.to_local().tolist()))
    module = ThreeFour()
    run = trainer(look, gradient_clip_val=1.0, track_grad_norm=2)
    result = run.fit(module, [torch.tensor(1.0)])
    return look.seen, module.w.tolist(), {name: round(value, 4) for name, value in result.metrics.items()}


def test_c89_norm_and_clipping_are_of_the_whole_gradient():
    first, second = values_of(run_ranks(three_four, 2))
    assert [first[0][0][0], second[0][0][0]] == [5.0, 5.0]
    assert first[0][0][1] + second[0][0][1] == pytest.approx([0.6, 0.8])
    assert first[1] == second[1] == pytest.approx([-0.6, -0.8])
    for _, _, metrics in (first, second):
        assert metrics["grad_norm"] == 5.0
        assert metrics["grad_norm_clipped"] == pytest.approx(1.0)
        assert metrics["grad_2.0_norm_total"] == metrics["grad_2.0_norm_w"] == 5.0


class Sees(Blocks):
    def __init__(self):
        super().__init__()
        self.types, self.whole = [], None

    def training_step(self, batch, loop):
        self.types.append((batch[0].dtype, self.blocks[0](batch[0]).dtype))
        return super().training_step(batch)

    def predict_step(self, batch):
        return self(batch[0])


def batches(count=4):
    data = samples(count * 6)
    return [data[start + rank() * 3 : start + rank() * 3 + 3] for start in range(0, count * 6, 6)]


def sharded(**options):
    module = Sees()
    plain = type(module)
    look = Look(
        lambda loop: (
            {
                name: (type(value) is not nn.Parameter, tuple(value.to_local().shape))
                for name, value in loop.module.named_parameters()
            },
            whole_state(loop.module),
        )
    )
    run = trainer(look, **options)
    run.fit(module, batches())
    first = {name: value.clone() for name, value in module.state_dict().items()}
    run.fit(module, batches())  # the module is its old self, and can be sharded again
    kinds = {type(parameter) for parameter in module.parameters()}
    return look.seen[0], first, module.state_dict(), type(module) is plain, kinds == {nn.Parameter}, module.types[0]


def test_parameters_are_sharded_while_it_runs_and_whole_afterwards():
    ranks = values_of(run_ranks(sharded, 2))
    for (shards, whole), first, last, same_class, plain, _ in ranks:
        assert shards["head.weight"] == (True, (1, 6))
        assert shards["blocks.0.0.weight"] == (True, (6, 6))
        assert whole["head.weight"].shape == (2, 6)
        assert not isinstance(whole["head.weight"], DTensor)
        torch.testing.assert_close(whole, Blocks().state_dict())
        assert same_class
        assert plain
        assert not torch.equal(first["head.weight"], last["head.weight"])
        torch.testing.assert_close(last, ranks[0][2], rtol=0, atol=0)


def bfloat16():
    return sharded(precision="bf16-mixed")[-1]


def test_mixed_precision_gathers_in_bfloat16():
    assert values_of(run_ranks(bfloat16, 2)) == [(torch.float32, torch.bfloat16)] * 2


class NoneAtTheEnd(Blocks):
    def training_step(self, batch, batch_idx):
        return None if batch_idx == 3 else super().training_step(batch)


def flushed(options):
    module = NoneAtTheEnd()
    run = Trainer(["-*", "lockstep"], accumulate_grad_batches=4, skip_together=True, **options)
    run.fit(
        module, batches() if "RANK" in os.environ else [samples(24)[start : start + 6] for start in range(0, 24, 6)]
    )
    return module.state_dict(), run.loop.global_step


def test_a_window_whose_last_batch_has_no_loss_is_reduced_before_its_step():
    options = {"strategy": "fsdp", "fsdp_min_size": 100, "fsdp_timeout": 60.0}
    alone, steps = flushed({})
    assert steps == 1
    assert not torch.equal(alone["head.weight"], Blocks().state_dict()["head.weight"])
    for found, steps in values_of(run_ranks(flushed, 2, options)):
        assert steps == 1
        torch.testing.assert_close(found, alone, rtol=0, atol=1e-6)


def predicted():
    module = Sees()
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    wanted = module(x).detach()
    (found,) = trainer().predict(module, [(x, None)])
    return (found - wanted).abs().max().item()


def test_the_other_stages_run_sharded_too():
    assert max(values_of(run_ranks(predicted, 2))) < 1e-6


def named(names):
    trainer(fsdp_blocks=names).fit(Blocks(), batches())


def test_blocks_are_named_by_their_class():
    values_of(run_ranks(named, 2, ("Sequential",)))
    for outcome in run_ranks(named, 2, ("Transformer",)):
        assert (
            "fsdp_blocks (fsdp.blocks) must be classes of which there are modules, and there is no Transformer"
            in outcome.error
        )


class Idle(Blocks):
    """Its second block is in no loss."""

    def forward(self, x):
        return self.head(x + self.blocks[0](x))


def idle(options):
    module = Idle()
    Trainer(["-*", "lockstep"], **options).fit(
        module, batches() if "RANK" in os.environ else [samples(24)[start : start + 6] for start in range(0, 24, 6)]
    )
    return module.state_dict()


def test_parameters_that_no_loss_depends_on_stay_as_they_are():
    options = {"strategy": "fsdp", "fsdp_min_size": 100, "fsdp_timeout": 60.0}
    alone, before = idle({}), Blocks().state_dict()
    for found in values_of(run_ranks(idle, 2, options)):
        torch.testing.assert_close(found, alone, rtol=0, atol=1e-6)
        assert torch.equal(found["blocks.1.0.weight"], before["blocks.1.0.weight"])
        assert not torch.equal(found["blocks.0.0.weight"], before["blocks.0.0.weight"])


class Branches(Blocks):
    """In validation, or from the third batch on, rank 1 goes through the second block alone; others, through ``other``."""

    def __init__(self, when, other):
        super().__init__()
        self.when, self.other, self.batch_idx = when, other, 0

    def forward(self, x):
        ways = {"the other": self.blocks[:1], "both": self.blocks}
        for block in self.blocks[1:] if rank() == 1 and self.batch_idx >= 2 else ways[self.other]:
            x = x + block(x)
        return self.head(x)

    def training_step(self, batch, batch_idx):
        self.batch_idx = batch_idx if self.when != "in validation" else 0
        return super().training_step(batch)

    def validation_step(self, batch):
        self.batch_idx = 2
        super().validation_step(batch)


def branched(when, other, **options):
    data = (batches(), batches(1) if when == "in validation" else None)
    trainer("validation", accumulate_grad_batches=2, **options).fit(Branches(when, other), *data)


@pytest.mark.parametrize(
    ("when", "where"), [("in training", "at epoch 0, batch 3"), ("in validation", "after_evaluation")]
)
def test_ranks_that_went_through_different_blocks_take_no_step(when, where):
    for outcome in run_ranks(branched, 2, when, "the other"):
        assert "rank 0 came to 'blocks.0' where rank 1 came to 'blocks.1'" in outcome.error
        assert "look for a branch in forward" in outcome.error
        assert where in outcome.error
        assert outcome.seconds < 60, "nobody waited for the time-out"


def checked(other):
    branched("in training", other, fsdp_check_blocks=True)


@pytest.mark.parametrize("other", ["the other", "both"])
def test_where_ranks_go_to_different_blocks_is_named_if_asked_for(other):
    for outcome in run_ranks(checked, 2, other):
        assert "rank 0 is in the forward of block 'blocks.0', called from test_fsdp.py:" in outcome.error
        assert "rank 1 is in the forward of block 'blocks.1', called from test_fsdp.py:" in outcome.error
        assert "look for a branch in forward" in outcome.error
        assert "at epoch 0, batch 2" in outcome.error


def impatient():
    branched("in training", "both", fsdp_timeout=10.0)


def test_a_block_that_one_rank_leaves_out_ends_both_and_what_tells_more_is_said():
    outcomes = run_ranks(impatient, 2)
    assert all(outcome.status not in (0, None) for outcome in outcomes), "gloo ends one process, or both time out"
    assert any("fsdp_check_blocks=True names it" in (outcome.error or "") for outcome in outcomes)


def checks(check):
    module = Blocks()
    trainer(fsdp_check_blocks=check, max_epochs=2).fit(module, batches())
    return module.state_dict()


def test_ranks_that_tell_one_another_of_blocks_compute_the_same():
    for found in values_of(run_ranks(checks, 2, True)):
        torch.testing.assert_close(found, values_of(run_ranks(checks, 2, False))[0], rtol=0, atol=0)


def test_one_process_is_left_alone():
    module = Blocks()
    run = trainer()
    run.fit(module, [samples(3)[:]])
    assert run.loop.world.size == 1
    assert type(module) is Blocks
