"""How the time of a Hessian product grows with examples and with parameters, next to PyHessian.

    SPIRITLEVEL_DATA=... python benchmarks/growth.py --device cuda --json growth.json
    python benchmarks/growth.py --draw growth.json --out docs/growth.svg

Examples: the trained ResNet-20, 1,000 to 10,000 images. Parameters: ResNet-20s of other widths with
random weights, 1,000 images. PyHessian loads batches of 2,500 on a GPU, of 128 on a CPU. Slopes are
those of lines through the logarithms: 1 is in proportion.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from peers import BATCH, LARGE_BATCH, median, pyhessian_product
from resnet20 import ResNet, cifar10, trained
from torch import Tensor, nn

import spiritlevel as sl

EXAMPLES = (1_000, 2_000, 5_000, 10_000)
WIDTHS = (10, 32, 64, 128, 320)  # 0.1 to 108 million parameters
IMAGES = 1_000
Row = dict[str, Any]


def products(model: nn.Module, x: Tensor, y: Tensor, device: str) -> Row:
    """Seconds of a product that is played, of one from the beginning, and of PyHessian's."""
    objective = sl.Objective(model, (x, y), F.cross_entropy)
    v = torch.randn(objective.size, device=device)
    fresh = sl.hessian(objective, compile=False)
    first = median(device, lambda: sl.hessian(objective, compile=False) @ v, 1)
    for _ in range(2):
        fresh @ v
    played = median(device, lambda: fresh @ v, 3)
    size = LARGE_BATCH if device == "cuda" else BATCH
    peer = median(device, pyhessian_product(model, x, y, size), 1)
    return {
        "parameters": objective.size, "examples": len(x),
        "spiritlevel": played, "PyHessian": peer, "first": first,
    }  # fmt: skip


def measured(device: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {"examples": [], "parameters": []}
    for count in EXAMPLES:
        x, y = (t.to(device) for t in cifar10(count))
        found["examples"].append(products(trained().to(device), x, y, device))
        print(found["examples"][-1], flush=True)
    x, y = (t.to(device) for t in cifar10(IMAGES))
    for width in WIDTHS:
        torch.manual_seed(0)
        found["parameters"].append(products(ResNet(width=width).eval().to(device), x, y, device))
        print(found["parameters"][-1], flush=True)
    return found


def slope(rows: list[Row], along: str, who: str) -> float:
    x, y = ([math.log(row[key]) for row in rows] for key in (along, who))
    return float(np.polyfit(x, y, 1)[0])


def table(found: dict[str, list[Row]]) -> None:
    for along, rows in found.items():
        print(f"\n| {along} | spiritlevel, ms | PyHessian, ms | ratio |\n|---|---|---|---|")
        for row in rows:
            ours, theirs = row["spiritlevel"], row["PyHessian"]
            cells = f"{row[along]:,} | {1e3 * ours:.1f} | {1e3 * theirs:.1f} | {theirs / ours:.1f}"
            print(f"| {cells} |")
        slopes = [f"{slope(rows, along, who):.2f}" for who in ("spiritlevel", "PyHessian")]
        print(f"| slope | {slopes[0]} | {slopes[1]} | |")


def draw(found: dict[str, list[Row]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "spiritlevel"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")
    colours = {"spiritlevel": "#1f6f8b", "PyHessian": "#b5651d"}
    for axis, (along, rows) in zip(axes, found.items(), strict=True):
        for who, colour in colours.items():
            label = f"{who}, slope {slope(rows, along, who):.2f}"
            line = [row[along] for row in rows], [row[who] for row in rows]
            axis.loglog(*line, "o-", color=colour, label=label)
        axis.set_xlabel(along)
        axis.legend(frameon=False)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("seconds of a Hessian product")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="write what was measured here")
    parser.add_argument("--draw", type=Path, help="draw what was measured before")
    parser.add_argument("--out", type=Path, default=Path("growth.svg"))
    options = parser.parse_args()
    found = json.loads(options.draw.read_text()) if options.draw else measured(options.device)
    table(found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    if options.draw:
        draw(found, options.out)


if __name__ == "__main__":
    main()
