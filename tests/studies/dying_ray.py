"""A study on a Ray cluster of two nodes whose workers, node and drivers are killed.

As a script, it prints what came out. Drivers are forked before Ray is started, and wait.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import dying
import torch
from ray.cluster_utils import Cluster

SLOW = 120.0  # seconds after which nothing comes any more
NODE: dict[str, Any] = {
    "num_cpus": 1,
    "include_dashboard": False,
    "object_store_memory": 80_000_000,
}


class Waiting:
    """A driver that begins when it is told where Ray is."""

    def __init__(self, course: dying.Course, **options: Any) -> None:
        take, self.give = os.pipe()
        self.pid = dying.forked(lambda: self._drive(course, take, **options))
        os.close(take)

    def _drive(self, course: dying.Course, take: int, **options: Any) -> None:
        os.close(self.give)
        address = os.read(take, 100).decode()
        if address:  # else it is not needed
            course.run(course.store, engine="ray", ray_address=address, **options)

    def begin(self, address: str) -> None:
        os.write(self.give, address.encode())


def at_work(cluster: Cluster) -> list[int]:
    """The processes of all nodes that are at a job of a study."""
    found = []
    for node in cluster.list_all_nodes():
        raylet = node.all_processes["raylet"][0].process.pid
        with contextlib.suppress(OSError):
            threads = Path(f"/proc/{raylet}/task").glob("*/children")
            pids = {pid for one in threads for pid in one.read_text().split()}
            for pid in pids:
                with contextlib.suppress(OSError):
                    name = Path(f"/proc/{pid}/cmdline").read_bytes()
                    found += [int(pid)] if name.startswith(b"ray::_work") else []
    return found


def trained(course: dying.Course) -> int:
    """How many trainings have begun."""
    return len(course.log.read_text().splitlines()) if course.log.exists() else 0


def after(course: dying.Course, more: int) -> None:
    """Until so many more trainings have begun."""
    wanted, begin = trained(course) + more, time.monotonic()
    while trained(course) < wanted:
        assert time.monotonic() - begin < SLOW, "no training begins"
        time.sleep(0.01)


def kill_worker(cluster: Cluster, draws: random.Random) -> int:
    time.sleep(draws.uniform(0.0, 0.1))
    begin = time.monotonic()
    while not (known := at_work(cluster)):
        assert time.monotonic() - begin < SLOW, "no worker is at work"
        time.sleep(0.01)
    os.kill(draws.choice(known), signal.SIGKILL)
    return 1


def kill_driver(course: dying.Course, driver: Waiting, draws: random.Random) -> int:
    time.sleep(draws.uniform(0.0, 0.1))
    os.kill(driver.pid, signal.SIGKILL)
    if (code := dying.ended(driver.pid)) != -signal.SIGKILL:
        course.wrong.append(f"a driver ended with {code}")
    course.look()
    return 1


def course(folder: Path, seed: int) -> dict[str, Any]:
    draws, died = random.Random(seed), {"workers": 0, "nodes": 0, "drivers": 0}
    made = dying.Course("plain", folder / "0")
    made.uninterrupted()
    os.environ["TINY_LOG"], os.environ["TINY_NAP"] = str(made.log), "0.2"
    drivers = [Waiting(made), Waiting(made), Waiting(made, retry=True)]
    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    try:
        lost = cluster.add_node(**NODE)
        for place, driver in enumerate(drivers[:2]):
            driver.begin(str(cluster.address))
            after(made, 1)
            died["workers"] += kill_worker(cluster, draws)
            after(made, 1)
            if place:
                cluster.remove_node(lost, allow_graceful=False)
                cluster.add_node(**NODE)
                died["nodes"] += 1
                after(made, 1)
            died["workers"] += kill_worker(cluster, draws)
            after(made, 1)
            died["workers"] += kill_worker(cluster, draws)
            died["drivers"] += kill_driver(made, driver, draws)
        drivers[2].begin(str(cluster.address))
        if code := dying.ended(drivers[2].pid):
            made.wrong.append(f"the last driver ended with {code}")
    finally:
        cluster.shutdown()
    made.judged()
    return {**died, "wrong": made.wrong}


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)

    print(json.dumps(course(Path(sys.argv[1]), int(sys.argv[2]))))
