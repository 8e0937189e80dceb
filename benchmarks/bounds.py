"""PAC-Bayes bounds of networks on MNIST, beside the numbers of the papers and beside pacbb.

    SPIRITLEVEL_DATA=... python benchmarks/bounds.py binary --device cuda
    SPIRITLEVEL_DATA=... python benchmarks/bounds.py binary --labels random --device cuda
    SPIRITLEVEL_DATA=... python benchmarks/bounds.py certificate --device cuda
    SPIRITLEVEL_DATA=... python benchmarks/bounds.py binary --small    # minutes on two cores
    python benchmarks/bounds.py pacbb

`binary` is Table 1 of Dziugaite & Roy (2017): digits 0-4 against 5-9, 784-600-1, 55,000 examples,
20 epochs of SGD, then a posterior around what came out. `certificate` is ten classes, a small
convolutional net whose prior half of the examples trained (Perez-Ortiz et al., 2021). Seconds are
those of `pac_bayes`, all set-up included. Numbers are printed beside those of the paper.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.bounds.network import pac_bayes
from spiritlevel.bounds.posterior import Recipe

PAPER = {  # Dziugaite & Roy (2017), Table 1: T-600 and R-600
    "true": {"bound": 0.161, "train": 0.028, "test": 0.034, "KL": 5144},
    "random": {"bound": 1.352, "train": 0.112, "test": 0.503, "KL": 201131},
}
PARTS = ("core.training", "core.risk", "core.model", "core.distribution", "core.objective")


@dataclass(frozen=True)
class Digits:
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def mnist(examples: int, device: str) -> Digits:
    """Pixels in [0, 1]; the first examples of the training set, and the whole test set."""
    with np.load(Path(os.environ["SPIRITLEVEL_DATA"]) / "mnist.npz") as held:
        arrays = {name: torch.from_numpy(held[name]) for name in held}
    x, x_test = (arrays[name].float().div(255)[:, None] for name in ("x_train", "x_test"))
    y, y_test = (arrays[name].long() for name in ("y_train", "y_test"))
    put = [t.to(device) for t in (x[:examples], y[:examples], x_test, y_test)]
    return Digits((put[0], put[1]), (put[2], put[3]))


def halves(pair: tuple[Tensor, Tensor], random: bool) -> tuple[Tensor, Tensor]:
    """0-4 against 5-9 as 0 and 1, or coins."""
    x, y = pair
    if random:
        coins = torch.Generator().manual_seed(0)
        y = torch.randint(0, 10, y.shape, generator=coins).to(y)
    return x.flatten(1), (y > 4).float()[:, None]


def wide(hidden: int, device: str) -> nn.Sequential:
    """784-hidden-1 as they begin it: deviations of 0.04, biases of 0.1 and 0."""
    draws = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 1))
    with torch.no_grad():
        for layer, bias in (("0", 0.1), ("2", 0.0)):
            weight = net.get_parameter(f"{layer}.weight")
            weight.copy_(0.04 * torch.randn(weight.shape, generator=draws))
            net.get_parameter(f"{layer}.bias").fill_(bias)
    return net.to(device)


def convolutional(device: str) -> nn.Sequential:
    torch.manual_seed(0)
    parts = (nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2))
    parts += (nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    return nn.Sequential(*parts, nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)


def row(name: str, found: dict[str, Any]) -> str:
    cells = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in found.values()]
    return f"| {name} | {' | '.join(cells)} |"


def told(bounds: Any) -> dict[str, Any]:
    origin = bounds.origin
    best = {at: r.bound.value for r in bounds if r.name == "maurer" for at in [r.point]}
    return {
        "bound": best["here"],
        "orbit": best.get("orbit", math.nan),
        "train": origin.error.error,
        "test": origin.test.error,
        "KL": origin.kl,
        "seconds": bounds.provenance["seconds"],
    }


def binary(options: argparse.Namespace) -> None:
    examples, hidden = (5_000, 100) if options.small else (55_000, 600)
    data, device = mnist(options.examples or examples, options.device), options.device
    random = options.labels == "random"
    train, test = halves(data.train, random), halves(data.test, random)
    init, net = wide(hidden, device), wide(hidden, device)
    loss = F.binary_cross_entropy_with_logits
    begin = time.perf_counter()
    sgd = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    sl.training.fit(net, train, loss, sgd, 20, batch_size=100)
    print(f"SGD: {time.perf_counter() - begin:.1f} s")
    print(f"error: {wrong(net, train):.4f} on training examples, {wrong(net, test):.4f} on others")
    objective = sl.Objective(net, train, loss)
    bounds = pac_bayes(objective, init=init, test=test, **asked(options))
    print(bounds)
    found = told(bounds)
    print(row(f"{options.labels} labels", {name: name for name in found}) + "\n|" + "---|" * 7)
    print(row("spiritlevel", found))
    print(row("Dziugaite & Roy", {name: PAPER[options.labels].get(name, "") for name in found}))


@torch.no_grad()
def wrong(net: nn.Module, pair: tuple[Tensor, Tensor]) -> float:
    return float(((net(pair[0]) > 0).float() != pair[1]).double().mean())


def certificate(options: argparse.Namespace) -> None:
    data = mnist(options.examples or (2_000 if options.small else 60_000), options.device)
    net = convolutional(options.device)
    objective = sl.Objective(net, data.train, F.cross_entropy)
    bounds = pac_bayes(objective, init=net, share=0.5, test=data.test, **asked(options))
    print(bounds)
    found = told(bounds)
    print(row("ten classes", {name: name for name in found}) + "\n|" + "---|" * 7)
    print(row("spiritlevel", found))


def asked(options: argparse.Namespace) -> dict[str, Any]:
    given = {"batch": options.batch, "rate": options.rate, "spread_rate": options.spread_rate}
    recipe = Recipe(**{name: value for name, value in given.items() if value is not None})
    more = {} if options.draws is None else {"draws": options.draws}
    return {**more, "epochs": options.epochs, "orbit": options.orbit, "recipe": recipe}


def pacbb(options: argparse.Namespace) -> None:
    """Whether what is installed under its name can be imported at all."""
    for part in PARTS:
        try:
            importlib.import_module(part)
        except ImportError as error:
            print(f"{part}: {type(error).__name__}: {error}")
        else:
            print(f"{part}: imported")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("binary", "certificate", "pacbb"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--labels", choices=tuple(PAPER), default="true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--orbit", action="store_true")
    for name in ("examples", "epochs", "draws", "batch"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("rate", "spread-rate"):
        parser.add_argument(f"--{name}", type=float)
    options = parser.parse_args()
    {"binary": binary, "certificate": certificate, "pacbb": pacbb}[options.what](options)


if __name__ == "__main__":
    main()
