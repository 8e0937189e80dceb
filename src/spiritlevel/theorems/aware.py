"""A claim about SAM: with a bias it goes to flatter nets that generalize worse."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from spiritlevel.curvature import hessian
from spiritlevel.objective import Objective
from spiritlevel.spectral import trace
from spiritlevel.theorems import courses
from spiritlevel.theorems.base import Claim, Finding, Witness
from spiritlevel.theorems.setting import Setting
from spiritlevel.theorems.statistics import paired_interval

DIMENSION, POINTS, WIDTH = 30, 100, 100
RATE, RADIUS = 0.005, 0.05
EPOCHS = 4000
SEEDS = range(10, 22)
TESTS = 10_000  # unseen points
LOOKS = 20  # along the training
SMALL = 1e-30  # of a gradient's norm: below it there is no direction
FITTED = 0.01  # the largest training loss that counts as fitted


@dataclass(frozen=True)
class Nets:
    """Several nets v.relu(W x'), x' = (x, 1) or (x, 0), each with its own data, in one array each.

    Where the last input is 0 the last column of W, the bias, is 0 too and stays there.
    """

    first: np.ndarray  # (nets, width, d + 1)
    second: np.ndarray  # (nets, width)
    x: np.ndarray  # (nets, n, d + 1)
    y: np.ndarray  # (nets, n)

    @property
    def squares(self) -> np.ndarray:
        """|x'|^2 of all points."""
        return (self.x**2).sum(2)


def xor_nets(seeds: range, with_bias: bool, kind: type = np.float32) -> Nets:
    """Fresh nets and points of {+1, -1}^d with labels x1 x2; the same for both kinds of nets."""
    found = []
    for seed in seeds:
        draws = np.random.default_rng(seed)
        x = draws.choice([-1.0, 1.0], size=(POINTS, DIMENSION))
        first = draws.uniform(-1, 1, (WIDTH, DIMENSION + 1)) / DIMENSION**0.5
        second = draws.uniform(-1, 1, WIDTH) / WIDTH**0.5
        first[:, -1] *= with_bias
        inputs = np.concatenate([x, np.full((POINTS, 1), float(with_bias))], axis=1)
        found.append((first, second, inputs, x[:, 0] * x[:, 1]))
    return Nets(*(np.stack(part).astype(kind) for part in zip(*found, strict=True)))


def both(one: Nets, other: Nets) -> Nets:
    """Two sets of nets side by side."""
    parts = ("first", "second", "x", "y")
    return Nets(*(np.concatenate([getattr(one, p), getattr(other, p)]) for p in parts))


def sam_step(nets: Nets, rows: np.ndarray, rate: float, radius: float) -> None:
    """One step of SAM on one point of each net, of the loss (f - y)^2, in place.

    The gradient at W + e, e = radius g / |g|. For one point e is of rank one, e x' = c v |x'|^2
    where a unit is active, so that no second product with x' is made.
    """
    each = np.arange(len(rows))
    x, y = nets.x[each, rows], nets.y[each, rows]
    squares = np.square(x).sum(1)
    before = np.matmul(nets.first, x[:, :, None])[:, :, 0]
    hidden, active = np.maximum(before, 0), nets.second * (before > 0)
    error = (hidden * nets.second).sum(1) - y
    norm = np.sqrt((hidden**2).sum(1) + (active**2).sum(1) * squares)
    c = (radius * np.sign(error) / np.maximum(norm, SMALL))[:, None]
    there = before + c * squares[:, None] * active
    hidden, second = np.maximum(there, 0), nets.second + c * hidden
    push = (2 * rate * ((hidden * second).sum(1) - y))[:, None]
    np.subtract(nets.second, push * hidden, out=nets.second)
    moved = (push * second * (there > 0))[:, :, None] * x[:, None, :]
    np.subtract(nets.first, moved, out=nets.first)


def by_formula(nets: Nets) -> tuple[np.ndarray, np.ndarray]:
    """The loss and tr H = (2/n) sum_i |grad f(x_i)|^2 of each net.

    Exact off the kinks: f is linear in W and in v, so the trace of its own Hessian is zero.
    """
    before = np.matmul(nets.x, nets.first.transpose(0, 2, 1))
    hidden = np.maximum(before, 0)
    out = np.matmul(hidden, nets.second[:, :, None])[:, :, 0]
    active = nets.second[:, None, :] * (before > 0)
    squares = (hidden**2).sum(2) + (active**2).sum(2) * nets.squares
    return ((out - nets.y) ** 2).mean(1), 2 * squares.mean(1)


def accuracies(nets: Nets, points: np.ndarray) -> np.ndarray:
    """The share of unseen points whose sign is right."""
    labels, found = points[:, 0] * points[:, 1], []
    for first, second, x in zip(nets.first, nets.second, nets.x, strict=True):
        inputs = np.concatenate([points, np.full((len(points), 1), x[0, -1])], axis=1)
        out = np.maximum(inputs.astype(first.dtype) @ first.T, 0) @ second
        found.append(float((np.sign(out) == labels).mean()))
    return np.array(found)


@dataclass(frozen=True, eq=False)
class Look:
    """Traces and accuracies of all nets after some epochs."""

    epoch: int
    traces: np.ndarray
    accuracies: np.ndarray


def sam_with_and_without(setting: Setting) -> Witness:
    """Both kinds of nets from the same weights, on the same points in the same order."""
    nets = both(xor_nets(SEEDS, False), xor_nets(SEEDS, True))
    orders = [np.random.default_rng([seed, 1]) for seed in SEEDS]
    points = np.random.default_rng(0).choice([-1.0, 1.0], size=(TESTS, DIMENSION))
    looks = []
    for epoch in range(1, EPOCHS + 1):
        order = np.stack([draws.permutation(POINTS) for draws in orders] * 2)
        for rows in order.T:
            sam_step(nets, rows, RATE, RADIUS)
        if epoch % (EPOCHS // LOOKS) == 0:
            looks.append(Look(epoch, by_formula(nets)[1], accuracies(nets, points)))
    return {"nets": nets, "points": points, "looks": looks}


def as_objective(nets: Nets, place: int) -> Objective:
    """One of the nets in float64, with or without its bias, and mean squared error."""
    has_bias = bool(nets.x[place, 0, -1])
    wide, deep = nets.first.shape[1], nets.first.shape[2] - 1
    net = nn.Sequential(
        nn.Linear(deep, wide, bias=has_bias), nn.ReLU(), nn.Linear(wide, 1, bias=False)
    ).double()
    values = [nets.first[place, :, :-1], nets.first[place, :, -1], nets.second[place][None]]
    if not has_bias:
        del values[1]
    for parameter, value in zip(net.parameters(), values, strict=True):
        parameter.data = torch.from_numpy(value.astype(np.float64))
    x, y = nets.x[place, :, :-1].astype(np.float64), nets.y[place, :, None].astype(np.float64)
    return Objective(net, (torch.from_numpy(x), torch.from_numpy(y)), F.mse_loss)


def check_sam(nets: Nets, points: np.ndarray, looks: list[Look]) -> Finding:
    """Paired over the seeds: with the bias a lower trace and a lower accuracy, both intervals.

    The trace is the formula's, to which probes of the Hessian itself have to agree within 4
    standard errors.
    """
    loss, formula = (values.astype(float) for values in by_formula(nets))
    right, half = accuracies(nets, points), len(loss) // 2
    found = [trace(hessian(as_objective(nets, i), compile=False), seed=i) for i in range(len(loss))]
    off = max(
        abs(e.value - f) / (4 * (e.stderr or 0) + 1e-4 * f)
        for e, f in zip(found, formula, strict=True)
    )
    numbers: dict[str, float] = {"seeds": half, "largest loss": float(loss.max())}
    numbers["formula off by, of what may be"] = float(off)
    highs = []
    for label, values in (("trace", formula), ("accuracy", right)):
        numbers[f"{label} without bias"] = float(values[:half].mean())
        numbers[f"{label} with bias"] = float(values[half:].mean())
        mean, low, high = paired_interval(values[half:] - values[:half])
        numbers |= {f"{label}, more by": mean, f"{label}, from": low, f"{label}, to": high}
        numbers[f"{label} lower with bias, seeds"] = int((values[half:] < values[:half]).sum())
        highs.append(high)
    for i in range(half):
        for kind, place in (("without", i), ("with", half + i)):
            numbers[f"net {i}, trace {kind} bias"] = float(formula[place])
            numbers[f"net {i}, accuracy {kind} bias"] = float(right[place])
    words = [f"{label} {numbers[f'{label}, more by']:+.2g}" for label in ("trace", "accuracy")]
    holds = half >= 5 and max(highs) < 0 and off <= 1 and loss.max() < FITTED
    return Finding(f"{', '.join(words)} with bias", numbers, bool(holds))


def draw_sam(nets: Nets, points: np.ndarray, looks: list[Look]) -> str:
    half = len(nets.second) // 2
    epochs = [look.epoch for look in looks]
    traces = np.stack([look.traces for look in looks])
    right = np.stack([look.accuracies for look in looks])
    kinds = {"without bias": slice(0, half), "with bias": slice(half, None)}
    return courses.trainings(
        epochs,
        {
            "trace of the Hessian": {k: traces[:, s] for k, s in kinds.items()},
            "accuracy on unseen points": {k: right[:, s] for k, s in kinds.items()},
        },
    )


AWARE: dict[str, Claim] = {
    "sam_with_bias": Claim(
        "On XOR, SAM on one example at a time takes nets with a bias to a lower trace of the "
        "Hessian and a lower accuracy than nets without one.",
        "Wen et al. 2023",
        f"{len(SEEDS)} pairs of nets, d = {DIMENSION}, n = {POINTS}",
        sam_with_and_without,
        check_sam,
        draw_sam,
        "example",
        "Trainings from the same weights on the same points in the same order, one thin line for "
        "each seed and a thick one for their mean.",
        long=True,
    ),
}
