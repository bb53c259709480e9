"""A worker is killed under horovodrun's elastic mode, and training goes on without it."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("elastic_worker.py")


def number_in(path):
    return int(path.read_text()) if path.exists() and path.read_text() else 0


@pytest.mark.horovod
@pytest.mark.processes
def test_training_goes_on_from_a_checkpoint_when_a_worker_is_killed(tmp_path):
    (tmp_path / "hosts.sh").write_text(
        "#!/bin/sh\nprintf 'localhost:1\\n127.0.0.1:1\\n'\n"
    )  # two names: a lost host is shunned
    (tmp_path / "hosts.sh").chmod(0o755)
    command = [sys.executable, Path(sys.executable).parent / "horovodrun", "--gloo", "-np", "2", "--min-np", "1"]
    command += ["--max-np", "2", "--host-discovery-script", tmp_path / "hosts.sh", sys.executable, "-u", WORKER]
    log = tmp_path / "log"
    environ = {**os.environ, "WORK": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with open(log, "w") as output:
        launcher = subprocess.Popen(list(map(str, command)), env=environ, stdout=output, stderr=output)
    try:
        until = time.monotonic() + 120
        while number_in(tmp_path / "step") < 5 and launcher.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        os.kill(number_in(tmp_path / "pid.127.0.0.1"), signal.SIGKILL)
        status = launcher.wait(120)
    finally:
        launcher.terminate()
    text = log.read_text()
    assert status == 0, text
    begun = re.findall(r"rank (\d) of (\d) begins at step (\d+)", text)
    assert sorted(begun[:2]) == [("0", "2", "0"), ("1", "2", "0")], text
    assert begun[-1][1] == "1", text
    assert int(begun[-1][2]) >= 4, text
    assert "rank 0 of 1 ended finished at step 30" in text
