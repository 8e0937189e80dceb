"""A study: does the trace rank networks by their gap, and what is left with the orbit divided out?

python examples/07_study.py, or spiritlevel study run examples/07_study.py -o study.html
"""

from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
import torch.nn.functional as F

import spiritlevel as sl
from spiritlevel.objective.default import digits
from spiritlevel.studies import Study, Trained
from spiritlevel.training import fit


def error(net: torch.nn.Module, data: tuple[torch.Tensor, torch.Tensor]) -> float:
    """The share of examples that it gets wrong."""
    x, y = data
    with torch.no_grad():
        return float((net(x).argmax(1) != y).double().mean())


def train(config: Mapping[str, Any], seed: int) -> Trained:
    """One network of the grid. Put your own model and data here."""
    train, test = digits()
    train = (train[0][:200], train[1][:200])
    torch.manual_seed(seed)
    layers = torch.nn.Linear(64, config["width"]), torch.nn.ReLU()
    net = torch.nn.Sequential(*layers, torch.nn.Linear(config["width"], 10))
    fit(net, train, F.cross_entropy, torch.optim.SGD(net.parameters(), lr=config["rate"]), 10)
    errors = {"train_error": error(net, train), "test_error": error(net, test)}
    gap = errors["test_error"] - errors["train_error"]
    return Trained(sl.Objective(net, train, F.cross_entropy), {**errors, "gap": gap})


# All combinations, two seeds each. What was trained and measured is kept in the store: killed at
# any time, the study goes on where it was, and a value more in the grid computes only what is new.
study = Study(
    "digits",
    grid={"width": [8, 24], "rate": [0.1, 0.4]},
    train=train,
    measures=["hessian_trace", "orbit_trace", "path_norm"],
    seeds=2,
)

if __name__ == "__main__":
    folder = Path(mkdtemp())
    store = study.run(folder / "study.db")
    findings = study.findings(store)
    print(findings)
    page = sl.write_report(findings, folder / "study.html")
    print(f"\n{page} shows every network; {len(store.networks())} are in {store.path}")
