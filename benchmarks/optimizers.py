"""Do flatness-seeking optimizers find flatter minima, with and without coordinates?

    SPIRITLEVEL_DATA=... python benchmarks/optimizers.py --device cuda --seeds 4 --json out.json

A small convolutional net on Fashion-MNIST, trained by each optimizer from the same initial weights
with the same batches, until the loss over the training data is at or under --stop. Then the test
accuracy, the largest eigenvalue and the trace of the Hessian, and the least Gauss-Newton norm and
trace over all rescalings that change no prediction, on the first --examples training images.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.training import SAM, EntropySGD, fit

BATCH, EPOCHS = 128, 60
MEASURES = {
    "hessian_spectral": "lambda max",
    "hessian_trace": "trace",
    "orbit_spectral": "least norm",
    "orbit_trace": "least trace",
}
BOTTOMS = {"hessian_spectral": "orbit_spectral", "hessian_trace": "orbit_trace"}
ACCURACY: Any = {"tol": 1e-2, "rtol": 0.05}
ONE_AT_A_TIME: Any = contextlib.nullcontext()
Make = Callable[[nn.Module], torch.optim.Optimizer]


def _entropy(model: nn.Module) -> torch.optim.Optimizer:
    # as its authors released it: 20 inner steps of 0.1 with momentum, and to their mean
    return EntropySGD(model.parameters(), version="released", lr=1.0)


OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9),
    "SAM": lambda m: SAM(m.parameters(), rho=0.05, lr=0.05, momentum=0.9),
    "ASAM": lambda m: SAM(m.parameters(), rho=0.5, adaptive=True, lr=0.05, momentum=0.9),
    "Entropy-SGD": _entropy,
    "Adam": lambda m: torch.optim.Adam(m.parameters(), lr=1e-3),
}


@dataclass(frozen=True)
class Run:
    """One trained network."""

    optimizer: str
    seed: int
    epochs: int
    loss: float
    accuracy: float
    seconds: float
    values: dict[str, float]
    errors: dict[str, float]


def net(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 49, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def fashion(device: str) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    with np.load(Path(os.environ["SPIRITLEVEL_DATA"]) / "fashion_mnist.npz") as arrays:
        train, test = (
            (
                torch.from_numpy(arrays[f"x_{part}"]).float()[:, None] / 255,
                torch.from_numpy(arrays[f"y_{part}"]).long(),
            )
            for part in ("train", "test")
        )
    return (train[0].to(device), train[1].to(device)), (test[0].to(device), test[1].to(device))


def _locked(lock: Any) -> None:
    global ONE_AT_A_TIME  # noqa: PLW0603
    ONE_AT_A_TIME = lock


def run(name: str, seed: int, options: argparse.Namespace) -> Run:
    torch.set_num_threads(1)
    (x, y), (test_x, test_y) = fashion(options.device)
    x, y = x[: options.train], y[: options.train]
    model = net(seed).to(options.device)
    history = fit(
        *(model, (x, y), F.cross_entropy, OPTIMIZERS[name](model), EPOCHS),
        **{"stop": options.stop, "seed": seed, "batch_size": BATCH},
    )
    with torch.no_grad():
        right = torch.cat([model(part).argmax(1) for part in test_x.split(2000)]) == test_y
    n = options.examples
    with ONE_AT_A_TIME:  # each takes as much of the memory as it finds free
        objective = sl.Objective(model, (x[:n], y[:n]), F.cross_entropy, device=options.device)
        found = sl.measure(objective, list(MEASURES), seed=seed, **ACCURACY)
        del objective
        if options.device == "cuda":
            torch.cuda.empty_cache()
    return Run(
        *(name, seed, len(history.epochs), float(history.epochs[-1].full or math.nan)),
        *(float(right.float().mean()), history.provenance["seconds"]),
        {m: found[m].value for m in MEASURES},
        {m: found[m].error for m in MEASURES},
    )


def _told(values: list[float]) -> str:
    """The mean with its standard error."""
    mean = statistics.fmean(values)
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else math.nan
    return f"{mean:.4g} ± {error:.2g}"


def table(runs: list[Run]) -> str:
    heads = ["optimizer", "n", "epochs", "loss", "test accuracy", *MEASURES.values()]
    rows = [heads]
    for name in dict.fromkeys(r.optimizer for r in runs):
        of = [r for r in runs if r.optimizer == name]
        columns = [[r.epochs for r in of], [r.loss for r in of], [r.accuracy for r in of]]
        columns += [[r.values[m] for r in of] for m in MEASURES]
        rows.append([name, str(len(of)), *(_told([float(v) for v in c]) for c in columns)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
    return "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows
    )


def ratios(runs: list[Run], against: str = "SGD") -> str:
    """Ratios to plain SGD, paired by seed, and what the bottom of the orbit does to each."""
    lines = []
    for name in dict.fromkeys(r.optimizer for r in runs if r.optimizer != against):
        pairs = [
            (a.values, b.values)
            for a in runs
            for b in runs
            if a.optimizer == name and b.optimizer == against and a.seed == b.seed
        ]
        found = {m: [math.log(a[m] / b[m]) for a, b in pairs] for m in MEASURES}
        for measure, title in MEASURES.items():
            lines.append(f"{name} / {against}  {title:12s} {_interval(found[measure])}")
        for here, bottom in BOTTOMS.items():
            both = zip(found[bottom], found[here], strict=True)
            said = _interval([least - given for least, given in both])
            lines.append(f"{name} / {against}  {MEASURES[bottom]}, over that here: {said}")
    return "\n".join(lines)


def _interval(logs: list[float]) -> str:
    """The geometric mean with its 95 % interval (Student's t of the logarithms)."""
    from scipy.stats import t

    if len(logs) < 2:
        return "one pair tells nothing"
    half = float(t.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / len(logs) ** 0.5
    mean = statistics.fmean(logs)
    ends = ", ".join(f"{math.exp(mean + side * half):.2f}" for side in (-1, 1))
    return f"x {math.exp(mean):.2f} [{ends}], n = {len(logs)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--stop", type=float, default=0.1)
    parser.add_argument("--train", type=int, default=60_000)
    parser.add_argument("--examples", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    asked = [(name, seed, options) for seed in range(options.seeds) for name in OPTIMIZERS]
    runs: list[Run] = []
    context = get_context("spawn")
    with context.Pool(options.workers, _locked, [context.Lock()]) as pool:
        waiting: list[Any] = [pool.apply_async(run, one) for one in asked]
        for one in waiting:
            runs.append(one.get())
            print(runs[-1], flush=True)
            if options.json is not None:
                options.json.write_text(json.dumps([asdict(r) for r in runs], indent=1))
    print(table(runs))
    print(ratios(runs))


if __name__ == "__main__":
    main()
