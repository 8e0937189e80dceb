"""Two hundred kills of drivers, of workers and on a Ray cluster: nothing lost, doubled, changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
HERE_KILLS, POOLED_KILLS, WORKER_KILLS = 150, 12, 30
RAY_KILLS = 6, 1, 2  # workers, nodes, drivers


def script(name: str, *given: Any) -> tuple[dict[str, Any], str]:
    """What it found, and all else that was printed."""
    done = subprocess.run(
        [sys.executable, HERE / name, *map(str, given)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    *before, found = done.stdout.splitlines()
    return json.loads(found), "\n".join(before) + done.stderr


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_killed_drivers(tmp_path: Path, seed: int) -> None:
    kills = HERE_KILLS // 3
    found, said = script("dying.py", "drivers", tmp_path, kills, seed)
    assert found["wrong"] == []
    assert (found["killed"], said) == (kills, "")
    assert kills / 4 < found["by time"] < 3 * kills / 4, "the others died at a statement of SQLite"
    assert found["studies"] >= 4, "each kind of study once"


def test_killed_drivers_of_a_pool(tmp_path: Path) -> None:
    found, said = script("dying.py", "pooled", tmp_path, POOLED_KILLS, 4)
    assert found["wrong"] == []
    assert (found["killed"], said) == (POOLED_KILLS, "")


def test_killed_workers_of_a_pool(tmp_path: Path) -> None:
    found, said = script("dying.py", "workers", tmp_path, WORKER_KILLS, 5)
    assert found["wrong"] == []
    assert found["killed"] >= WORKER_KILLS
    assert said == ""


def test_kills_on_a_cluster(tmp_path: Path) -> None:
    """Workers, a node with what runs on it, and drivers; the last one finds the rest to do."""
    pytest.importorskip("ray", reason="Ray is not installed")
    found, said = script("dying_ray.py", tmp_path, 6)
    assert found["wrong"] == []
    assert (found["workers"], found["nodes"], found["drivers"]) == RAY_KILLS
    assert said == "", "Ray is silent about them"
