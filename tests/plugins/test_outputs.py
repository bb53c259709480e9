import pytest
import torch

from lightloop import Callback, Plugin, Trainer, hookimpl
from lightloop.testing import Probe, TinyClassifier, classification_batches, probe_batches

ONLY = {"plugins": ["-*", "outputs", "callbacks", "validation", "log_every"]}


class Magic(Probe):
    """Returns what the argument says beside the loss."""

    def __init__(self, **extra):
        super().__init__()
        self.extra = extra

    def training_step(self, batch, batch_idx):
        return {"loss": batch * self.w, **{key: value(batch) for key, value in self.extra.items()}}


def fit(module, batches=2, **options):
    user = Trainer(**ONLY, **options)
    return user, user.fit(module, probe_batches(batches))


def test_the_magic_keys_are_logged_and_shown():
    module = Magic(
        log=lambda batch: {"x": batch, "both": batch},
        progress_bar=lambda batch: {"bar": 2 * batch, "both": batch},
        accuracy=lambda batch: batch / 4,
        hiddens=lambda batch: batch,
    )
    user, result = fit(module)
    assert result.metrics == {"x": 2.0, "both": 2.0, "bar": 4.0, "accuracy": 0.5, "loss": -2.0}
    assert user.progress_bar_metrics == {"bar": 4.0, "both": 2.0}


def test_clashing_names_do_not_crash():
    module = Magic(log=lambda batch: {"loss": batch}, progress_bar=lambda batch: {"loss": batch}, step=lambda batch: 7)
    assert fit(module)[1].metrics == {"loss": 2.0, "step": 7.0}


def test_what_is_no_number_is_left_alone():
    module = Magic(
        log=lambda batch: {"x": batch},
        logits=lambda batch: torch.ones(3),
        name=lambda batch: "a",
        ok=lambda batch: True,
    )
    assert set(fit(module)[1].metrics) == {"x", "loss"}


def test_without_the_magic_keys_nothing_is_looked_into():
    user, result = fit(Magic(accuracy=lambda batch: batch))
    assert result.metrics == {}
    assert user.loop.hook._has_left(user.plugin("outputs"), "after_forward")


def test_it_can_be_said_to_look_always_or_never():
    assert fit(Magic(accuracy=lambda batch: batch), log_outputs=True)[1].metrics == {"accuracy": 2.0, "loss": -2.0}
    assert fit(Magic(log=lambda batch: {"x": batch}), log_outputs=False)[1].metrics == {}


def test_a_log_that_is_no_mapping_is_an_error():
    with pytest.raises(TypeError, match="'log' in what a step returns must be a mapping"):
        fit(Magic(log=lambda batch: 3))


def collecting(base, *ends):
    """A subclass whose ``ends`` keep what they are given in ``outputs``."""
    return type("Collecting", (base,), {end: lambda self, outputs: setattr(self, "outputs", outputs) for end in ends})


def test_training_epoch_end_has_one_output_per_batch_detached():
    module = collecting(Probe, "training_epoch_end")()
    fit(module, 3)
    assert [set(output) for output in module.outputs] == [{"loss"}] * 3
    assert [float(output["loss"]) for output in module.outputs] == [0.0, -2.0, -9.0]
    assert not any(output["loss"].requires_grad for output in module.outputs)


class Pieces(Plugin):
    """Cuts a batch into as many pieces as its number says."""

    name = "pieces"

    @hookimpl
    def split_batch(self, loop):
        return [loop.batch] * int(loop.batch)


def test_several_optimizers_and_pieces_are_axes():
    class Two(Probe):
        def __init__(self):
            super().__init__()
            self.v = torch.nn.Parameter(torch.zeros(()))

        def training_step(self, batch, batch_idx, optimizer_idx):
            return {"loss": batch.sum() * (self.w, self.v)[optimizer_idx], "at": (optimizer_idx, self.loop.piece_idx)}

        def configure_optimizers(self):
            return [torch.optim.SGD([self.w], 1.0), torch.optim.SGD([self.v], 1.0)]

    module = collecting(Two, "training_epoch_end")()
    fit(module)
    assert [[output["at"] for output in batch] for batch in module.outputs] == [[(0, 0), (1, 0)]] * 2

    module = collecting(Two, "training_epoch_end")()
    pieces = ["-*", "outputs", Pieces()]
    Trainer(pieces).fit(module, probe_batches(2))
    at = [[[output["at"] for output in splits] for splits in batch] for batch in module.outputs]
    assert at == [[[(0, 0)], [(1, 0)]], [[(0, 0), (0, 1)], [(1, 0), (1, 1)]]]

    class One(Probe):
        def training_step(self, batch):
            return {"loss": batch.sum() * self.w, "at": self.loop.piece_idx}

    module = collecting(One, "training_epoch_end")()
    Trainer(pieces).fit(module, probe_batches(2))
    assert [[output["at"] for output in batch] for batch in module.outputs] == [[0], [0, 1]]


def test_none_is_not_among_the_outputs():
    class Sometimes(Probe):
        def training_step(self, batch, batch_idx):
            return None if batch_idx == 1 else super().training_step(batch)

    module = collecting(Sometimes, "training_epoch_end")()
    fit(module, 3)
    assert len(module.outputs) == 2


def test_a_returned_mapping_is_logged_for_the_epoch():
    class Ends(Probe):
        def training_epoch_end(self, outputs):
            return {"log": {"mean": sum(output["loss"] for output in outputs) / len(outputs)}, "seen": len(outputs)}

    steps = []

    class Hears(Callback):
        def on_train_epoch_end(self, trainer, module):
            steps.append((trainer.callback_metrics["mean"], trainer.callback_metrics["seen"], trainer.global_step))

    result = fit(Ends(), 2, max_epochs=2, callbacks=[Hears()])[1]
    assert steps == [(-1.0, 2.0, 2), (-5.5, 2.0, 4)]
    assert (result.metrics["mean"], result.global_step) == (-5.5, 4)


@pytest.mark.parametrize("end", ["validation_epoch_end", "validation_end"])
def test_validation_epoch_end_makes_the_metrics(end):
    class Evaluated(TinyClassifier):
        def validation_step(self, batch, batch_idx):
            return {"val_loss": torch.tensor(float(batch_idx))}

    def finish(self, outputs):
        mean = torch.stack([output["val_loss"] for output in outputs]).mean()
        return {"val_loss": mean, "log": {"logged": mean}, "progress_bar": {"shown": 3 * mean}}

    module = type("Ends", (Evaluated,), {end: finish})()
    user = Trainer(**ONLY)
    assert user.validate(module, classification_batches(3)) == {"val_loss": 1.0, "logged": 1.0, "shown": 3.0}
    assert user.progress_bar_metrics == {"shown": 3.0}
    result = user.fit(module, classification_batches(2), classification_batches(3))
    assert result.metrics["val_loss"] == 1.0


def test_several_loaders_give_a_list_each():
    class Evaluated(TinyClassifier):
        def test_step(self, batch, batch_idx, dataloader_idx):
            return dataloader_idx, batch_idx

    module = collecting(Evaluated, "test_epoch_end")()
    Trainer(**ONLY).test(module, [iter(classification_batches(1)), iter(classification_batches(2))])
    assert module.outputs == [[(0, 0)], [(1, 0), (1, 1)]]


def test_magic_keys_of_validation_steps_are_means_over_the_pass():
    class Evaluated(TinyClassifier):
        def validation_step(self, batch, batch_idx):
            return {"log": {"index": batch_idx}, "twice": 2.0 * batch_idx}

    assert Trainer(**ONLY).validate(Evaluated(), classification_batches(3)) == {"index": 1.0, "twice": 2.0}


def test_a_replay_logs_nothing():
    class Replayed(Magic):
        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters(), max_iter=3)

        def training_step(self, batch, batch_idx):
            self.calls += 1
            return {"loss": (self.w - batch) ** 2, "log": {"calls": self.calls}, "extra": self.calls}

        def training_epoch_end(self, outputs):
            self.outputs = outputs

    module = Replayed()
    module.calls = 0
    result = fit(module, 1)[1]
    assert module.calls > 1
    assert (result.metrics["calls"], result.metrics["extra"], len(module.outputs)) == (1.0, 1.0, 1)
