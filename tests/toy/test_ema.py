import torch

from lightloop import Trainer
from lightloop.testing import TinyClassifier, classification_batches
from lightloop_plugins.ema import EMA


def averages(accelerator, **options):
    torch.manual_seed(0)
    ema = EMA(decay=0.9, **options)
    Trainer(["-*", ema], accelerator=accelerator).fit(TinyClassifier(), classification_batches(3))
    return list(ema.average.values())


def test_the_average_may_be_kept_on_another_device(toy):
    on_host, beside, plain = averages("toy", device="cpu"), averages("toy"), averages("cpu")
    assert {each.device.type for each in on_host} == {"cpu"}
    assert {each.device for each in beside} == {toy}
    for one, other, third in zip(on_host, beside, plain, strict=True):
        assert torch.equal(one, third)
        assert torch.equal(other.cpu(), third)
