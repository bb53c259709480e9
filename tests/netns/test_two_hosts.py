"""Two hosts with a network of their own between them, on which torchrun's agents find each other and start the ranks."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lightloop.testing.ranks import run_ranks, values_of
from tests.launched import train

ROOT = Path(__file__).parents[2]
HOSTS = {"a": "10.77.0.1", "b": "10.77.0.2"}
TIMEOUT = 180

pytestmark = pytest.mark.processes


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def hosts():
    """For each host its namespace, in which its name and the other's are known."""
    if not (shutil.which("ip") and shutil.which("unshare")):
        pytest.skip("there are no programs ip and unshare")
    names = {host: f"lightloop-{os.getpid()}-{host}" for host in HOSTS}
    link = {host: f"ll{os.getpid()}{host}" for host in HOSTS}
    folders = [Path("/etc/netns", name) for name in names.values()]
    try:
        made = [ip("netns", "add", name) for name in names.values()]
        if any(each.returncode for each in made):
            pytest.skip(f"network namespaces cannot be made here: {made[0].stderr.strip()}")
        for folder in folders:  # `ip netns exec` mounts what is in it over /etc
            folder.mkdir(parents=True)
            lines = [f"{address} host{host}" for host, address in HOSTS.items()]
            (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        ends = [["netns", names[host], "type", "veth"] for host in HOSTS]
        commands = [["link", "add", link["a"], *ends[0], "peer", "name", link["b"], *ends[1][:2]]]
        for host, address in HOSTS.items():
            inside = ["-n", names[host]]
            commands.append([*inside, "addr", "add", f"{address}/24", "dev", link[host]])
            commands += [[*inside, "link", "set", name, "up"] for name in ("lo", link[host])]
        for command in commands:
            done = ip(*command)
            assert done.returncode == 0, (command, done.stderr)
        yield {host: (names[host], link[host]) for host in HOSTS}
    finally:
        for name in names.values():
            for pid in ip("netns", "pids", name).stdout.split():
                os.kill(int(pid), signal.SIGKILL)
            ip("netns", "del", name)
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def launch(hosts, processes, config, *options):
    """Run the training function in ``processes`` processes on each host; the exit statuses and what was written."""
    agents = {}
    for host, (namespace, link) in hosts.items():
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", str(processes)]
        torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{HOSTS['a']}:29500", "--rdzv-id", "lightloop"]
        torchrun += ["--local-addr", HOSTS[host], *options, str(ROOT / "tests" / "launched.py"), json.dumps(config)]
        own = [
            "ip",
            "netns",
            "exec",
            namespace,
            "unshare",
            "--uts",
            "sh",
            "-c",
            f'hostname host{host}; exec "$@"',
            "sh",
        ]
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": link, "OMP_NUM_THREADS": "1"}
        log = open(f"{config['folder']}/log.{host}", "w")  # noqa: SIM115 - closed below
        agents[host] = (subprocess.Popen([*own, *torchrun], env=environ, stdout=log, stderr=log), log)
    try:
        statuses = [agent.wait(TIMEOUT) for agent, _ in agents.values()]
    finally:
        for agent, log in agents.values():
            agent.kill()
            agent.wait()
            log.close()
    return statuses, "".join(Path(log.name).read_text() for _, log in agents.values())


def alone(folder, processes):
    """What as many processes of one host come to."""
    folder.mkdir()
    return values_of(run_ranks(train, processes, {"folder": str(folder)}))[0]


def test_two_processes_on_each_host_train_together(hosts, tmp_path):
    folder = tmp_path / "two"
    folder.mkdir()
    statuses, log = launch(hosts, 2, {"folder": str(folder)})
    assert statuses == [0, 0], log
    found, expected = json.loads((folder / "outcome.json").read_text()), alone(tmp_path / "one", 4)
    assert (found["processes"], found["steps"]) == (expected["processes"], expected["steps"]) == (4, 9)
    for one, other in zip(found["weights"], expected["weights"], strict=True):
        torch.testing.assert_close(torch.tensor(one), torch.tensor(other), atol=1e-6, rtol=0)


def test_a_process_that_is_killed_on_one_host_is_started_again_with_the_rest_and_goes_on_to_the_same_bits(
    hosts, tmp_path
):
    folder = tmp_path / "two"
    folder.mkdir()
    config = {"folder": str(folder), "kill": str(tmp_path / "killed")}
    statuses, log = launch(hosts, 1, config, "--max-restarts", "1", "--monitor-interval", "0.5")
    assert statuses == [0, 0], log
    assert (tmp_path / "killed").exists()
    assert json.loads((folder / "outcome.json").read_text()) == alone(tmp_path / "one", 2)
