"""What a user meets: the top eigenvalue of a ResNet-20 as the first call of a fresh process.

    SPIRITLEVEL_DATA=... python benchmarks/first.py --device cuda --images 10000

Each contender has a process of its own; the clock runs from the tensors on the device to the value.
With --warm each makes a call on a quarter of the images before.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import torch
from peers import (
    BATCH,
    LARGE_BATCH,
    Line,
    curvlinops_eigenvalue,
    our_eigenvalue,
    pyhessian_eigenvalue,
    show,
    timed,
)
from resnet20 import cifar10, trained
from torch import Tensor

OURS = ("spiritlevel", "spiritlevel, residual alone")
CONTENDERS = ("PyHessian", "curvlinops + eigsh", *OURS)


def one_call(name: str, device: str, images: int, warm: bool) -> Line:
    """What a user meets: the first call of a fresh process, from the tensors on the device on."""
    size = LARGE_BATCH if device == "cuda" else BATCH
    ways: dict[str, Callable[..., tuple[float, Tensor, float]]] = {
        "PyHessian": partial(pyhessian_eigenvalue, seed=0, size=size),
        "curvlinops + eigsh": partial(curvlinops_eigenvalue, size=size),
        OURS[0]: lambda m, a, b: our_eigenvalue(m, a, b, "auto"),
        OURS[1]: lambda m, a, b: our_eigenvalue(m, a, b, "auto", sure=False),
    }
    x, y = (t.to(device) for t in cifar10(images))
    model = trained().to(device)
    with contextlib.redirect_stdout(io.StringIO()):
        if warm:
            ways[name](model, x[: images // 4], y[: images // 4])
        seconds, found = timed(device, lambda: ways[name](model, x, y))
    value, _, products = found  # type: ignore[misc]
    return Line(name, seconds, products, value)


def _alone(name: str, device: str, images: int, warm: bool) -> Line:
    command = [sys.executable, __file__, "--device", device, "--images", str(images)]
    command += ["--one", name, *["--warm"] * warm]
    said = subprocess.run(command, capture_output=True, check=True, text=True)
    return Line(**json.loads(said.stdout.splitlines()[-1]))


def first_lines(names: tuple[str, ...], device: str, images: int, warm: bool) -> list[Line]:
    """Each in a process of its own, the second of two, so that nobody compiles Python files."""
    lines = []
    for name in names:
        if not warm:
            _alone(name, device, 256, warm)
        lines.append(_alone(name, device, images, warm))
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=None)
    parser.add_argument("--alone", action="store_true", help="without the peers")
    parser.add_argument("--warm", action="store_true", help="after a call on fewer images")
    parser.add_argument("--one", choices=CONTENDERS, help="only this, in a process of its own")
    options = parser.parse_args()
    images = options.images or (10_000 if options.device == "cuda" else 1_000)
    if options.one:
        print(json.dumps(asdict(one_call(options.one, options.device, images, options.warm))))
        return
    lines = first_lines(OURS if options.alone else CONTENDERS, options.device, images, options.warm)
    show("warm call" if options.warm else "first call", lines, "PyHessian")


if __name__ == "__main__":
    main()
