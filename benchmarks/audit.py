"""How long an audit takes, part by part, and how it grows.

    python benchmarks/audit.py default growth                       # two CPU cores
    SPIRITLEVEL_DATA=... python benchmarks/audit.py resnet20 --device cuda --images 10000

"default" is `spiritlevel audit`, training included. "resnet20" is the orbit minimum of the
Gauss-Newton spectral norm from the given weights and from a rescaled twin, and then the whole
default audit. "growth" counts the products of the orbit minimum against the number of rescalings.
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise

import torch
import torch.nn.functional as F
from resnet20 import cifar10, trained
from torch import nn

import spiritlevel as sl
from spiritlevel.objective.default import digits


def parts(audit: sl.Audit) -> None:
    """Products and seconds of every row, summed over its points; what is shared is paid once."""
    print("| part | points | products | seconds |\n|---|---|---|---|")
    for row in audit.rows:
        products = sum(e.matvecs for e in row.values.values())
        seconds = sum(e.seconds for e in row.values.values())
        print(f"| {row.title} | {len(row.values)} | {products:.0f} | {seconds:.1f} |")
    p = audit.provenance
    print(f"| points and proofs | {len(audit.certificates)} | | {p['seconds_for_points']:.1f} |")
    print(f"| all | | {p['products']:.0f} | {p['seconds']:.1f} |\n", flush=True)


def default() -> None:
    begin = time.perf_counter()
    audit = sl.audit(sl.default_objective())
    print(f"default audit with training: {time.perf_counter() - begin:.1f} s\n")
    parts(audit)


def resnet20(device: str, images: int) -> None:
    objective = sl.Objective(trained().to(device), cifar10(images), F.cross_entropy)
    begin = time.perf_counter()
    group = sl.symmetries(objective)
    print(
        f"ResNet-20, {images} images: {group.dim} rescalings, {time.perf_counter() - begin:.1f} s"
    )
    twin = group.apply(objective, group.random(0, 1.0))
    print("| start | norm there | least | no less than | products | seconds |")
    print("|---|---|---|---|---|---|")
    for name, point in {"given": objective, "rescaled": twin}.items():
        m = sl.orbit.minimum(point, group)
        print(
            f"| {name} | {m.before:.2f} | {m.value:.3f} | {m.lower_bound:.3f} | {m.products:.0f} | "
            f"{m.seconds:.1f} |",
            flush=True,
        )
    audit = sl.audit(objective)
    print(f"\n{audit}\n")
    parts(audit)


def growth() -> None:
    print("| hidden units | rescalings | products | seconds | gap |\n|---|---|---|---|---|")
    for width in (8, 16, 32, 64, 128):
        torch.manual_seed(0)
        sizes = (64, width, width, width, 10)
        layers = [m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())][:-1]
        (x, y), _ = digits()
        net = nn.Sequential(*layers)
        optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
        for _ in range(300):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
        objective = sl.Objective(net, (x, y), F.cross_entropy)
        group = sl.symmetries(objective)
        m = sl.orbit.minimum(objective, group)
        gap = m.value / m.lower_bound - 1  # type: ignore[operator]
        cells = f"{3 * width} | {group.dim} | {m.products:.0f} | {m.seconds:.1f} | {gap:.1e}"
        print(f"| {cells} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="audits")
    parser.add_argument("what", nargs="+", choices=["default", "resnet20", "growth"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=1000)
    chosen = parser.parse_args()
    print(f"torch {torch.__version__}, {chosen.device}, {torch.get_num_threads()} threads\n")
    for what in chosen.what:
        if what == "resnet20":
            resnet20(chosen.device, chosen.images)
        else:
            {"default": default, "growth": growth}[what]()


if __name__ == "__main__":
    main()
