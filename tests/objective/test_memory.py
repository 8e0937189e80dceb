"""What is free: the least of what the machine has and what its control groups allow."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from spiritlevel.base import memory

GIB = 2**30


def system(root: Path, **files: str) -> Path:
    """A tree of the files in which a system says what is free."""
    places = {
        "meminfo": "proc/meminfo",
        "own": "proc/self/cgroup",
        "most": "sys/fs/cgroup/{}memory.max",
        "now": "sys/fs/cgroup/{}memory.current",
        "stat": "sys/fs/cgroup/{}memory.stat",
        "old_most": "sys/fs/cgroup/memory/{}memory.limit_in_bytes",
        "old_now": "sys/fs/cgroup/memory/{}memory.usage_in_bytes",
        "old_stat": "sys/fs/cgroup/memory/{}memory.stat",
    }
    folder = files.pop("folder", "")
    for name, text in files.items():
        path = root / places[name].format(folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MACHINE = f"MemTotal:  99999999 kB\nMemAvailable: {8 * GIB // 1024} kB\n"


def test_a_machine_without_groups_says_what_is_available(tmp_path: Path) -> None:
    assert memory.host_bytes(system(tmp_path, meminfo=MACHINE)) == 8 * GIB


def test_a_container_allows_less_than_the_machine_has(tmp_path: Path) -> None:
    root = system(tmp_path, meminfo=MACHINE, most=f"{3 * GIB}\n", now=f"{2 * GIB}\n")
    assert memory.host_bytes(root) == GIB
    system(root, stat=f"anon 5\ninactive_file {GIB // 2}\n")  # can be dropped
    assert memory.host_bytes(root) == GIB + GIB // 2


def test_groups_without_a_limit_count_for_nothing(tmp_path: Path) -> None:
    root = system(tmp_path, meminfo=MACHINE, most="max\n", now=f"{2 * GIB}\n")
    assert memory.host_bytes(root) == 8 * GIB


@pytest.mark.parametrize("folder", ["", "user/job/"])
def test_the_group_of_the_process_counts_in_both_versions(tmp_path: Path, folder: str) -> None:
    own = "0::/user/job/step\n4:cpu,memory:/user/job/step\n"
    new = system(tmp_path / "v2", meminfo=MACHINE, own=own, folder=folder, most="900", now="300")
    assert memory.host_bytes(new) == 600
    old = {"old_most": "900", "old_now": "500", "old_stat": "total_inactive_file 50\n"}
    assert memory.host_bytes(system(tmp_path / "v1", own=own, folder=folder, **old)) == 450


def test_more_used_than_allowed_is_nothing_left(tmp_path: Path) -> None:
    root = system(tmp_path, meminfo=MACHINE, most="100", now="300")
    assert memory.host_bytes(root) == 0


def test_a_system_that_says_nothing_has_a_little(tmp_path: Path) -> None:
    assert memory.host_bytes(tmp_path) == memory.UNKNOWN_BYTES
    assert memory.free_bytes(torch.device("cpu")) > 0
