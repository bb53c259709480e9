"""What tests on XLA share: counters, and the contract in this very process."""

import traceback
from contextlib import contextmanager

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met

from lightloop.testing.accelerators import AcceleratorContract
from lightloop.testing.ranks import Outcome


class Counts:
    """What happened on the device inside of :func:`counted`."""

    compiled = executed = copied = read = 0

    def __repr__(self):
        return f"{vars(self)}"


@contextmanager
def counted():
    torch_xla.sync()
    xm.wait_device_ops()
    met.clear_all()
    counts = Counts()
    yield counts
    xm.wait_device_ops()
    for name, metric in (
        ("compiled", "CompileTime"),
        ("executed", "ExecuteTime"),
        ("copied", "TransferFromDeviceTime"),
    ):
        data = met.metric_data(metric)
        setattr(counts, name, data[0] if data else 0)
    counts.read = met.counter_value("aten::_local_scalar_dense") or 0


class InThisProcess(AcceleratorContract):
    tolerance = 2e-6
    precisions = (32,)  # a loop by hand in another one is compiled to other roundings

    def launch(self, function, *arguments):
        try:
            return [Outcome(value=function(*arguments), status=0)]
        except Exception as error:
            return [Outcome(error=f"{type(error).__name__}: {error}", status=1, trace=traceback.format_exc())]
