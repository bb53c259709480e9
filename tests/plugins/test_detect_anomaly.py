import pickle

import pytest
import torch

from lightloop import Trainer
from lightloop.testing import Probe, probe_batches


class RootOfLess(Probe):
    """Backward of a square root at 0 times 0 is NaN, while the loss is 0."""

    def training_step(self, batch):
        assert torch.is_anomaly_enabled() == self.expected
        return ((self.w * 0).sqrt() * 0).sum() if batch == 2 else batch * self.w


@pytest.fixture(autouse=True)
def _as_it_was():
    yield
    assert not torch.is_anomaly_enabled()
    assert torch.is_anomaly_check_nan_enabled()


@pytest.mark.filterwarnings("ignore:Error detected in:UserWarning")
def test_the_operation_is_named_and_the_setting_put_back():
    module = RootOfLess()
    module.expected = True
    with pytest.raises(RuntimeError, match="'SqrtBackward0' returned nan values"):
        Trainer(["-*"], detect_anomaly=True).fit(module, probe_batches())
    assert not torch.is_anomaly_enabled()


def test_off_by_default():
    module = RootOfLess()
    module.expected = False
    Trainer(["-*"], detect_anomaly=False).fit(module, probe_batches())
    assert module.w.isnan()


def test_put_back_after_a_run_that_ends_well_and_after_any_error():
    trainer = Trainer(["-*"], detect_anomaly=True)
    trainer.fit(Probe(), probe_batches())
    assert not torch.is_anomaly_enabled()

    class Broken(Probe):
        def training_step(self, batch):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer.fit(Broken(), probe_batches())
    assert not torch.is_anomaly_enabled()
    pickle.loads(pickle.dumps(trainer)).fit(Probe(), probe_batches())


def test_what_was_on_before_stays_on():
    torch.autograd.set_detect_anomaly(True, check_nan=False)
    try:
        Trainer(["-*"], detect_anomaly=True).fit(Probe(), probe_batches())
        assert (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()) == (True, False)
    finally:
        torch.autograd.set_detect_anomaly(False)
