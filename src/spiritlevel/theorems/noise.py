"""A claim about SGD: the ratio of its rate to its batch decides how sharp its minima are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.base.ranks import kendall
from spiritlevel.base.tensors import generator
from spiritlevel.curvature import hessian
from spiritlevel.objective import Objective
from spiritlevel.objective.default import digits
from spiritlevel.orbit import minimum
from spiritlevel.spectral import eigenvalues
from spiritlevel.symmetry import symmetries
from spiritlevel.theorems import courses
from spiritlevel.theorems.base import Claim, Finding, Witness
from spiritlevel.theorems.setting import Setting
from spiritlevel.theorems.statistics import paired_interval

RATES = (0.05, 0.1, 0.2)
BATCHES = (8, 16, 32, 64)
SEEDS = 6
HIDDEN = 32
TARGET = 0.02  # the training loss at which all runs stop
MATCHED = 0.1  # relative: how far below the target a loss may be
ROUNDING = 1e-3  # relative, of a loss in float32 that is made in two ways
EVERY = 10  # steps from one look at the whole loss to the next
MOST = 30_000  # steps


@dataclass(frozen=True, eq=False)
class Run:
    """One training by SGD: how, from where, and where it stopped."""

    rate: float
    batch: int
    seed: int
    steps: int
    net: nn.Sequential
    least: float  # largest eigenvalue of the Gauss-Newton matrix at the bottom of the orbit

    @property
    def ratio(self) -> float:
        return self.rate / self.batch


Weights = list[Tensor]  # of several nets, each with its number as the first axis


def fresh(seeds: list[int], sizes: tuple[int, int, int]) -> Weights:
    """Normal weights of variance 2 / inputs, biases of zero; one net for each seed."""
    nets = []
    for seed in seeds:
        draws = generator(seed)
        one = []
        for inside, outside in ((sizes[0], sizes[1]), (sizes[1], sizes[2])):
            one.append(torch.randn(inside, outside, generator=draws) * (2 / inside) ** 0.5)
            one.append(torch.zeros(1, outside))
        nets.append(one)
    return [torch.stack(same) for same in zip(*nets, strict=True)]


def outputs(weights: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
    """Of all nets, and their hidden units."""
    hidden = torch.relu(torch.baddbmm(weights[1], x, weights[0]))
    return torch.baddbmm(weights[3], hidden, weights[2]), hidden


def gradients(weights: Weights, x: Tensor, y: Tensor) -> Weights:
    """Of the mean cross-entropy of each net on its own batch, (nets, batch, inputs), by hand."""
    out, hidden = outputs(weights, x)
    push = (out.softmax(2) - F.one_hot(y, out.shape[2])) / x.shape[1]
    pull = (push @ weights[2].transpose(1, 2)) * (hidden > 0)
    second = hidden.transpose(1, 2) @ push
    first = x.transpose(1, 2) @ pull
    return [first, pull.sum(1, keepdim=True), second, push.sum(1, keepdim=True)]


def losses(weights: Weights, x: Tensor, y: Tensor) -> Tensor:
    """The mean cross-entropy of each net on all the data."""
    out, _ = outputs(weights, x.expand(len(weights[0]), -1, -1))
    return -out.log_softmax(2).gather(2, y.expand(len(out), -1)[..., None]).mean((1, 2))


def descended(
    data: tuple[Tensor, Tensor], rates: list[float], seeds: list[int], batch: int, target: float
) -> tuple[Weights, list[int]]:
    """SGD of several nets side by side, each until its whole loss is matched to the target.

    A noisy run can fall past the range of matched losses: it goes on until it is seen there. Nets
    of one seed see the same batches.
    """
    x, y = data
    weights = fresh(seeds, (x.shape[1], HIDDEN, int(y.max()) + 1))
    order = {seed: generator(1000 + seed) for seed in dict.fromkeys(seeds)}
    speed = torch.tensor(rates)[:, None, None].clone()
    steps, begun = [MOST] * len(seeds), 0
    while begun < MOST and bool(speed.any()):
        shuffled = {s: torch.randperm(len(x), generator=draws) for s, draws in order.items()}
        rows = torch.stack([shuffled[s] for s in seeds])
        for some in rows.split(batch, dim=1):
            for weight, slope in zip(weights, gradients(weights, x[some], y[some]), strict=True):
                weight.sub_(speed * slope)
            begun += 1
            if begun % EVERY == 0:
                running = speed[:, 0, 0].nonzero()[:, 0]
                now = losses([w[running] for w in weights], x, y)
                for i in running[(now <= target) & (now >= (1 - MATCHED) * target)].tolist():
                    speed[i], steps[i] = 0.0, begun
    return weights, steps


def as_net(weights: Weights, place: int) -> nn.Sequential:
    """One of the nets as a module."""
    (_, inputs, hidden), (_, _, classes) = weights[0].shape, weights[2].shape
    net = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))
    for parameter, weight in zip(net.parameters(), weights, strict=True):
        value = weight[place]
        parameter.data = (value[0] if len(value) == 1 else value.T).clone()
    return net


@torch.no_grad()
def grid_of_runs(setting: Setting) -> Witness:
    """Every rate with every batch from every seed; seeds share their start and their batches."""
    data, runs = digits()[0], []
    pairs = [(rate, seed) for rate in RATES for seed in range(SEEDS)]
    for batch in BATCHES:
        rates, seeds = [r for r, _ in pairs], [s for _, s in pairs]
        weights, steps = descended(data, rates, seeds, batch, TARGET)
        for i, (rate, seed) in enumerate(pairs):
            net = as_net(weights, i)
            runs.append(Run(rate, batch, seed, steps[i], net, _bottom(net, data)))
    return {"runs": runs, "data": data}


def _bottom(net: nn.Sequential, data: tuple[Tensor, Tensor]) -> float:
    with torch.enable_grad():
        objective = Objective(net, data, F.cross_entropy)
        return minimum(objective, symmetries(objective), tol=0.02, certify=False).value


def tops(
    runs: list[Run], data: tuple[Tensor, Tensor], tol: float = 1e-3
) -> tuple[list[float], list[float]]:
    """The largest eigenvalue of the Hessian and the loss of every run."""
    found = [Objective(run.net, data, F.cross_entropy) for run in runs]
    return [eigenvalues(hessian(o), tol=tol)[0].value for o in found], [o.value() for o in found]


def check_ratio(runs: list[Run], data: tuple[Tensor, Tensor]) -> Finding:
    """Kendall's tau of lambda_max and rate / batch over the grid of each seed, its t interval.

    All losses have to be matched. Beside it tau at one rate, at one batch, and at the bottom of
    the orbit.
    """
    sharpness, found = tops(runs, data)
    seeds = np.array([run.seed for run in runs])
    columns = {"λ": np.array(sharpness), "the orbit's least": np.array([r.least for r in runs])}
    numbers: dict[str, float] = {"runs": len(runs), "seeds": len(set(seeds.tolist()))}
    numbers |= {"least loss": min(found), "largest loss": max(found)}
    numbers["most steps"] = max(run.steps for run in runs)
    tau, low, high = _interval(runs, columns["λ"], seeds)
    numbers |= {"τ of λ": tau, "τ of λ, from": low, "τ of λ, to": high}
    least = _interval(runs, columns["the orbit's least"], seeds)
    names = ("", ", from", ", to")
    numbers |= {f"τ of the orbit's least{n}": v for n, v in zip(names, least, strict=True)}
    for label, same in (("rate", "batch"), ("batch", "rate")):
        numbers[f"τ of λ and the {label} at one {same}"] = _within(runs, sharpness, label, same)
    for ratio in sorted({run.ratio for run in runs}):
        some = [s for s, run in zip(sharpness, runs, strict=True) if run.ratio == ratio]
        numbers[f"mean λ at rate / batch = {ratio:.3g}"] = float(np.mean(some))
    matched = min(found) >= TARGET * (1 - MATCHED - ROUNDING)
    matched = matched and max(found) <= TARGET * (1 + ROUNDING)
    words = f"τ = {tau:.2f}, [{low:.2f}, {high:.2f}], {len(runs)} runs"
    return Finding(words if matched else f"{words}, losses differ", numbers, matched and high < 0)


def _interval(runs: list[Run], values: np.ndarray, seeds: np.ndarray) -> tuple[float, float, float]:
    """The mean of tau over the seeds, each with its own grid, and its t interval."""
    ratios = np.array([run.ratio for run in runs])
    return paired_interval([kendall(ratios[seeds == s], values[seeds == s]).b for s in set(seeds)])


def _within(runs: list[Run], sharpness: list[float], label: str, same: str) -> float:
    """The mean of tau with one of rate and batch, where the other one and the seed are the same."""
    groups: dict[tuple[float, int], list[tuple[float, float]]] = {}
    for value, run in zip(sharpness, runs, strict=True):
        key = (getattr(run, same), run.seed)
        groups.setdefault(key, []).append((getattr(run, label), value))
    return float(np.mean([kendall(*zip(*pairs, strict=True)).b for pairs in groups.values()]))


def draw_ratio(runs: list[Run], data: tuple[Tensor, Tensor]) -> str:
    sharpness, _ = tops(runs, data, tol=1e-2)
    points = {
        f"batch {batch}": [
            (run.ratio, value, run.least)
            for run, value in zip(runs, sharpness, strict=True)
            if run.batch == batch
        ]
        for batch in sorted({run.batch for run in runs})
    }
    return courses.ratios(points)


NOISE: dict[str, Claim] = {
    "rate_over_batch": Claim(
        "At the same training loss, SGD ends at minima whose largest eigenvalue λ falls with the "
        "ratio of its rate to its batch size.",
        "Jastrzebski et al. 2018",
        f"{len(RATES) * len(BATCHES) * SEEDS} nets on the digits, loss {TARGET}",
        grid_of_runs,
        check_ratio,
        draw_ratio,
        "example",
        "Left, λ of every run against rate / batch; right, the largest eigenvalue of the "
        "Gauss-Newton matrix at the bottom of the same network's orbit, where no rescaling is "
        "left to explain it.",
        long=True,
    ),
}
