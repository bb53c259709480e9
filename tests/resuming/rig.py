"""Resume runs of a scenario at every boundary."""

import torch

from lightloop import Trainer
from lightloop.testing.resuming import Resuming
from tests.resuming.scenarios import EPOCHS, LOADERS, MODULES, batches

QUIET = ["-progress", "-model_summary"]
UNSTEADY = ("*throughput/*", "files.metrics.*.device*", "*device*/*", "*memory/*")


def resuming(folder, options, module="Net", loader="list", plugins=(), kind=Resuming):
    """The machine for a module and a loader, both by name, with the given keywords of the Trainer."""

    def make_module():
        torch.manual_seed(0)
        return MODULES[module]()

    def make_trainer(witness, placed):
        listed = [each() if callable(each) else each for each in plugins]
        keywords = {"max_epochs": EPOCHS, **options, **placed}
        return Trainer([witness, *QUIET, *listed, *keywords.pop("plugins", [])], **keywords)

    sequences = module == "Sequences"
    return kind(
        folder,
        make_trainer,
        make_module,
        lambda: (LOADERS["sequences" if sequences else loader](), batches(1, seed=1)),
        UNSTEADY,
    )
