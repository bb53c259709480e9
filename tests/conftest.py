import gc
import os
import shutil
import signal
import tempfile

import pytest
from hypothesis import settings

from tests.folders import in_memory

# What runs leave behind goes to a folder that is gone afterwards; spawned processes inherit the name.
RUNS = tempfile.TemporaryDirectory(prefix="lightloop-runs-")
os.environ["LIGHTLOOP_RUNS"] = RUNS.name

# A shell lets its background jobs ignore Ctrl-C, and they their children; users' programs do not begin so.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Machines are shared and slow at times: no example is failed for its time. The same examples on every run.
settings.register_profile("lightloop", deadline=None, derandomize=True)
settings.load_profile("lightloop")

# `make without NAME=clip`: the tests of everything else, as if that feature's file and entry point were deleted. A test
# that asks for what is left out says so in its error and is passed over; whatever else fails, fails.
ABSENT = [name for name in os.environ.get("LIGHTLOOP_WITHOUT", "").split(",") if name]
collect_ignore_glob = [f"plugins/test_{name.replace('-', '_')}.py" for name in ABSENT]


@pytest.fixture
def tmp_path():
    path = in_memory()
    yield path
    shutil.rmtree(path, ignore_errors=True)


def pytest_collection_finish():
    """What is there when the tests begin stays: no collection of garbage looks through torch and thousands of tests."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if ABSENT and report.failed and "left out by LIGHTLOOP_WITHOUT" in report.longreprtext:
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1], f"asks for {' or '.join(ABSENT)}")
    return report
