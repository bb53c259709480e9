"""Start ranks as horovodrun does, from a server of processes that has imported everything already."""

import multiprocessing
import os
from multiprocessing.forkserver import ensure_running

from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer

from lightloop.testing.ranks import run_ranks

NOT_ITS = ("LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")


def horovod_ranks(function, size, *arguments, timeout=60.0):
    """The outcome of ``function(*arguments)`` in each of ``size`` processes."""
    multiprocessing.set_forkserver_preload(["lightloop.testing.ranks", "horovod.torch", __name__])
    ensure_running()
    server = RendezvousServer(verbose=0)
    port = server.start()
    server.init(get_host_assignments(parse_hosts(f"localhost:{size}"), size))
    try:
        return run_ranks(as_rank, size, port, function, arguments, timeout=timeout)
    finally:
        server.stop()
        server._httpd.server_close()  # which it leaves to the garbage collector


def as_rank(port, function, arguments):
    rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    for name in NOT_ITS:
        os.environ.pop(name, None)
    os.environ.update(
        HOROVOD_RANK=rank,
        HOROVOD_SIZE=size,
        HOROVOD_LOCAL_RANK=rank,
        HOROVOD_LOCAL_SIZE=size,
        HOROVOD_CROSS_RANK="0",
        HOROVOD_CROSS_SIZE="1",
        HOROVOD_HOSTNAME="localhost",
        HOROVOD_GLOO_RENDEZVOUS_ADDR="127.0.0.1",
        HOROVOD_GLOO_RENDEZVOUS_PORT=str(port),
        HOROVOD_CONTROLLER="gloo",
        HOROVOD_CPU_OPERATIONS="gloo",
        HOROVOD_GLOO_IFACE="lo",
        HOROVOD_CYCLE_TIME="0.5",
    )
    return function(*arguments)
