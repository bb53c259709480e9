"""Horovod, with two ranks on this machine."""

import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightloop import Module, Plugin, Trainer
from lightloop.testing import Probe, TinyClassifier, classification_batches
from lightloop.testing.accelerators import AcceleratorContract
from lightloop.testing.ranks import values_of
from lightloop_plugins.accelerators.horovod import Horovod
from tests.horovod.rig import horovod_ranks

pytestmark = [pytest.mark.horovod, pytest.mark.processes]
OPTIONS = {"strategy": "horovod"}
BARE = ["-*", "horovod", "lockstep", "shard_data"]


def rank():
    import horovod.torch as hvd

    return hvd.rank()


def weights(module):
    return [parameter.tolist() for parameter in module.parameters()]


# --------------------------------------------------------------------------------------------------------- the world


class Ask(Probe):
    def __init__(self, ask):
        super().__init__()
        self.ask, self.answer = ask, None

    def training_step(self, batch, loop):
        self.answer = self.ask(loop.world)
        return batch * self.w


def asked(ask):
    module = Ask(ask)
    Trainer(BARE).fit(module, [torch.tensor(1.0)])
    return module.answer


def everything(world):
    r = world.rank
    return {
        "sizes": (world.rank, world.local_rank, world.size, world.is_main),
        "sum": world.reduce(torch.tensor([1.0, r])).tolist(),
        "mean": world.reduce(torch.tensor(r), "mean").item(),
        "max": world.reduce(torch.tensor(r == 1), "max").item(),
        "min": world.reduce(torch.tensor(r, dtype=torch.int64), "min").item(),
        "bf16": world.reduce(torch.tensor(1.5, dtype=torch.bfloat16)).item(),
        "nobody": world.agree(None, None, None),
        "first": world.agree(None if r == 0 else f"r{r}", "mine" if r == 1 else None, f"all {r}"),
        "broadcast": world.broadcast({"from": r}, 1),
        "gather": world.gather((r, "x" * r)),
        "barrier": world.barrier(),
    }


def test_every_kind_of_message():
    def expected(r):
        return {
            "sizes": (r, r, 2, r == 0),
            "sum": [2.0, 1.0],
            "mean": 0.5,
            "max": True,
            "min": 0,
            "bf16": 3.0,
            "nobody": (None, None, None),
            "first": ("r1", "mine", "all 0"),
            "broadcast": {"from": 1},
            "gather": [(0, ""), (1, "x")],
            "barrier": None,
        }

    assert values_of(horovod_ranks(asked, 2, everything)) == [expected(0), expected(1)]


def guarded(world):
    if world.rank == 0:
        world.gather("saving")


def test_a_call_under_a_rank_guard_is_an_error_on_all_ranks():
    for outcome in horovod_ranks(asked, 2, guarded):
        assert (
            "RankError: the ranks are out of step: rank 0 is in gather, called from test_horovod.py:" in outcome.error
        )
        assert "in guarded; rank 1 is in the mean of the gradients" in outcome.error
        assert "look for an `if rank == 0`" in outcome.error


# ------------------------------------------------------------------------------------------------------- gradients


def fit_by_plugin(compression):
    import horovod.torch as hvd

    sent = []
    inner = hvd.grouped_allreduce
    hvd.grouped_allreduce = lambda tensors, **named: sent.append(len(tensors)) or inner(tensors, **named)
    torch.manual_seed(0)
    module = TinyClassifier()
    trainer = Trainer(
        BARE, horovod_compression=compression, accumulate_grad_batches=2, gradient_clip_val=0.2, max_epochs=2
    )
    result = trainer.fit(module, loader())
    return weights(module), sent, result.global_step


def loader():
    batches = classification_batches(10, 4)
    data = TensorDataset(*(torch.cat([batch[part] for batch in batches]) for part in (0, 1)))
    return DataLoader(data, 4)  # 40 samples: 5 batches on each of two ranks, in windows of 2, 2 and 1


def fit_by_hand(ranks=2, batch=4):
    """One process that goes through what each rank would see, and takes the mean of their gradients."""
    torch.manual_seed(0)
    module = TinyClassifier()
    optimizer = module.configure_optimizers()
    x, y = loader().dataset.tensors
    shares = [(x[r::ranks].split(batch), y[r::ranks].split(batch)) for r in range(ranks)]
    for _ in range(2):
        for window in ((0, 1), (2, 3), (4,)):
            gradients = []
            for xs, ys in shares:
                optimizer.zero_grad()
                for index in window:
                    loss = nn.functional.cross_entropy(module(xs[index]), ys[index])
                    loss.backward(torch.full_like(loss, 1 / len(window)))
                gradients.append([parameter.grad.clone() for parameter in module.parameters()])
            for parameter, *parts in zip(module.parameters(), *gradients, strict=True):
                parameter.grad = sum(parts[1:], parts[0]) / ranks
            nn.utils.clip_grad_norm_(module.parameters(), 0.2)
            optimizer.step()
    return weights(module)


def test_training_equals_a_loop_by_hand_to_the_bit_and_held_steps_send_nothing():
    expected = fit_by_hand()
    for trained, sent, steps in values_of(horovod_ranks(fit_by_plugin, 2, "none")):
        assert trained == expected
        assert steps == 6
        assert sent == [4] * 6  # all four parameters together, once for each step of two or one batches


def test_gradients_may_be_sent_in_float16():
    exact = fit_by_hand()
    (first, _, _), (second, _, _) = values_of(horovod_ranks(fit_by_plugin, 2, "fp16"))
    assert first == second
    assert first != exact
    for one, other in zip(first, exact, strict=True):
        torch.testing.assert_close(torch.tensor(one), torch.tensor(other), atol=5e-3, rtol=0)


class Halves(Module):
    """Uses one of two weights by rank; a third by nobody."""

    def __init__(self):
        super().__init__()
        self.mine = nn.ParameterList(nn.Parameter(torch.ones(3)) for _ in range(2))
        self.nobodys = nn.Parameter(torch.ones(()))
        self.rows = nn.Embedding(4, 2, sparse=True)
        nn.init.zeros_(self.rows.weight)

    def training_step(self, batch, loop):
        r = loop.world.rank
        return (self.mine[r] * batch).sum() + self.rows(torch.tensor([r, 3])).sum()

    def configure_optimizers(self):
        return torch.optim.SGD([*self.mine, self.nobodys, self.rows.weight], lr=1.0, weight_decay=0.0)


def fit_halves():
    module = Halves()
    seen = {}

    class Look(Plugin):
        name = "look"
        after = ("strategy",)

        from lightloop import hookimpl

        @hookimpl
        def before_step(self, loop):
            seen["nobodys"] = module.nobodys.grad
            seen["count"] = len(loop.gradients)

    Trainer([*BARE, Look]).fit(module, [torch.tensor(2.0)])
    return weights(module.mine), seen, module.rows.weight.tolist()


def test_a_gradient_that_only_one_rank_has_counts_as_0_on_the_other():
    for mine, seen, rows in values_of(horovod_ranks(fit_halves, 2)):
        assert mine == [[0.0] * 3] * 2  # 1 - (2 + 0) / 2
        assert seen == {"nobodys": None, "count": 3}
        assert [row[0] for row in rows] == [-0.5, -0.5, 0.0, -1.0]


class Tokens(Probe):
    def training_step(self, batch, loop):
        return {"loss": batch[0] * self.w, "weight": batch[1]}


def fit_tokens():
    module = Tokens()
    mine = [torch.tensor([1.0, 1.0]), torch.tensor([2.0, 3.0])] if rank() == 0 else [torch.tensor([5.0, 4.0])] * 2
    Trainer(BARE, accumulate_grad_batches=2).fit(module, mine)
    return module.w.item()


def started(function):
    import horovod.torch as hvd

    hvd.init()
    return function()


def test_weights_count_over_all_ranks():
    expected = -(1 * 1 + 2 * 3 + 5 * 4 + 5 * 4) / (1 + 3 + 4 + 4)
    assert values_of(horovod_ranks(started, 2, fit_tokens)) == [pytest.approx(expected)] * 2


# ----------------------------------------------------------------------------------------------- one state for all


class Remembers(Plugin):
    name = "remembers"

    def validate(self):
        self.what = rank()

    def state_dict(self):
        return {"what": self.what}

    def load_state_dict(self, state):
        self.what = state["what"]


class Various(Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0 + rank()]))
        self.low = nn.Parameter(torch.tensor([1.0 + rank()] * 3, dtype=torch.bfloat16))
        self.register_buffer("flags", torch.tensor([rank() == 0, True]))
        self.register_buffer("count", torch.tensor(rank()))
        self.register_buffer("none", torch.zeros(0))
        self.register_buffer("slanted", torch.full((2, 3), float(rank())).t())

    def training_step(self, batch):
        return (self.w * batch).sum() + self.low.sum()

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.1 * (rank() + 1))
        if rank() == 0:  # as if only rank 0 had read a file
            self.training_step(torch.ones(1)).backward()
            optimizer.step()
        return optimizer


def fit_various():
    module, plugin = Various(), Remembers()
    trainer = Trainer([*BARE, plugin])
    trainer.fit(module, [torch.ones(1)] * 2)
    state = trainer.loop.optimizers[0].state_dict()
    values = {name: tensor.tolist() for name, tensor in module.state_dict().items()}
    return values, state["state"][0]["step"].item(), state["param_groups"][0]["lr"], plugin.what


def test_everybody_has_the_weights_the_optimizers_and_the_plugins_state_of_rank_0():
    first, second = values_of(horovod_ranks(started, 2, fit_various))
    assert first[1:] == second[1:] == (3, 0.1, 0)
    assert first[0] == second[0]
    assert second[0]["flags"] == [True, True]
    assert second[0]["slanted"] == [[0.0] * 2] * 3


class Another(Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(2, 2 + rank())

    def training_step(self, batch):
        return self.net(batch).sum()


def fit_another():
    Trainer(BARE).fit(Another(), [torch.ones(2)])


def test_modules_that_differ_are_refused():
    for outcome in horovod_ranks(started, 2, fit_another):
        assert "the module is another one on rank 1 than on rank 0: it has ('net.weight', (3, 2)" in outcome.error


def fit_scaled(scale):
    module = TinyClassifier()

    def configure():
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

    module.configure_optimizers = configure
    trainer = Trainer([*BARE, "lr_schedule"], horovod_scale_lr=scale, max_epochs=2)
    trainer.fit(module, classification_batches(1))
    return trainer.loop.optimizers[0].param_groups[0]["lr"]


@pytest.mark.parametrize(("scale", "lr"), [(False, 0.025), (True, 0.05)])
def test_learning_rates_are_scaled_only_if_asked_for(scale, lr):
    assert values_of(horovod_ranks(fit_scaled, 2, scale)) == [pytest.approx(lr)] * 2


# ------------------------------------------------------------------------------------------------ data and metrics


class Scores(Probe):
    def training_step(self, batch):
        self.log("seen", batch.mean(), on_epoch=True)
        return batch.mean() * self.w

    def validation_step(self, batch):
        self.log("val", batch.mean())


def fit_scores():
    data = DataLoader(
        TensorDataset(torch.arange(6.0)), 2, collate_fn=lambda rows: torch.stack([row[0] for row in rows])
    )
    odd = DataLoader(TensorDataset(torch.arange(7.0)), 2, collate_fn=lambda rows: torch.stack([row[0] for row in rows]))
    module = Scores()
    result = Trainer([*BARE, "validation", "log_every"]).fit(module, data, odd)
    return result.metrics["seen"], result.metrics["val"]


def test_samplers_are_sharded_and_metrics_reduced_with_their_weights():
    assert values_of(horovod_ranks(fit_scores, 2)) == [(2.5, 3.0)] * 2  # the means of 0…5 and of 0…6, each sample once


class Uneven:
    def __init__(self, sized):
        self.count = 5 - rank()
        if sized:
            self.__class__ = UnevenSized

    def __iter__(self):
        return iter(torch.arange(1.0, self.count + 1))


class UnevenSized(Uneven):
    def __len__(self):
        return self.count


def fit_uneven(sized):
    import warnings

    module = Probe()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = Trainer(BARE, accumulate_grad_batches=2).fit(module, Uneven(sized))
    return module.w.item(), result.global_step, [str(each.message)[:40] for each in caught]


@pytest.mark.parametrize("sized", [True, False])
def test_c83_ranks_go_on_while_each_has_data(sized):
    first, second = values_of(horovod_ranks(started_with, 2, fit_uneven, sized))
    assert first[:2] == second[:2] == (-5.0, 2)  # (1 + 2) / 2 + (3 + 4) / 2
    assert len(first[2]) == 1
    assert second[2] == []


def started_with(function, *arguments):
    import horovod.torch as hvd

    hvd.init()
    return function(*arguments)


class NoneOnOne(Probe):
    def training_step(self, batch, batch_idx, loop):
        return None if batch_idx == 2 and loop.world.rank == 1 else batch * self.w


def fit_none(together):
    module = NoneOnOne()
    result = Trainer(BARE, skip_together=together).fit(module, [torch.tensor(float(n)) for n in range(4)])
    return module.w.item(), result.global_step


def test_c85_no_loss_on_one_rank_is_an_error_or_agreed():
    first, second = horovod_ranks(fit_none, 2, False)
    assert "there is no loss on rank 1 (training_step returned None)" in second.error
    assert "RankError: another rank has failed. rank 1: ValueError: there is no loss on rank 1" in first.error
    assert values_of(horovod_ranks(fit_none, 2, True)) == [(-4.0, 3)] * 2


class Boom(Probe):
    def training_step(self, batch, batch_idx, loop):
        if batch_idx == 1 and loop.world.rank == 1:
            raise ZeroDivisionError("on purpose")
        return batch * self.w


def fit_boom():
    Trainer(BARE).fit(Boom(), [torch.tensor(1.0)] * 4)


def test_an_error_on_one_rank_ends_all():
    first, second = horovod_ranks(fit_boom, 2)
    assert second.error.startswith("ZeroDivisionError: on purpose")
    assert first.error.startswith(
        "RankError: another rank has failed. rank 1: ZeroDivisionError: on purpose (at epoch 0, b"
    )


def stop_on_one():
    class Stopper(Plugin):
        name = "stopper"

        from lightloop import hookimpl

        @hookimpl
        def after_batch(self, loop):
            if loop.batch_idx == 1 and loop.world.rank == 1:
                loop.stop("rank 1 has had enough")

    result = Trainer([*BARE, Stopper]).fit(Probe(), [torch.tensor(1.0)] * 4)
    return result.global_step, result.reason


def test_a_stop_that_one_rank_asks_for_is_everybodys():
    assert values_of(horovod_ranks(stop_on_one, 2)) == [(2, "rank 1 has had enough")] * 2


def fit_twice():
    trainer, answers = Trainer(BARE), []
    for _ in range(2):
        module = Probe()
        trainer.fit(module, [torch.tensor(1.0)] * 2)
        answers.append(module.w.item())
    live = next(plugin for plugin in trainer.plugins if plugin.name == "horovod")
    return answers, live.reductions, pickle.loads(pickle.dumps(live)).compression


def test_fitting_twice_starts_clean_and_the_plugin_pickles():
    assert values_of(horovod_ranks(fit_twice, 2)) == [([-2.0, -2.0], 2, "none")] * 2


# --------------------------------------------------------------------------------------------------------- the rest


def test_without_a_launcher_it_is_one_process():
    module = Probe()
    trainer = Trainer(["-*"], **OPTIONS)
    trainer.fit(module, [torch.tensor(1.0)] * 3)
    assert (module.w.item(), trainer.loop.world.size) == (-3.0, 1)


def fit_without_strategy(**options):
    module = Probe()
    trainer = Trainer(["-progress", "-model_summary"], enable_checkpointing=False, logger=False, **options)
    trainer.fit(module, [torch.tensor(1.0 + rank())])
    return trainer.world_size, module.w.item()


def fit_with_auto():
    return fit_without_strategy(strategy="auto", devices="auto")


def fit_alone():
    return fit_without_strategy(strategy=False)


@pytest.mark.parametrize("fit", [fit_without_strategy, fit_with_auto])
def test_the_processes_of_horovodrun_train_together_without_being_told(fit):
    assert values_of(horovod_ranks(started, 2, fit)) == [(2, -1.5)] * 2


def test_each_process_trains_alone_only_if_that_is_asked_for():
    assert values_of(horovod_ranks(started, 2, fit_alone)) == [(1, -1.0), (1, -2.0)]


def fit_too_many():
    Trainer(["-*"], strategy="horovod", devices=3).fit(Probe(), [torch.tensor(1.0)])


def test_another_number_of_processes_than_was_asked_for_is_refused():
    for outcome in horovod_ranks(fit_too_many, 2):
        assert "devices=3 and num_nodes=1 ask for 3 processes, and horovodrun has started 2" in outcome.error


def fit_closure():
    module = Probe()
    module.configure_optimizers = lambda: torch.optim.LBFGS(module.parameters())
    Trainer(BARE).fit(module, [torch.tensor(1.0)])


def test_optimizers_that_go_forward_by_themselves_are_refused():
    for outcome in horovod_ranks(fit_closure, 2):
        assert outcome.error.startswith(
            "ValueError: strategy='horovod' cannot be had with LBFGS, which decides by the loss"
        )


def test_nonsense_is_refused():
    with pytest.raises(TypeError, match=r"horovod_compression \(horovod.compression\) must be"):
        Horovod(compression="zip")


class Slow(Probe):
    def training_step(self, batch, loop):
        import time

        if loop.world.rank == 1:
            raise ZeroDivisionError("on purpose")
        time.sleep(1.5)
        return batch * self.w


def fit_slow():
    from lightloop_plugins.accelerators import _horovod

    _horovod.PATIENCE = 0.2
    Trainer(BARE).fit(Slow(), [torch.tensor(1.0)] * 4)


def test_a_rank_that_has_failed_does_not_wait_for_long():
    first, second = horovod_ranks(fit_slow, 2)
    assert second.error.startswith("ZeroDivisionError: on purpose")
    assert first.error.startswith("HorovodInternalError")
    assert "if it was not killed, its own error is in what it wrote" in first.error


class TestHorovod(AcceleratorContract):
    options = OPTIONS
    ranks = 2
    reduces = False  # not by torch.distributed; the tests above count

    def launch(self, function, *arguments):
        return horovod_ranks(function, self.ranks, *arguments, timeout=self.timeout)
