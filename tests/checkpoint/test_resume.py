"""Going on from any batch is the same to the bit as never having stopped."""

import functools

import pytest
import torch
from torch.utils.data import DataLoader

from lightloop import Trainer
from tests.checkpoint.rig import LOADERS, Net, Samples, outcome, stop, train, worker_noise


def assert_exact(tmp_path, make, places, **options):
    """Stopped at each of ``places`` and gone on with each time, a run is as if it had never been."""
    module, trainer = train(tmp_path / "whole", make, **options)
    trace, wanted = module.trace, outcome(module, trainer)
    seen, resume = [], None
    for at in (*places, None):
        module, trainer = train(tmp_path / "parts", make, [stop(at)], resume, **options)
        seen += module.trace
        resume = "auto"
    assert seen == trace
    got = outcome(module, trainer)
    for part in wanted:
        assert got[part] == wanted[part], part


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS.keys())
def test_k4_every_kind_of_loader_goes_on_exactly(tmp_path, make):
    length = len(list(make())) if make is not LOADERS["stream"] else 6
    assert_exact(tmp_path, make, [1, length - 1, length, length + 1, 2 * length + 2])


@pytest.mark.parametrize(("accumulate", "optimizers"), [(1, 1), (4, 2)])
def test_stopped_before_every_batch(tmp_path, accumulate, optimizers):
    assert_exact(
        tmp_path,
        LOADERS["plain"],
        range(1, 12),
        epochs=2,
        module=lambda: Net(optimizers),
        accumulate_grad_batches=accumulate,
        gradient_clip_val=0.5,
        val_check_interval=2,
    )


class Closure(Net):
    """Each step runs the batches of its window several times."""

    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)


def test_a_window_that_is_run_again_goes_on_exactly(tmp_path):
    """Killed with nothing, one, and three of the four batches of a window done."""
    assert_exact(tmp_path, LOADERS["resumable"], [4, 9], epochs=3, module=Closure, accumulate_grad_batches=4)
    assert_exact(tmp_path / "late", LOADERS["plain"], [7], epochs=3, module=Closure, accumulate_grad_batches=4)


@pytest.mark.torture
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_random_dataset_in_workers_goes_on_exactly(tmp_path, workers, persistent):
    make = functools.partial(worker_noise, workers, persistent=persistent)
    assert_exact(tmp_path, make, [3, 7], epochs=2)


def test_a_random_dataset_in_two_persistent_workers_goes_on_exactly(tmp_path):
    assert_exact(tmp_path, functools.partial(worker_noise, 2, persistent=True), [8], epochs=2)


def test_the_number_of_workers_does_not_matter(tmp_path):
    runs = [train(tmp_path / str(n), functools.partial(worker_noise, n), epochs=1) for n in (0, 1, 2)]
    assert runs[0][0].trace == runs[1][0].trace == runs[2][0].trace


def test_workers_of_a_plain_loader_go_on_in_order_and_say_what_is_not_exact(tmp_path):
    make = lambda: DataLoader(Samples(noise=False), 4, shuffle=True, num_workers=1)
    with pytest.warns(UserWarning, match="ResumableLoader have them the same"):
        assert_exact(tmp_path, make, [2], epochs=2)


def test_saving_changes_nothing(tmp_path):
    traces = []
    for number, options in enumerate(
        [{}, {"save_every": "1 epoch"}, {"async_save": True}, {"enable_checkpointing": False}]
    ):
        module, trainer = train(tmp_path / str(number), LOADERS["plain"], **options)
        traces.append((module.trace, outcome(module, trainer)))
    assert traces[0] == traces[1] == traces[2] == traces[3]


class WithState:
    """A loader that knows where it is; each pass is in another order."""

    def __init__(self):
        self.epoch = self.at = 0

    def __len__(self):
        return 6

    def __iter__(self):
        order = torch.randperm(6, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        data = Samples(noise=False)
        while self.at < 6:
            index = order[self.at]
            self.at += 1
            yield tuple((part := torch.as_tensor(each)).expand(2, *part.shape) for each in data[index])
        self.epoch, self.at = self.epoch + 1, 0

    def state_dict(self):
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state):
        self.epoch, self.at = state["epoch"], state["at"]


def test_a_loader_with_a_state_is_asked_for_it(tmp_path):
    assert_exact(tmp_path, WithState, [2, 6, 9])


def test_c93_skipping_reads_no_sample(tmp_path):
    data = Samples()
    make = lambda: DataLoader(data, 1, shuffle=True)
    train(tmp_path, lambda: DataLoader(Samples(), 1, shuffle=True), [stop(20)], epochs=1, module=Single)
    train(tmp_path, make, [stop(None)], resume="auto", epochs=1, module=Single)
    assert data.read == 3


class Single(Net):
    """Reads batches of one sample."""

    def __init__(self):
        super().__init__()
        self.body[1] = torch.nn.Identity()


def test_c27_the_rest_of_the_epoch_and_then_another_order(tmp_path):
    from torch.utils.data import RandomSampler

    orders = []
    for resume, at in ((None, 2), ("auto", 8), ("auto", None)):
        make = lambda: DataLoader(
            Samples(noise=False), 1, sampler=RandomSampler(range(6), generator=torch.Generator().manual_seed(0))
        )
        module, _ = train(tmp_path, make, [stop(at)], resume, epochs=2, module=Single)
        orders.append([index for _, _, (index,), _ in module.trace])
    whole, _ = train(tmp_path / "whole", make, epochs=2, module=Single)
    assert [*orders[0], *orders[1], *orders[2]] == [index for _, _, (index,), _ in whole.trace]
    assert [len(order) for order in orders] == [2, 6, 4]
    assert (
        sorted([*orders[0], *orders[1], *orders[2]][:6])
        == sorted([*orders[0], *orders[1], *orders[2]][6:])
        == list(range(6))
    )


def test_c23_from_the_end_of_an_epoch_the_next_one_follows(tmp_path):
    steps, batches, epochs = [], 0, []
    for limit in (1, 2, 3):
        module, trainer = train(tmp_path, lambda: list(DataLoader(Samples(False), 8)), resume="auto", epochs=limit)
        steps.append(trainer.loop.global_step)
        batches += len(module.trace)
        epochs += [epoch for epoch, batch, _, _ in module.trace if batch == 0]
    assert (steps, batches, epochs) == ([3, 6, 9], 9, [0, 1, 2])


def test_c15_the_first_resumed_update_has_the_schedules_rate(tmp_path):
    from lightloop.testing import Probe, probe_batches

    class Scheduled(Probe):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 10)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    options = {"checkpoint_dir": tmp_path, "plugins": ["-progress", "-model_summary"]}
    module = Scheduled()
    Trainer(max_steps=4, **options).fit(module, probe_batches())
    before = module.w.item()
    module = Scheduled()
    Trainer(max_steps=5, resume="auto", **options).fit(module, probe_batches())
    assert before - module.w.item() == pytest.approx(0.6 * 5)


def test_resuming_a_finished_run_trains_nothing(tmp_path):
    train(tmp_path, LOADERS["list"])
    module, trainer = train(tmp_path, LOADERS["list"], resume="auto")
    assert (module.trace, trainer.loop.epoch, trainer.loop.global_step) == ([], 3, 18)


def test_stopped_by_a_limit_inside_an_epoch_it_goes_on_exactly(tmp_path):
    whole, trainer = train(tmp_path / "whole", LOADERS["plain"], accumulate_grad_batches=2)
    wanted = outcome(whole, trainer)
    seen = []
    for resume, limit in ((None, 2), ("auto", 4), ("auto", -1)):
        module, trainer = train(
            tmp_path / "parts",
            LOADERS["plain"],
            resume=resume,
            max_steps=limit,
            accumulate_grad_batches=2,
            save_every=None,
        )
        seen += module.trace
    assert seen == whole.trace
    assert outcome(module, trainer) == wanted
