"""How long an audit takes, part by part, and how it grows.

    python benchmarks/audit.py default growth                       # two CPU cores
    SPIRITLEVEL_DATA=... python benchmarks/audit.py resnet20 --device cuda --images 10000

"default" is `spiritlevel audit`, training included. "resnet20" is the orbit minimum of the
Gauss-Newton spectral norm from the given weights and from a rescaled twin, and then the whole
default audit. "compare" is of two such nets, "estimate" what is foretold of the audit. "mlp" is the
exact diagonal and the orbit minimum of an MLP with 400,906 parameters. "growth" counts the products
of the orbit minimum against the number of rescalings.
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from resnet20 import cifar10, data_folder, trained
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


def compared(device: str, images: int) -> None:
    """Two ResNet-20 that predict differently: the second has 2 % of noise on every weight."""
    data, nets = cifar10(images), {"trained": trained(), "noisy": trained()}
    torch.manual_seed(0)
    with torch.no_grad():
        for p in nets["noisy"].parameters():
            p.mul_(1 + 0.02 * torch.randn_like(p))
    pair = {n: sl.Objective(net.to(device), data, F.cross_entropy) for n, net in nets.items()}
    begin = time.perf_counter()
    print(sl.compare(pair))
    print(f"compare of two: {time.perf_counter() - begin:.1f} s\n", flush=True)


def mlp(device: str) -> None:
    """An MLP 784-256-256-256-256-10 trained briefly on 1,000 images of Fashion-MNIST."""
    with np.load(data_folder() / "fashion_mnist.npz") as file:
        images, labels = (next(file[k] for k in file if file[k].ndim == n) for n in (3, 1))
    x = torch.from_numpy(images[:1000]).float().reshape(1000, -1) / 255
    y = torch.from_numpy(labels[:1000].astype(np.int64))
    torch.manual_seed(0)
    widths = (784, 256, 256, 256, 256, 10)
    net = nn.Sequential(
        *[m for a, b in pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())][:-1]
    )
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    objective = sl.Objective(net, (x, y), F.cross_entropy, device=device)
    group = sl.symmetries(objective)
    objective.gradient()
    begin = time.perf_counter()
    objective.gradient()
    middle = time.perf_counter()
    sl.ggn_diagonal(objective)
    end = time.perf_counter()
    print(f"diagonal: {(end - middle) / (middle - begin):.0f} gradients, {end - middle:.2f} s")
    found = sl.orbit.minimum(objective, group)
    gap = found.value / found.lower_bound - 1  # type: ignore[operator]
    print(f"{group.dim} rescalings: {found}; gap {gap:.0e}, {found.seconds:.1f} s\n", flush=True)


def foretold(device: str, images: int) -> None:
    """What `estimate` says of an audit, and what it takes."""
    objective = sl.Objective(trained().to(device), cifar10(images), F.cross_entropy)
    ahead = sl.estimate(objective, audit=True)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    made = sl.audit(objective, way=False)
    seconds = time.perf_counter() - begin
    print(f"foretold {ahead.seconds:.1f} s, took {seconds:.1f} s", end="; ")
    print(f"{ahead.products:.0f} products, made {made.provenance['products']:.0f}", end="; ")
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else float("nan")
    print(f"{ahead.memory / 2**30:.1f} GiB, peak {peak:.1f} GiB\n", flush=True)


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


PARTS = {
    "default": lambda device, images: default(),
    "growth": lambda device, images: growth(),
    "resnet20": resnet20,
    "compare": compared,
    "mlp": lambda device, images: mlp(device),
    "estimate": foretold,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="audits")
    parser.add_argument("what", nargs="+", choices=list(PARTS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=1000)
    chosen = parser.parse_args()
    print(f"torch {torch.__version__}, {chosen.device}, {torch.get_num_threads()} threads\n")
    for what in chosen.what:
        PARTS[what](chosen.device, chosen.images)


if __name__ == "__main__":
    main()
