"""Networks with and without skips, trained to one training loss, and the planes around them.

    SPIRITLEVEL_DATA=... python benchmarks/pictures.py --out out/nets --device cuda
    SPIRITLEVEL_DATA=... python benchmarks/pictures.py --out out/nets --device cuda --draw

A ResNet-56 without skips, a ResNet-56 and a DenseNet-BC of 100 layers (growth 12) learn 15,000
images of CIFAR-10: SGD with momentum 0.9, weight decay 5e-4, batches of 128, crops and flips,
warm-up and a cosine. Each stops when its loss over all images as they are, in eval mode, is at
most `--target`. The one that learns worst goes first: where it ends above the target, the others
stop at the loss that it reached. What is there already is not trained or drawn again.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from resnet20 import DenseNet, ResNet, cifar10
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import spiritlevel as sl

BATCH, LARGE_BATCH, WARM_UP, MARGIN = 128, 2500, 5, 4
KINDS = ("filter", "filter, rescaled", "orbit")
Learn = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Network:
    """What is trained: its file, its title, how it is made, and its largest step."""

    file: str
    title: str
    make: Callable[[], nn.Module]
    rate: float = 0.1


NETWORKS = (
    Network("resnet56_plain", "ResNet-56 without skips", lambda: ResNet(56, skip=False)),
    Network("resnet56", "ResNet-56", lambda: ResNet(56)),
    Network("densenet100", "DenseNet-BC-100", lambda: DenseNet(12, (16, 16, 16))),
)
SMALL = (
    Network("resnet8_plain", "ResNet-8 without skips", lambda: ResNet(8, 4, skip=False)),
    Network("resnet8", "ResNet-8", lambda: ResNet(8, 4)),
    Network("densenet", "DenseNet", lambda: DenseNet(4, (2, 2))),
)


@dataclass(frozen=True)
class Plan:
    """How long and how far a network is trained."""

    target: float
    minutes: float
    epochs: int
    seed: int
    decay: float
    still: bool
    eager: bool


# Training -------------------------------------------------------------------------------------


def varied(x: Tensor, draws: torch.Generator) -> Tensor:
    """Each image flipped or not, and cut from a frame of zeros around it."""
    n, side = len(x), x.shape[-1]

    def drawn(below: int) -> Tensor:
        return torch.randint(0, below, (n, 1, 1), generator=draws, device=x.device)

    places = torch.arange(side, device=x.device)
    rows = drawn(2 * MARGIN + 1) + places[:, None]
    columns = drawn(2 * MARGIN + 1) + torch.where(drawn(2) == 1, places, places.flip(0))
    images = torch.arange(n, device=x.device)[:, None, None]
    framed = F.pad(x, (MARGIN,) * 4).permute(0, 2, 3, 1)
    return framed[images, rows, columns].permute(0, 3, 1, 2)  # channels last, as they lie


def learning(net: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor, eager: bool) -> Learn:
    """The loss of a batch, and its gradient in the parameters."""

    def learn(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=x.is_cuda, cache_enabled=False):
            loss = F.cross_entropy(net(x), y)
        loss.backward()
        return loss.detach()

    def from_the_beginning(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        return learn(x, y)

    if eager or not batch.is_cuda:
        return from_the_beginning
    return played(from_the_beginning, learn, optimizer, batch)


def played(first: Learn, learn: Learn, optimizer: torch.optim.Optimizer, batch: Tensor) -> Learn:
    """Recorded once as a CUDA graph: layers so small take longer to launch than to compute."""
    x, y = batch.clone(), torch.zeros(len(batch), dtype=torch.long, device=batch.device)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            first(x, y)
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad()  # so that the recording writes gradients and does not add to them
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = learn(x, y)

    def play(images: Tensor, labels: Tensor) -> Tensor:
        x.copy_(images)
        y.copy_(labels)
        graph.replay()
        return loss

    return play


def epoch(
    learn: Learn,
    optimizer: torch.optim.Optimizer,
    batches: Iterator[tuple[Tensor, Tensor]],
    rates: Callable[[float], float],
    steps: int,
) -> float:
    """The mean loss of the batches on the way."""
    total: Tensor | float = 0.0
    for step, (a, b) in zip(range(steps), batches, strict=False):
        for group in optimizer.param_groups:
            group["lr"] = rates(step / steps)
        total = total + learn(a, b)
        optimizer.step()
    return float(total) / steps


def shuffled(
    x: Tensor, y: Tensor, draws: torch.Generator, still: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """All images in another order, in batches, each changed a little or as they are."""
    order = torch.randperm(len(x), generator=draws, device=x.device)
    x, y = x[order] if still else varied(x[order], draws), y[order]
    x = x.contiguous(memory_format=torch.channels_last)
    yield from zip(x.split(min(BATCH, len(x))), y.split(min(BATCH, len(y))), strict=True)


def rate(at: float, epochs: int, largest: float) -> float:
    """Up in a line and down along a cosine, `at` so many epochs."""
    warm = min(WARM_UP, epochs / 4)
    if at < warm:
        return largest * at / warm
    return largest * (1 + math.cos(math.pi * (at - warm) / (epochs - warm))) / 2


@torch.no_grad()
def judged(net: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Loss and accuracy in eval mode, images as they are, in float32."""
    net.eval()
    outputs = torch.cat([net(piece) for piece in x.split(LARGE_BATCH)]).double()
    net.train()
    right = (outputs.argmax(1) == y).double().mean()
    return float(F.cross_entropy(outputs, y)), float(right)


def train(network: Network, x: Tensor, y: Tensor, plan: Plan) -> tuple[nn.Module, dict[str, Any]]:
    """Until the loss is at the target, the epochs are over, or those that fit in the minutes."""
    torch.manual_seed(plan.seed)
    draws = torch.Generator(x.device).manual_seed(plan.seed)
    net = network.make().to(x.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0, momentum=0.9, weight_decay=plan.decay)
    steps, epochs = max(1, len(x) // BATCH), plan.epochs
    begin = time.perf_counter()
    learn = learning(net, optimizer, next(shuffled(x, y, draws, plan.still))[0], plan.eager)
    ready = time.perf_counter()
    course: list[dict[str, float]] = []
    loss = accuracy = math.nan
    while len(course) < epochs:
        done = len(course)
        rates = lambda part, n=done, e=epochs: rate(n + part, e, network.rate)  # noqa: E731
        on_the_way = epoch(learn, optimizer, shuffled(x, y, draws, plan.still), rates, steps)
        loss, accuracy = judged(net, x, y)
        seconds = time.perf_counter() - begin
        course.append({"loss": loss, "on the way": on_the_way, "seconds": seconds})
        if done % 10 == 0:
            print(f"{network.title}, epoch {done + 1}: {loss:.4f}, {seconds:.0f} s", flush=True)
        if (
            done == 1
        ):  # the first holds what happens once; the schedule is to end within the minutes
            each = course[1]["seconds"] - course[0]["seconds"]
            left = 60 * plan.minutes - (ready - begin)
            epochs = max(2, min(plan.epochs, int(left / each)))
        if loss <= plan.target:
            break
    ends = {"loss": loss, "accuracy": accuracy, "reached": loss <= plan.target}
    told = {"parameters": sum(p.numel() for p in net.parameters()), "images": len(x)}
    return net, {**told, **ends, **asdict(plan), "schedule": epochs, "course": course}


def train_all(networks: tuple[Network, ...], out: Path, x: Tensor, y: Tensor, plan: Plan) -> None:
    torch.backends.cudnn.benchmark = True
    target = plan.target
    for network in networks:
        weights, record = out / f"{network.file}.safetensors", out / f"{network.file}.json"
        if not weights.exists():
            net, found = train(network, x, y, replace(plan, target=target))
            test = judged(net, *(t.to(x.device) for t in cifar10(len(x))))
            found |= {"rate": network.rate, "test loss": test[0], "test accuracy": test[1]}
            found |= {"device": device_name(x.device), "torch": str(torch.__version__)}
            save_file({k: t.cpu().contiguous() for k, t in net.state_dict().items()}, weights)
            record.write_text(json.dumps({"network": network.title, **found}, indent=1))
        found = json.loads(record.read_text())
        target = max(target, found["loss"])
        print(
            f"{network.title}: loss {found['loss']:.4f} (target {found['target']:.4f}), accuracy "
            f"{found['accuracy']:.4f}, on test images {found['test accuracy']:.4f}, "
            f"{len(found['course'])} epochs of {found['schedule']}, "
            f"{found['course'][-1]['seconds']:.0f} s",
            flush=True,
        )


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


# Pictures -------------------------------------------------------------------------------------


def surfaces(
    networks: tuple[Network, ...], out: Path, x: Tensor, y: Tensor, options: argparse.Namespace
) -> dict[tuple[str, str], Any]:
    """The planes of every kind through every network, one JSON file each."""
    torch.backends.cudnn.benchmark = False
    found = {}
    for network in networks:
        net = network.make()
        net.load_state_dict(load_file(out / f"{network.file}.safetensors"))
        objective = sl.Objective(net.eval().to(x.device), (x, y), F.cross_entropy)
        for kind in ("convexity",) if options.convexity else KINDS:
            path = out / f"{network.file}_{kind.replace(', ', '_')}.json"
            if not path.exists():
                surface = taken(objective, kind, options)
                surface.to_json(path)
                print(f"{network.title}, {kind}\n{surface}", flush=True)
            known = sl.load(path)
            assert isinstance(known, sl.Surface)
            print(f"{network.title}, {kind}: {rings(known)}", flush=True)
            found[kind, network.title] = known
    return found


def rings(surface: sl.Surface) -> str:
    """Geometric means of the loss at three distances from the centre."""
    said = []
    for radius in (0.25, 0.5, 1.0):
        logs = [
            math.log(value)
            for y, row in zip(surface.y, surface.values, strict=True)
            for x, value in zip(surface.x, row, strict=True)
            if value and math.isfinite(value) and abs(math.hypot(x, y) - radius) < 0.06
        ]
        mean = math.exp(sum(logs) / len(logs)) if logs else math.nan
        said.append(f"{mean:.3g} at {radius} ({len(logs)} places)")
    return "mean losses: " + ", ".join(said)


def taken(objective: sl.Objective, kind: str, options: argparse.Namespace) -> sl.Surface:
    """A picture of this kind; a rescaled network predicts the same."""
    seed: dict[str, Any] = {"span": options.span, "seed": options.seed}
    if kind == "convexity":
        curved: dict[str, Any] = {"steps": min(5, options.steps), "tol": 0.01, "budget": 60}
        return sl.landscape.convexity(objective, "filter", **curved, **seed)
    if kind == "filter, rescaled":
        group = sl.symmetries(objective)
        objective = group.apply(objective, group.random(options.seed, 1.0))
    return sl.landscape.plane(objective, kind.partition(",")[0], steps=options.steps, **seed)


def draw(found: dict[tuple[str, str], Any], path: Path) -> None:
    """One row for each kind, one column for each network, the same colours for the same losses."""
    import matplotlib as mpl
    import numpy as np

    mpl.use("agg")
    from matplotlib import pyplot as plt

    kinds = list(dict.fromkeys(kind for kind, _ in found))
    titles = list(dict.fromkeys(title for _, title in found))
    figure, axes = plt.subplots(
        len(kinds), len(titles), figsize=(3.1 * len(titles) + 0.9, 2.9 * len(kinds)),
        squeeze=False, sharex="row", sharey="row", layout="constrained",
    )  # fmt: skip
    for row, kind in zip(axes, kinds, strict=True):
        grids = [
            np.array([[np.nan if v is None else v for v in line] for line in found[kind, t].values])
            for t in titles
        ]
        known = np.concatenate([grid[np.isfinite(grid) & (grid > 0)] for grid in grids])
        least = max(float(known.min()), 1e-6)
        levels = np.geomspace(least, np.clip(known.max(), 2 * least, 1e4 * least), 17)
        filled = [
            panel(axis, title, found[kind, title], grid, levels)
            for axis, title, grid in zip(row, titles, grids, strict=True)
        ]
        row[0].set_ylabel("convexity" if kind == "convexity" else f"{kind} directions")
        bar = figure.colorbar(filled[0], ax=list(row), format="%.3g", ticks=levels[::4])
        bar.set_label("|least / largest eigenvalue|" if kind == "convexity" else "loss")
    figure.savefig(path, dpi=160)


def panel(axis: Any, title: str, surface: Any, grid: Any, levels: Any) -> Any:
    """One plane; white where a value is not a number, the last colour where it is infinite."""
    import numpy as np
    from matplotlib.colors import LogNorm

    shown = np.ma.masked_invalid(np.where(np.isposinf(grid), 10 * levels[-1], grid))
    norm = LogNorm(levels[0], levels[-1])
    filled = axis.contourf(
        surface.x, surface.y, shown, levels=levels, norm=norm, cmap="viridis", extend="both"
    )
    axis.contour(surface.x, surface.y, shown, levels=levels, colors="white", linewidths=0.4)
    axis.plot(0, 0, "+", color="white")
    centre = surface.centre()
    axis.set_title(title + ("" if centre is None else f"\ncentre {centre:.3g}"), size=9)
    axis.set_aspect("equal")
    return filled


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/nets"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--minutes", type=float, default=2.5, help="of training, each network")
    parser.add_argument("--epochs", type=int, default=200, help="at most")
    parser.add_argument("--target", type=float, default=0.05, help="the training loss to stop at")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--decay", type=float, default=5e-4, help="of the weights")
    parser.add_argument("--still", action="store_true", help="no crops, no flips: learns faster")
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs")
    parser.add_argument("--draw", action="store_true", help="the planes, of what is trained")
    parser.add_argument("--images", type=int, help="15,000 to train with, 2,000 to draw")
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--span", type=float, default=1.0)
    parser.add_argument("--convexity", action="store_true", help="a 5 x 5 map of it instead")
    parser.add_argument("--small", action="store_true", help="tiny networks, to try the script")
    options = parser.parse_args()
    networks = SMALL if options.small else NETWORKS
    images = options.images or (256 if options.small else 2_000 if options.draw else 15_000)
    options.out.mkdir(parents=True, exist_ok=True)
    x, y = (t.to(options.device) for t in cifar10(images, "train"))
    if options.draw:
        draw(surfaces(networks, options.out, x, y, options), options.out / "planes.png")
        return
    plan = Plan(**{field.name: getattr(options, field.name) for field in fields(Plan)})
    train_all(networks, options.out, x, y, plan)


if __name__ == "__main__":
    main()
