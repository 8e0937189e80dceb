"""A 25 x 25 plane of losses around a trained ResNet-20, peers side by side.

    SPIRITLEVEL_DATA=... python benchmarks/landscape.py --device cuda --images 10000
    SPIRITLEVEL_DATA=... python benchmarks/landscape.py --device cpu --images 500 --points 9

All evaluate one plane: Gaussian directions with the norms of the filters, normalizations and biases
fixed. Peers make `--points` of the 625, a grid as wide and coarser, and their time is scaled up; we
make all 625, from the module and the tensors to the finished surface. Every value at the common
points is judged by one in float64.

loss-landscapes takes its directions at random on the CPU only; `planar_interpolation` takes given
ones. loss-landscape-3d gets a copy of the weights as its centre: the `model.state_dict()` of its
README moves with the model, and the plane becomes a walk.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from peers import BATCH, LARGE_BATCH, batches, timed
from resnet20 import cifar10, trained
from torch import Tensor, nn
from torch.func import functional_call
from torch.linalg import vector_norm
from torch.utils.data import DataLoader, TensorDataset

import spiritlevel as sl

STEPS, SPAN = 25, 1.0
WIDTHS = {points: math.isqrt(points) for points in (9, 25, 49, 81, 169, 625)}  # parts of STEPS
Direction = dict[str, Tensor]
Plane = tuple[Direction, Direction]
Losses = np.ndarray[Any, np.dtype[np.float64]]  # at (x[i], y[j]), nan where none was evaluated


@dataclass(frozen=True)
class Line:
    """One row of the table."""

    what: str
    points: int
    seconds: float  # for the points
    difference: float  # the largest from float64, as a part of the value
    note: str = ""

    @property
    def plane(self) -> float:
        return self.seconds / self.points * STEPS**2


def filter_directions(model: nn.Module, seed: int) -> Plane:
    """Two Gaussian directions with the norm of every filter (Li et al., 2018)."""
    draws = torch.Generator().manual_seed(seed)

    def one() -> Direction:
        found = {}
        for name, p in model.named_parameters():
            d = torch.randn(p.shape, generator=draws).to(p.device)
            if p.ndim > 1:
                along = tuple(range(1, p.ndim))
                ratio = [vector_norm(t, dim=along, keepdim=True) for t in (p.detach(), d)]
                d = d * ratio[0] / ratio[1]
            found[name] = d if p.ndim > 1 else torch.zeros_like(d)
        return found

    return one(), one()


def moved(model: nn.Module, plane: Plane, x: float, y: float) -> dict[str, Tensor]:
    u, v = plane
    return {n: p.detach() + x * u[n] + y * v[n] for n, p in model.named_parameters()}


def axis(steps: int) -> list[float]:
    return np.linspace(-SPAN, SPAN, steps).tolist()


# The contenders: the losses of a plane with so many steps --------------------------------------


def plain_loop(
    model: nn.Module, plane: Plane, data: list[tuple[Tensor, Tensor]], steps: int
) -> Losses:
    """What one writes by oneself: no gradients, one pass over the data for each point."""

    @torch.no_grad()
    def loss(x: float, y: float) -> float:
        there = moved(model, plane, x, y)
        total = sum(
            F.cross_entropy(functional_call(model, there, (a,)), b, reduction="sum")
            for a, b in data
        )
        return float(total) / sum(len(b) for _, b in data)

    return np.array([[loss(x, y) for y in axis(steps)] for x in axis(steps)])


def in_float64(model: nn.Module, plane: Plane, x: Tensor, y: Tensor, steps: int) -> Losses:
    exact = copy.deepcopy(model).double()
    u, v = ({n: d.double() for n, d in one.items()} for one in plane)
    return plain_loop(exact, (u, v), batches(x.double(), y, 500), steps)


def loss_landscapes(model: nn.Module, plane: Plane, metric: Any, steps: int) -> Losses:
    """Its start is a corner of the plane, its ends lie one step behind two others."""
    from loss_landscapes import planar_interpolation  # type: ignore[import-not-found]

    step = 2 * SPAN / (steps - 1)
    corners = []
    for x, y in ((0, 0), (steps, 0), (0, steps)):
        corner = copy.deepcopy(model)
        place = moved(model, plane, -SPAN + step * x, -SPAN + step * y)
        corner.load_state_dict({**model.state_dict(), **place})
        corners.append(corner)
    values = planar_interpolation(*corners, metric, steps=steps)
    # It steps before it evaluates, so every other column begins one step further on.
    found = np.full((steps, steps), np.nan)
    found[1::2] = values[1::2]
    found[::2, 1:] = values[::2, :-1]
    return found


def metric_of(data: list[tuple[Tensor, Tensor]]) -> Any:
    """Its README's `Loss` for data in one piece; for batches a metric as it asks users to write."""
    from loss_landscapes.metrics import Loss, Metric  # type: ignore[import-not-found]

    if len(data) == 1:
        return Loss(nn.CrossEntropyLoss(), *data[0])
    criterion, count = nn.CrossEntropyLoss(), sum(len(b) for _, b in data)

    class Mean(Metric):
        def __call__(self, wrapped: Any) -> float:
            return sum(criterion(wrapped.forward(a), b).item() * len(b) for a, b in data) / count

    return Mean()


def loss_landscape_3d(model: nn.Module, plane: Plane, loader: Any, steps: int) -> Losses:
    from loss_landscape_3d import LossLandscapeCalculator  # type: ignore[import-not-found]

    centre = {name: t.clone() for name, t in model.state_dict().items()}
    calculator = LossLandscapeCalculator(model, loader, nn.CrossEntropyLoss())
    return calculator.calculate(axis(steps), axis(steps), *plane, centre)


def ours(model: nn.Module, plane: Plane, x: Tensor, y: Tensor) -> tuple[Losses, str]:
    """From the module and the tensors to the surface: nothing is prepared outside."""
    landscape: Any = sl.landscape  # type: ignore[attr-defined]
    objective = sl.Objective(model, (x, y), F.cross_entropy)
    flat = tuple(torch.cat([d[n].flatten() for n in objective.params]) for d in plane)
    surface = landscape.plane(objective, directions=flat, steps=STEPS, span=SPAN)
    return np.array(surface.losses, dtype=float).T, surface.provenance["engine"]


# The table ------------------------------------------------------------------------------------


Contender = Callable[[nn.Module, Plane, int], Losses]


def contenders(x: Tensor, y: Tensor) -> dict[str, Contender]:
    """Batches that lie on the device, and the data as the READMEs of the peers hand them over."""
    sizes = (BATCH, LARGE_BATCH) if x.is_cuda else (BATCH,)
    found: dict[str, Contender] = {}
    for size in sizes:
        data = batches(x, y, size)
        end = f", batches of {size}"
        found[f"a plain loop{end}"] = lambda m, p, s, d=data: plain_loop(m, p, d, s)
        found[f"loss-landscapes{end}"] = lambda m, p, s, d=data: loss_landscapes(
            m, p, metric_of(d), s
        )
        found[f"loss-landscape-3d{end}"] = lambda m, p, s, d=data: loss_landscape_3d(m, p, d, s)
    loader = DataLoader(TensorDataset(x.cpu(), y.cpu()), batch_size=BATCH)
    found["loss-landscapes, all in one piece"] = lambda m, p, s: loss_landscapes(
        m, p, metric_of([(x, y)]), s
    )
    found["loss-landscape-3d, a DataLoader"] = lambda m, p, s: loss_landscape_3d(m, p, loader, s)
    return found


def farthest(found: Losses, truth: Losses) -> float:
    """The largest relative difference where both have values; the truth may be a coarser grid."""
    every = (len(found) - 1) // (len(truth) - 1)
    return float(np.nanmax(np.abs(found[::every, ::every] - truth) / np.abs(truth)))


def lines(device: str, images: int, points: int, alone: bool, seed: int) -> list[Line]:
    x, y = (t.to(device) for t in cifar10(images))
    steps = WIDTHS[points]
    plane = filter_directions(trained().to(device), seed)
    truth = in_float64(trained().to(device), plane, x, y, steps)
    few = contenders(x[:BATCH], y[:BATCH])
    rows = []
    for what, run in ({} if alone else contenders(x, y)).items():
        few[what](trained().to(device), plane, 2)  # kernels and imports are warm
        model = trained().to(device)
        seconds, found = timed(device, lambda r=run, m=model: r(m, plane, steps))
        evaluated = int(np.isfinite(found).sum())  # type: ignore[call-overload]
        note = "" if evaluated == points else f"{points - evaluated} points fall outside"
        rows.append(Line(what, points, seconds, farthest(found, truth), note))  # type: ignore[arg-type]
        print(rows[-1], flush=True)
    ours(trained().to(device), plane, x[:BATCH], y[:BATCH])
    model = trained().to(device)
    seconds, (found, engine) = timed(device, lambda: ours(model, plane, x, y))  # type: ignore[misc]
    rows.append(Line("spiritlevel", STEPS**2, seconds, farthest(found, truth), engine))
    return rows


def show(rows: list[Line]) -> None:
    own = rows[-1].plane
    print("\n| what | points | ms per point | plane, s | this / spiritlevel | farthest | note |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        scaled = "" if row.points == STEPS**2 else " (scaled up)"
        print(
            f"| {row.what} | {row.points} | {1e3 * row.seconds / row.points:.1f} | "
            f"{row.plane:.1f}{scaled} | {row.plane / own:.2f} | {row.difference:.1e} | {row.note} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int)
    parser.add_argument("--points", type=int, choices=WIDTHS, default=25, help="of the peers")
    parser.add_argument("--alone", action="store_true", help="without the peers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    images = options.images or (10_000 if options.device == "cuda" else 500)
    print(f"torch {torch.__version__}, {options.device}, {images} images")
    rows = lines(options.device, images, options.points, options.alone, options.seed)
    show(rows)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
