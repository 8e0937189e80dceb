"""One Hessian product and the top eigenvalue of a trained ResNet-20, peers side by side.

    SPIRITLEVEL_DATA=... python benchmarks/curvature.py --device cuda --images 10000

Every answer is judged by its true relative residual ||Hv - lambda v|| / |lambda|, computed in
float64 for all. Peers run as their own README shows them, and again with
cudnn.benchmark on. `--what transformer` is a GPT-2-small-sized net, 8 x 512 tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from peers import (
    LARGE_BATCH,
    Line,
    curvlinops_eigenvalue,
    curvlinops_operator,
    double_backward_product,
    median,
    our_eigenvalue,
    pyhessian_eigenvalue,
    pyhessian_product,
    show,
    timed,
)
from resnet20 import cifar10, trained
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.curvature.engine import Engine

TABLES = {  # and the row that the others are compared with
    "eigenvalue": "PyHessian",
    "product": "PyHessian product",
    "transformer": "GPT-2 small, double backward",
    "trace": "",
}


# Ours -----------------------------------------------------------------------------------------


def our_products(model: nn.Module, x: Tensor, y: Tensor, device: str, repeats: int) -> list[Line]:
    """The gradient and the product of one kind each: eager, and compiled on a GPU."""
    objective = sl.Objective(model, (x, y), F.cross_entropy)
    v = torch.randn(objective.size, device=device)
    eager = sl.hessian(objective, compile=False)
    eager @ v  # the second product is recorded, those after it are played
    note = f"rounding {eager.rounding:.0e}, {len(objective.batches)} microbatches"
    lines = [
        Line("spiritlevel gradient, eager", median(device, objective.gradient, repeats)),
        Line("spiritlevel product, eager", median(device, lambda: eager @ v, repeats), note=note),
    ]
    if device == "cpu":
        return lines
    operator = sl.hessian(objective, compile=True)
    for _ in range(2):  # from the beginning, recorded
        operator @ v
    cost, _ = timed(device, lambda: operator @ v)
    slope = torch.compile(objective.gradient_sum, dynamic=False)
    gradient = median(device, lambda: [slope(b) for b in objective.batches], repeats)
    engine = operator.matvec.__self__  # type: ignore[attr-defined]
    assert isinstance(engine, Engine)
    product = median(device, lambda: operator @ v, repeats)
    ratio = f"{product / gradient:.2f} gradients; {engine.note}; compiling took {cost:.0f} s"
    lines.append(Line("spiritlevel gradient, compiled", gradient))
    lines.append(Line("spiritlevel product, compiled", product, note=ratio))
    return lines


def our_warm_eigenvalue(model: nn.Module, x: Tensor, y: Tensor, device: str) -> Line:
    """The eigenvalue when the product is compiled already."""
    objective = sl.Objective(model, (x, y), F.cross_entropy)
    operator = sl.hessian(objective, compile=True)
    for _ in range(3):  # from the beginning, recorded, compiled
        operator @ torch.randn(objective.size, device=device)
    seconds, pairs = timed(device, lambda: sl.eigenpairs(operator))
    return Line(
        "spiritlevel, product compiled before",
        seconds,
        pairs[0].matvecs,  # type: ignore[index]
        pairs[0].value,  # type: ignore[index]
        pairs[0].residual / pairs[0].value,  # type: ignore[index]
    )


# The tables -----------------------------------------------------------------------------------


def contenders(
    device: str, seeds: list[int], alone: bool
) -> dict[str, Callable[..., tuple[float, Tensor, float]]]:
    """Peers with their examples' batches, and on a GPU with large ones, which suit it better."""
    peers: dict[str, Callable[..., tuple[float, Tensor, float]]] = {
        f"PyHessian, seed {s}": partial(pyhessian_eigenvalue, seed=s) for s in seeds
    }
    if device == "cuda":
        large = f"batches of {LARGE_BATCH}"
        peers[f"PyHessian ({large})"] = partial(pyhessian_eigenvalue, seed=0, size=LARGE_BATCH)
        peers[f"curvlinops + eigsh ({large})"] = partial(curvlinops_eigenvalue, size=LARGE_BATCH)
    else:
        peers["curvlinops + eigsh"] = curvlinops_eigenvalue
    ours = {"spiritlevel": lambda m, a, b: our_eigenvalue(m, a, b, "auto")}
    return ours if alone else {**peers, **ours}


def eigenvalue_lines(
    device: str, x: Tensor, y: Tensor, seeds: list[int], alone: bool
) -> list[Line]:
    # in float64, so that nobody's own rounding (tf32, memory layout) is taken for the truth
    exact = sl.Objective(trained().to(device), (x, y), F.cross_entropy, dtype=torch.float64)
    judge = sl.hessian(exact, compile=False)
    lines = []
    for tuned in (False, True) if device == "cuda" else (False,):
        torch.backends.cudnn.benchmark = tuned
        for name, run in contenders(device, seeds, alone).items():
            model = trained().to(device)
            with contextlib.redirect_stdout(io.StringIO()):  # peers chat
                run(model, x[:256], y[:256])  # warm up kernels and lazy imports
                seconds, found = timed(device, lambda r=run, m=model: r(m, x, y))
            value, vector, products = found  # type: ignore[misc]
            v = vector.to(device=device, dtype=torch.float64)
            v = v / v.norm()
            residual = float((judge @ v - value * v).norm()) / abs(value)
            label = name + (", cudnn.benchmark" if tuned else "")
            lines.append(Line(label, seconds, products, value, residual))
            gc.collect()
            print(lines[-1], flush=True)
    torch.backends.cudnn.benchmark = False
    if not alone:
        lines.append(middle("PyHessian", lines))
    if device == "cuda":
        if not alone:
            lines.append(middle("PyHessian", lines, ", cudnn.benchmark"))
        lines.append(our_warm_eigenvalue(trained().to(device), x, y, device))
    return lines


def middle(peer: str, lines: list[Line], end: str = "") -> Line:
    """The median over the seeds of a peer whose stopping is a matter of luck."""
    runs = [
        line for line in lines if line.what.startswith(f"{peer}, seed") and line.what.endswith(end)
    ]
    runs = [line for line in runs if end or "cudnn" not in line.what]
    median_run = sorted(runs, key=lambda line: line.seconds)[len(runs) // 2]
    return replace(median_run, what=f"{peer}{end}", note="the median of its seeds")


def product_lines(device: str, x: Tensor, y: Tensor, repeats: int, alone: bool) -> list[Line]:
    lines = []
    for tuned in () if alone else (False, True) if device == "cuda" else (False,):
        torch.backends.cudnn.benchmark = tuned
        end = ", cudnn.benchmark" if tuned else ""
        model = trained().to(device)
        plain = double_backward_product(model, x, y)
        lines.append(Line(f"double backward{end}", median(device, plain, repeats)))
        peer = pyhessian_product(model, x, y)
        lines.append(Line(f"PyHessian product{end}", median(device, peer, repeats)))
        v = torch.randn(sum(p.numel() for p in model.parameters()), device=device)
        other = partial(curvlinops_operator(model, x, y).__matmul__, v)  # type: ignore[attr-defined]
        lines.append(Line(f"curvlinops product{end}", median(device, other, repeats)))
        print(*lines[-3:], sep="\n", flush=True)
    torch.backends.cudnn.benchmark = False
    return lines + our_products(trained().to(device), x, y, device, repeats)


def transformer_lines(device: str) -> list[Line]:
    """GPT-2 small by its sizes, random weights, 8 x 512 tokens: time and peak memory."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).to(device).eval()  # type: ignore[arg-type]
    ids = torch.randint(0, 50257, (8, 512), device=device)
    objective = sl.Objective(model, {"input_ids": ids, "labels": ids}, microbatch=8)
    v = torch.randn(objective.size, device=device)
    lines = []
    for rung in ("jvp of gradient", "double backward"):
        operator = sl.hessian(objective, rung=rung, compile=False)
        for _ in range(2):
            operator @ v
        torch.cuda.reset_peak_memory_stats()
        seconds = median(device, lambda o=operator: o @ v, 3)
        peak = torch.cuda.max_memory_allocated() / 2**30
        lines.append(Line(f"GPT-2 small, {rung}", seconds, note=f"peak {peak:.1f} GiB"))
        print(lines[-1], flush=True)
    seconds = median(device, objective.gradient, 3)
    return [*lines, Line("GPT-2 small, gradient", seconds)]


def trace_line(device: str, x: Tensor, y: Tensor) -> Line:
    objective = sl.Objective(trained().to(device), (x, y), F.cross_entropy)
    found = sl.trace(sl.hessian(objective), method="hutch++", rtol=0.03)
    note = f"standard error {found.stderr:.3g}"
    return Line("spiritlevel trace, Hutch++", found.seconds, found.matvecs, found.value, note=note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of PyHessian")
    parser.add_argument(
        "--what", nargs="+", choices=TABLES, default=["eigenvalue", "product"], help="which tables"
    )
    parser.add_argument("--alone", action="store_true", help="without the peers")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = options.device
    images = options.images or (10_000 if device == "cuda" else 1_000)
    x, y = (t.to(device) for t in cifar10(images))
    print(
        f"torch {torch.__version__}, {device}, {images} images, {torch.get_num_threads()} threads"
    )
    lines = {
        "eigenvalue": lambda: eigenvalue_lines(device, x, y, options.seeds, options.alone),
        "product": lambda: product_lines(device, x, y, options.repeats, options.alone),
        "transformer": lambda: transformer_lines(device),
        "trace": lambda: [trace_line(device, x, y)],
    }
    tables = {what: lines[what]() for what in options.what}
    for what, rows in tables.items():
        show(what, rows, TABLES[what])
    if options.json:
        found = {what: [asdict(line) for line in rows] for what, rows in tables.items()}
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
