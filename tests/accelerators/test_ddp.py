"""DDP on two ranks over gloo, where its numbers and its ways out are not in the contract."""

import os
import time
import warnings
from itertools import chain

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Sampler, TensorDataset, WeightedRandomSampler

from lightloop import Module, Plugin, Trainer, hookimpl
from lightloop.testing import Probe
from lightloop.testing.ranks import run_ranks, values_of

pytestmark = pytest.mark.processes

RANKED = ["-*", "ddp", "lockstep", "toggle", "manual_optimization", "lr_schedule", "validation", "set_epoch"]


def rank():
    return int(os.environ["RANK"])


def own(*numbers):
    """Batches that are the rank's own: the first number is rank 0's first one."""
    return [torch.tensor(float(number)) for number in numbers[rank() :: 2]]


def trainer(*plugins, **options):
    return Trainer([*RANKED, *plugins], **{"ddp_timeout": 60.0, **options})


def probe_with_flush():
    module = Probe()
    trainer("limits", accumulate_grad_batches=4, limit_train_batches=3).fit(module, iter(own(*range(1, 11))))
    return module.w.item()


def test_a_window_that_turns_out_held_is_reduced_before_its_step():
    # The length of an iterator is not known beforehand, and a batch without a loss closes the last window.
    assert values_of(run_ranks(probe_with_flush, 2)) == [-(1 + 2 + 3 + 4 + 5 + 6) / 6] * 2


class Skips(Probe):
    def training_step(self, batch, batch_idx):
        return None if batch_idx == 3 else super().training_step(batch)


def held_then_none():
    module = Skips()
    trainer(accumulate_grad_batches=4, skip_together=True).fit(module, own(*range(1, 9)))
    return module.w.item()


def test_a_window_whose_last_batch_has_no_loss_is_reduced_before_its_step():
    assert values_of(run_ranks(held_then_none, 2)) == [-(1 + 2 + 3 + 4 + 5 + 6) / 6] * 2


class Weighted(Probe):
    """Its batches are (gradient of the sum, number of tokens)."""

    def training_step(self, batch):
        return {"loss": self.w * batch[0] / batch[1], "weight": batch[1]}


def weights(accumulate):
    module = Weighted()
    data = [(torch.tensor(g), torch.tensor(n)) for g, n in [(10.0, 10.0), (0.0, 100.0), (4.0, 2.0), (6.0, 8.0)]]
    trainer(accumulate_grad_batches=accumulate).fit(module, data[rank() :: 2])
    return module.w.item()


def test_c5_weights_count_over_the_window_and_all_ranks():
    assert values_of(run_ranks(weights, 2, 2)) == pytest.approx([-20 / 120] * 2)
    assert values_of(run_ranks(weights, 2, 1)) == pytest.approx([-10 / 110 - 10 / 10] * 2)


class Adversaries(Module):
    """Two optimizers, each with a part of the parameters; both losses depend on all of them."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(3))

    def training_step(self, batch, optimizer_idx):
        return batch * (self.a + self.b.sum()) * (1 if optimizer_idx == 0 else 10)

    def configure_optimizers(self):
        return [torch.optim.SGD([part], lr=1.0) for part in (self.a, self.b)]


def adversaries(accumulate):
    module = Adversaries()
    trainer(accumulate_grad_batches=accumulate).fit(module, own(1, 2, 3, 4, 5, 6))
    return module.a.item(), module.b.tolist()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_several_optimizers_each_have_the_mean_of_all_ranks(accumulate):
    steps = [1.5, 3.5, 5.5] if accumulate == 1 else [2.5, 5.5]
    for found in values_of(run_ranks(adversaries, 2, accumulate)):
        assert found == (-sum(steps), [-10 * sum(steps)] * 3)


class Shared(Module):
    """One loss for two optimizers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x):
        return self.net(x).square().mean()

    training_step = forward

    def configure_optimizers(self):
        matrices = [each for each in self.parameters() if each.ndim == 2]
        rest = [each for each in self.parameters() if each.ndim == 1]
        return [torch.optim.Muon(matrices, lr=0.1), torch.optim.AdamW(rest, lr=0.1)]


KEPT = []
"""Lives until the process ends: torch takes a process group down with the GIL held, for which gloo's thread may wait."""


def one_loss(accumulate):
    from torch.nn.parallel import DistributedDataParallel

    from lightloop_plugins.accelerators import ddp

    data = list(torch.randn(10, 2, 3, generator=torch.Generator().manual_seed(1))[rank() :: 2])
    torch.distributed.init_process_group("gloo")
    module, late = Shared(), []
    average, ddp.average_gradients = ddp.average_gradients, lambda loop: late.append(1) or average(loop)
    run = trainer(accumulate_grad_batches=accumulate, gradient_clip_val=0.1)
    run.fit(module, data)
    hand = Shared()
    parallel, optimizers = DistributedDataParallel(hand), hand.configure_optimizers()
    for index, batch in enumerate(data):
        closes, size = (
            (index + 1) % accumulate == 0 or index == 4,
            min(accumulate, 5 - index // accumulate * accumulate),
        )
        parallel.require_backward_grad_sync = closes
        (parallel(batch) / size).backward()
        if closes:
            torch.nn.utils.clip_grad_norm_(hand.parameters(), 0.1)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    KEPT.append(parallel)
    return [torch.equal(*pair) for pair in zip(module.parameters(), hand.parameters(), strict=True)], len(late)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_one_loss_of_several_optimizers_is_reduced_during_backward_as_by_hand(accumulate):
    assert values_of(run_ranks(one_loss, 2, accumulate)) == [([True] * 4, 0)] * 2


class Evaluated(Probe):
    def validation_step(self, batch):
        self.log("value", batch.float().mean())
        self.log(f"of_{rank()}", 1.0 + rank(), reduce="max")

    test_step = validation_step


class Unsized:
    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


def few_samples(kind):
    def data(count):
        if kind == "shared out":
            return DataLoader(TensorDataset(torch.arange(1.0, 1 + count)), collate_fn=lambda each: torch.stack(each[0]))
        own = [torch.tensor([number]) for number in range(1 + rank(), 1 + count, 2)]
        return own if kind == "lists" else Unsized(own)

    found, run = [], trainer("shard_data", max_epochs=1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for count in (1, 3, 0):
            if count or kind == "lists":
                found.append(run.test(Evaluated(), data(count)))
            metrics = run.fit(Evaluated(), own(1, 1), data(count)).metrics
            found.append({name: metrics.get(name) for name in ("value", "of_1")})
    return found, [str(each.message) for each in said]


@pytest.mark.parametrize("kind", ["shared out", "lists", "without a length"])
def test_evaluation_with_fewer_samples_than_ranks_has_the_same_numbers_everywhere(kind):
    (first, said), (second, _) = values_of(run_ranks(few_samples, 2, kind))
    assert first == second
    one, three = {"value": 1.0, "of_0": 1.0}, {"value": 2.0, "of_0": 1.0, "of_1": 2.0}
    assert first[:4] == [one, {"value": 1.0, "of_1": None}, three, {"value": 2.0, "of_1": 2.0}]
    if kind == "lists":
        assert first[4:] == [{}, {"value": None, "of_1": None}]
        assert said == ["the validation data has no batches: nothing is validated"]


class ByHand(Probe):
    automatic_optimization = False

    def training_step(self, batch, loop):
        (optimizer,) = loop.optimizers
        optimizer.zero_grad()
        (batch * self.w).backward()
        optimizer.step()


def by_hand():
    module = ByHand()
    trainer().fit(module, own(1, 2, 3, 4))
    return module.w.item()


def test_steps_by_hand_are_reduced():
    assert values_of(run_ranks(by_hand, 2)) == [-(1.5 + 3.5)] * 2


class Parts(Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(1, 1), nn.Linear(1, 1)

    def training_step(self, batch):
        return self.used(batch.reshape(1, 1)).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def unused(find):
    module = Parts()
    trainer(find_unused_parameters=find).fit(module, own(1, 2))
    return module.used.weight.item()


def test_unused_parameters_are_an_error_at_once_or_looked_for():
    for outcome in run_ranks(unused, 2, False):
        assert "set find_unused_parameters=True, or freeze those" in outcome.error
        assert "at epoch 0, batch 0" in outcome.error
    found = values_of(run_ranks(unused, 2, True))
    assert found[0] == found[1]


class Thaws(Parts):
    def training_step(self, batch):
        return (self.used(batch.reshape(1, 1)) + self.unused(batch.reshape(1, 1))).sum()


class Thaw(Plugin):
    name = "thaw"
    after = ("strategy",)

    @hookimpl
    def before_epoch(self, loop):
        loop.module.unused.requires_grad_(loop.epoch == 1)


def thaw():
    module = Thaws()
    before = module.unused.weight.item()
    trainer("duration", Thaw(), max_epochs=2).fit(module, own(1, 2))
    return module.unused.weight.item(), before


def test_what_requires_a_gradient_may_change_from_epoch_to_epoch():
    (first, before), (second, _) = values_of(run_ranks(thaw, 2))
    assert first == second == pytest.approx(before - 0.1 * 1.5)


def scheduled():
    class Scheduled(Probe):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.1)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    run = trainer()
    run.fit(Scheduled(), own(*range(20)))
    (schedule,) = run.loop.schedules
    return schedule.scheduler.last_epoch, schedule.scheduler.get_last_lr()[0], run.loop.global_step


def test_c87_schedules_step_once_for_all_ranks():
    assert values_of(run_ranks(scheduled, 2)) == [(10, pytest.approx(1e-3), 10)] * 2


def constant():
    class Constant(Probe):
        def training_step(self, batch, batch_idx):
            return torch.tensor(0.0) if rank() == 1 and batch_idx == 1 else super().training_step(batch)

    trainer(accumulate_grad_batches=2).fit(Constant(), own(*range(10)))


def test_c83_a_loss_without_a_graph_on_one_rank_ends_both():
    first, second = run_ranks(constant, 2)
    assert "the loss needs no gradient" in second.error
    assert "the first error was on rank 1: ValueError: the loss needs no gradient" in first.error


def uneven():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = trainer(accumulate_grad_batches=2)
        run.fit(Probe(), own(*range(9)))
    return run.loop.total_batches, run.loop.global_step, [str(each.message) for each in caught if "rank" in str(each)]


def test_c83_uneven_data_is_cut_to_the_shortest_and_it_is_said_which():
    first, second = values_of(run_ranks(uneven, 2))
    assert first[:2] == second[:2] == (4, 2)
    assert "the data to fit: rank 1 has 4 batches and rank 0 has 5" in first[2][0]
    assert second[2] == []


class Lying(list):
    """Says by ``len()`` that there are so many batches."""

    says = 10

    def __len__(self):
        return self.says


class Played(Probe):
    def training_step(self, batch):
        made_at, batch = batch
        assert made_at == self.global_step
        return super().training_step(batch)

    def play(self, count):
        for number in range(count):
            yield self.global_step, torch.tensor(1.0 + 2 * number + rank())


def without_or_with_a_wrong_length():
    found = []
    module = Played()
    run = trainer(accumulate_grad_batches=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run.fit(module, module.play(5 + rank()))  # rank 1 has one more, which is left out
        found.append((module.w.item(), run.loop.global_step, len(caught)))
        for says in (10, 4):
            module, data = Probe(), Lying(own(*range(1, 13 if says == 4 else 11)))
            data.says = says
            run.fit(module, data)
            found.append((module.w.item(), run.loop.global_step, len(caught)))
    return found


def test_data_without_a_length_or_with_a_wrong_one_comes_to_what_one_process_comes_to():
    mean = [float(2 * number + 1.5) for number in range(5)]  # of the two ranks' batches 1 + 2n and 2 + 2n
    whole = -((mean[0] + mean[1]) / 2 + (mean[2] + mean[3]) / 2 + mean[4])
    first, second = values_of(run_ranks(without_or_with_a_wrong_length, 2))
    assert first == [(whole, 3, 0), (whole, 3, 1), (whole + mean[4], 2, 2)]
    assert second == [(whole, 3, 1), (whole, 3, 2), (whole + mean[4], 2, 3)]


def ends_too_early():
    from lightloop_plugins import lockstep

    lockstep.PATIENCE = 1.0
    trainer().fit(Probe(), Lying(own(*range(10 - 2 * rank()))))


def test_data_that_ends_before_its_length_on_one_rank_alone_is_an_error():
    first, second = run_ranks(ends_too_early, 2)
    said = (
        "the training data of rank 1 ended after 4 batches and says by len() that it has 10: either all ranks end there"
    )
    assert said in second.error
    assert first.error


def none_on_one():
    class Sometimes(Probe):
        def training_step(self, batch, batch_idx):
            return None if rank() == 1 and batch_idx == 2 else super().training_step(batch)

    trainer().fit(Sometimes(), own(*range(10)))


def test_c85_no_loss_on_one_rank_is_an_error_that_names_the_rule():
    first, second = run_ranks(none_on_one, 2)
    assert second.error.startswith(
        "ValueError: there is no loss on rank 1 (training_step returned None): with 2 processes each must train on each batch"
    )
    assert "Set skip_together=True" in second.error
    assert "the first error was on rank 1" in first.error
    assert max(first.seconds, second.seconds) < 60, "nobody waited for the time-out"


class Cut(Plugin):
    name = "cut"

    @hookimpl
    def split_batch(self, loop):
        return [loop.batch] * (2 + (loop.world.rank == 1 and loop.batch_idx == 1))


def cut_differently():
    trainer(Cut()).fit(Probe(), own(*range(10)))


def test_batches_that_are_cut_into_other_numbers_of_pieces_are_an_error():
    for rank, outcome in enumerate(run_ranks(cut_differently, 2)):
        said = f"the batch of rank {rank} is cut into {2 + rank} pieces, and of other ranks into 2 to 3"
        assert said in outcome.error


def within():
    """In a process group of the user's own, which is there for other purposes too."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    module = Probe()
    for _ in range(2):
        trainer().fit(module, own(1, 2))
    number = torch.tensor(float(dist.get_rank()))
    dist.all_reduce(number)
    dist.destroy_process_group()
    return module.w.item(), number.item()


def test_a_process_group_of_the_users_is_used_and_left():
    assert values_of(run_ranks(within, 2)) == [(-3.0, 1.0)] * 2


def killed():
    class Dies(Probe):
        def training_step(self, batch, batch_idx):
            if rank() == 1 and batch_idx == 2:
                os.kill(os.getpid(), 9)
            return super().training_step(batch)

    trainer().fit(Dies(), own(*range(10)))


def test_a_rank_that_is_killed_ends_the_other():
    first, second = run_ranks(killed, 2)
    assert second.status == -9
    assert first.status == 1
    assert "another rank is gone" in first.error
    assert first.seconds < 60, "it did not wait for the time-out"


def caught(marker):
    """The rank that fails goes on living, and holds its error until the other one has ended."""

    class Fails(Probe):
        def training_step(self, batch, batch_idx):
            if rank() == 1 and batch_idx == 2:
                raise ValueError("rotten luck")
            return super().training_step(batch)

    try:
        trainer().fit(Fails(), own(*range(10)))
    except (ValueError, RuntimeError) as error:
        if rank() == 0:
            marker.touch()
        until = time.monotonic() + 50  # sooner than the other one would have waited long enough
        while not marker.exists() and time.monotonic() < until:
            time.sleep(0.01)
        return marker.exists(), type(error).__name__
    return None


def test_an_error_that_is_caught_ends_the_others_before_its_process_ends(tmp_path):
    assert values_of(run_ranks(caught, 2, tmp_path / "marker")) == [(True, "RuntimeError"), (True, "ValueError")]


def wide():
    class Wide(Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(2 + rank()))

        def training_step(self, batch):
            return self.w.sum() * batch

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1.0)

    trainer().fit(Wide(), own(1, 2))


def test_modules_that_differ_between_ranks_are_refused():
    for outcome in run_ranks(wide, 2):
        assert "the module is another one on rank 1 than on rank 0: it has ('w', (3,)" in outcome.error


def weights_differ():
    class Random(Probe):
        def __init__(self):
            super().__init__()
            with torch.no_grad():
                self.w.fill_(5.0 + rank())

    module = Random()
    trainer().fit(module, own(1, 2))
    return module.w.item()


def test_all_ranks_begin_with_the_weights_of_rank_0():
    assert values_of(run_ranks(weights_differ, 2)) == [5.0 - 1.5] * 2


class Reads(Module):
    """Notes which samples it saw, by epoch."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))
        self.seen, self.validated = {}, []

    def training_step(self, batch, epoch):
        self.seen.setdefault(epoch, []).append(batch[0].tolist())
        return self.w * 0

    def validation_step(self, batch):
        self.validated.append(batch[0].tolist())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


class EveryOther(Sampler):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(range(0, self.count, 2))

    def __len__(self):
        return self.count // 2


class Endless(Sampler):
    def __iter__(self):
        while True:
            yield 0


class OwnOrder(EveryOther):
    def __iter__(self):
        return iter([number + rank() for number in super().__iter__()])


def sampled(kind, **options):
    data = TensorDataset(torch.arange(10))
    loaders = {
        "in order": lambda: DataLoader(data, batch_size=2),
        "shuffled": lambda: DataLoader(data, batch_size=2, shuffle=True),
        "uneven": lambda: DataLoader(TensorDataset(torch.arange(9)), batch_size=2),
        "uneven, dropping": lambda: DataLoader(TensorDataset(torch.arange(9)), batch_size=2, drop_last=True),
        "weighted": lambda: DataLoader(data, batch_size=2, sampler=WeightedRandomSampler([1.0] * 9 + [0.0], 10)),
        "of the user's": lambda: DataLoader(data, batch_size=1, sampler=EveryOther(10)),
        "batches": lambda: DataLoader(data, batch_sampler=BatchSampler(range(10), 2, False)),
        "endless": lambda: DataLoader(data, batch_size=1, sampler=Endless()),
        "of each rank's own": lambda: DataLoader(data, batch_size=1, sampler=OwnOrder(10)),
    }
    module = Reads()
    sharing = () if options else ("shard_data",)
    run = trainer(*sharing, "duration", max_epochs=2, seed=1, num_sanity_val_steps=0, **options)
    run.fit(module, loaders[kind](), DataLoader(TensorDataset(torch.arange(5)), batch_size=2))
    return module.seen[0], module.seen[1], module.validated[: len(module.validated) // 2]


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        ("in order", [[0, 2], [4, 6], [8]], [[1, 3], [5, 7], [9]]),
        ("uneven", [[0, 2], [4, 6], [8]], [[1, 3], [5, 7], [0]]),
        ("uneven, dropping", [[0, 2], [4, 6]], [[1, 3], [5, 7]]),
        ("of the user's", [[0], [4], [8]], [[2], [6], [0]]),
        ("batches", [[0, 1], [4, 5]], [[2, 3], [6, 7]]),
    ],
)
def test_samples_are_shared_out(kind, first, second):
    (one, _, validated_one), (two, _, validated_two) = values_of(run_ranks(sampled, 2, kind))
    assert (one, two) == (first, second)
    assert (validated_one, validated_two) == ([[0, 2], [4]], [[1, 3]]), "each exactly once"


@pytest.mark.parametrize("kind", ["shuffled", "weighted"])
def test_random_orders_are_shared_and_new_in_each_epoch(kind):
    (one, one_later, _), (two, two_later, _) = values_of(run_ranks(sampled, 2, kind))
    assert one != one_later
    assert two != two_later
    if kind == "shuffled":
        assert sorted(chain(*one, *two)) == sorted(chain(*one_later, *two_later)) == list(range(10))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("endless", "Endless has no length, so that it cannot be shared out among 2 ranks"),
        ("of each rank's own", "OwnOrder gives another order on each rank"),
    ],
)
def test_samplers_that_cannot_be_shared_out_are_refused(kind, said):
    for outcome in run_ranks(sampled, 2, kind):
        assert said in outcome.error


def left_alone():
    return sampled("of each rank's own", use_distributed_sampler=False)[0]


def test_samplers_that_know_their_rank_are_left_alone():
    assert values_of(run_ranks(left_alone, 2)) == [[[i] for i in range(0, 10, 2)], [[i] for i in range(1, 10, 2)]]


def four(stop):
    from lightloop.testing.accelerator_runs import Run, interrupted, train

    run = Run({"strategy": "ddp", "ddp_timeout": 60.0}, {"max_epochs": 2}, ranks=4, plugins=("duration",))
    return interrupted(run, stop) if stop else train(run)


def test_four_ranks_resume_to_the_bit(tmp_path):
    whole = values_of(run_ranks(four, 4, ""))
    resumed = values_of(run_ranks(four, 4, str(tmp_path)))
    for each, other in zip(whole, resumed, strict=True):
        torch.testing.assert_close(each["weights"], other["weights"], rtol=0, atol=0)


@pytest.mark.parametrize(
    "options", [{}, {"strategy": "ddp"}, {"strategy": "auto"}, {"strategy": "dp"}, {"strategy": False}]
)
def test_one_process_is_left_alone(options):
    module = Probe()
    run = Trainer(["-*"], **options)
    run.fit(module, [torch.tensor(1.0)])
    assert module.w.item() == -1.0
    assert run.loop.world.size == 1


def test_dp_is_for_one_device():
    with pytest.raises(ValueError, match="strategy='dp' runs one process on one device, and there are 2 devices"):
        Trainer(["-*"], strategy="dp", devices=2).fit(Probe(), [torch.tensor(1.0)])
