"""What a step of SAM costs in gradient steps, next to pytorch_optimizer's and to plain SGD.

    SPIRITLEVEL_DATA=... python benchmarks/training.py [--device cuda] [--batch 128]

ResNet-20 on CIFAR-10 images, in training mode; one gradient step is zero_grad, forward, backward
and SGD with momentum. Rounds are taken in turn, so that a busy machine slows everyone alike, and on
a CPU its own seconds are counted, not those of the clock. A ratio is the median of the ratios of
the rounds; a fifth of them lies below `from`, and a fifth above `to`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from peers import timed as by_the_clock
from resnet20 import ResNet, cifar10
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel import training

Step = Callable[[], object]
RATE: dict[str, Any] = {"lr": 1e-3, "momentum": 0.9}
WARM = 2


def closure_of(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Step:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return closure


def plain(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), **RATE)
    closure: Any = closure_of(model, optimizer, x, y)
    return lambda: optimizer.step(closure)


def ours(**options: Any) -> Callable[..., Step]:
    def make(model: nn.Module, x: Tensor, y: Tensor) -> Step:
        kept = model if options.get("buffers", True) else None
        own = {name: value for name, value in options.items() if name != "buffers"}
        if own.get("adaptive") == "orbit":
            example = sl.Objective(model, (x[:8], y[:8]), F.cross_entropy)
            own["orbit"] = sl.symmetries(example)
        optimizer = training.SAM(model.parameters(), **RATE, model=kept, **own)
        closure = closure_of(model, optimizer, x, y)
        return lambda: optimizer.step(closure)

    return make


def theirs(adaptive: bool) -> Callable[..., Step]:
    from pytorch_optimizer import SAM  # type: ignore[import-not-found]

    def make(model: nn.Module, x: Tensor, y: Tensor) -> Step:
        optimizer = SAM(model.parameters(), torch.optim.SGD, adaptive=adaptive, **RATE)
        closure = closure_of(model, optimizer, x, y)

        def step() -> None:
            closure()
            optimizer.step(closure)

        return step

    return make


def contestants() -> dict[str, Callable[..., Step]]:
    found = {
        "SGD": plain,
        "SAM": ours(),
        "SAM, buffers left alone": ours(buffers=False),
        "SAM, every 5th step": ours(every=5),
        "SAM, adaptive by element": ours(adaptive="element"),
        "SAM, adaptive by filter": ours(adaptive="filter"),
        "SAM on the orbit": ours(adaptive="orbit"),
    }
    try:
        found["pytorch_optimizer's SAM"] = theirs(False)
        found["pytorch_optimizer's SAM, adaptive"] = theirs(True)
    except ImportError:
        print("pytorch_optimizer is not installed: we run alone")
    return found


def timed(device: str, step: Step) -> float:
    if device != "cpu":
        return by_the_clock(device, step)[0]
    begin = time.process_time()
    step()
    return time.process_time() - begin


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    x, y = (t.to(options.device) for t in cifar10(options.batch))
    steps = {}
    for name, make in contestants().items():
        torch.manual_seed(0)
        steps[name] = make(ResNet().to(options.device).train(), x, y)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for round_number in range(WARM + options.rounds):
        for name, step in steps.items():
            taken = timed(options.device, step)
            if round_number >= WARM:
                seconds[name].append(taken)
    print("| what | ms per step | gradient steps | from | to |\n|---|---|---|---|---|")
    for name, taken in seconds.items():
        ratios = sorted(a / b for a, b in zip(taken, seconds["SGD"], strict=True))
        low, high = ratios[len(ratios) // 5], ratios[-1 - len(ratios) // 5]
        middle = median(ratios)
        if "every" in name:  # steps differ: only their mean says something
            middle = low = high = sum(taken) / sum(seconds["SGD"])
        cells = f"{1e3 * median(taken):.1f} | {middle:.3f} | {low:.3f} | {high:.3f}"
        print(f"| {name} | {cells} |")


if __name__ == "__main__":
    main()
