import os
from contextlib import suppress

os.environ["WANDB_MODE"] = "offline"
os.environ["LIGHTLOOP_LOCAL"] = "0"

import pytest
import wandb


@pytest.fixture(scope="session", autouse=True)
def service():
    """The process in which Weights & Biases does its work: started by the first run, it ends with the program."""
    wandb.setup(wandb.Settings(mode="offline"))
    yield
    with suppress(Exception):
        wandb.teardown()
