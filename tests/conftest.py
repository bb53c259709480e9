import os
import tempfile

from hypothesis import settings

# What runs leave behind goes to a folder that is gone afterwards; spawned processes inherit the name.
RUNS = tempfile.TemporaryDirectory(prefix="lightloop-runs-")
os.environ["LIGHTLOOP_RUNS"] = RUNS.name

# Machines are shared and slow at times: no example is failed for its time. The same examples on every run.
settings.register_profile("lightloop", deadline=None, derandomize=True)
settings.load_profile("lightloop")
