"""Trainings that are killed at random moments: run as a script, it prints what came out as JSON.

A process that never differentiates forks the trainings, so that torch is imported once; autograd
does not survive a fork. One that is to be killed goes on for a few steps and waits there, so that
no machine is fast enough to end it.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # optimizers import it in their first step, and each child would
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from spiritlevel.results.data import plain
from spiritlevel.training import SAM, fit

KILLS, EPOCHS, STEPS = 5, 3, 20
FEW = EPOCHS * STEPS // (KILLS + 1)  # steps that a training which is to be killed can make
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "sam": lambda p: SAM(p, lr=0.1, momentum=0.9),
}


def trained(kind: str, path: Path, most: float = math.inf) -> None:
    """BatchNorm, dropout and a schedule, on tensors or (for Adam) on a loader that shuffles."""
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
    )
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(8 * STEPS, 8, generator=g), torch.randint(0, 3, (8 * STEPS,), generator=g)
    given: Any = (x, y)
    if kind == "adam":
        given = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    optimizer = OPTIMIZERS[kind](net.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    steps = itertools.count(1)

    def wait(*_: Any) -> None:
        while next(steps) > most:
            time.sleep(1.0)

    optimizer.register_step_pre_hook(wait)
    options = {"batch_size": 8, "schedule": schedule, "checkpoint": path, "every": 1, "stop": 0.0}
    found = fit(net, given, F.cross_entropy, optimizer, EPOCHS, **options)
    path.with_suffix(".json").write_text(json.dumps(plain(found.epochs)))


def started(kind: str, path: Path, most: float = math.inf) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            trained(kind, path, most)
            code = 0
        finally:
            os._exit(code)
    return child


def killed(kind: str, path: Path, draws: random.Random) -> bool:
    """Begin, or go on, and kill it some moments after it has written once; whether that hit."""
    before = path.stat().st_mtime_ns if path.exists() else 0
    child = started(kind, path, FEW)
    while not path.exists() or path.stat().st_mtime_ns == before:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        time.sleep(0.001)
    time.sleep(draws.uniform(0.0, 0.02))
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def step_of(path: Path) -> int:
    return torch.load(path, weights_only=True)["standing"]["step"]


def course(kind: str, folder: Path) -> dict[str, Any]:
    """One run that is killed five times and one that is not, and in what they differ."""
    path, whole, draws = folder / "killed.pt", folder / "whole.pt", random.Random()
    steps = [step_of(path) for _ in range(KILLS) if killed(kind, path, draws)]
    for one in (path, whole):
        assert os.waitpid(started(kind, one), 0)[1] == 0
    a, b = (torch.load(one, weights_only=True) for one in (path, whole))
    losses = [json.loads(one.with_suffix(".json").read_text()) for one in (path, whole)]
    for epoch in (e for one in losses for e in one):
        del epoch["seconds"]
    differ = [name for name in ("model", "optimizer", "schedule") if not alike(a[name], b[name])]
    return {"steps": steps, "differ": differ, "losses": losses}


def alike(a: Any, b: Any) -> bool:
    """Bit for bit."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(alike(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(alike, a, b))
    return a == b


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = {}
    for name in OPTIMIZERS:
        (home := Path(sys.argv[1]) / name).mkdir()
        found[name] = course(name, home)
    print(json.dumps(found))
