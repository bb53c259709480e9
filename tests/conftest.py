import os
import tempfile

# What runs leave behind goes to a folder that is gone afterwards; spawned processes inherit the name.
RUNS = tempfile.TemporaryDirectory(prefix="lightloop-runs-")
os.environ["LIGHTLOOP_RUNS"] = RUNS.name
