"""What the benchmarks share: lines of tables, clocks, the peers as their READMEs show them, us."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl

BATCH = 128  # what the peers' examples load the data with
LARGE_BATCH = 2500  # what suits a GPU better


@dataclass
class Line:
    """One row of the table."""

    what: str
    seconds: float
    products: float | None = None
    value: float | None = None
    residual: float | None = None
    note: str = ""


def timed(device: str, action: Callable[[], object]) -> tuple[float, object]:
    if device == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    result = action()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin, result


def median(device: str, action: Callable[[], object], repeats: int) -> float:
    action()
    return sorted(timed(device, action)[0] for _ in range(repeats))[repeats // 2]


def batches(x: Tensor, y: Tensor, size: int = BATCH) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(size), y.split(size), strict=True))


def pyhessian_eigenvalue(
    model: nn.Module, x: Tensor, y: Tensor, seed: int, size: int = BATCH
) -> tuple[float, Tensor, float]:
    from pyhessian import hessian  # type: ignore[import-not-found]

    peer = hessian(model, nn.CrossEntropyLoss(), dataloader=batches(x, y, size), cuda=x.is_cuda)
    count = 0
    plain = peer.dataloader_hv_product

    def counted(v: list[Tensor]) -> object:
        nonlocal count
        count += 1
        return plain(v)

    peer.dataloader_hv_product = counted
    torch.manual_seed(seed)  # it draws its start from the global generator
    values, vectors = peer.eigenvalues(top_n=1)
    return values[0], torch.cat([v.reshape(-1) for v in vectors[0]]), count


def pyhessian_product(
    model: nn.Module, x: Tensor, y: Tensor, size: int = BATCH
) -> Callable[[], object]:
    from pyhessian import hessian  # type: ignore[import-not-found]

    peer = hessian(model, nn.CrossEntropyLoss(), dataloader=batches(x, y, size), cuda=x.is_cuda)
    v = [torch.randn_like(p) for p in peer.params]
    return lambda: peer.dataloader_hv_product(v)


def curvlinops_operator(model: nn.Module, x: Tensor, y: Tensor, size: int = BATCH) -> object:
    from curvlinops import HessianLinearOperator  # type: ignore[import-not-found]

    params = [p for p in model.parameters() if p.requires_grad]
    return HessianLinearOperator(
        model, nn.CrossEntropyLoss(), params, batches(x, y, size), check_deterministic=False
    )


def curvlinops_eigenvalue(
    model: nn.Module, x: Tensor, y: Tensor, size: int = BATCH
) -> tuple[float, Tensor, float]:
    from scipy.sparse.linalg import LinearOperator, eigsh

    scipy_form = curvlinops_operator(model, x, y, size).to_scipy()  # type: ignore[attr-defined]
    count = 0

    def counted(v: object) -> object:
        nonlocal count
        count += 1
        return scipy_form @ v

    form: Any = LinearOperator(scipy_form.shape, matvec=counted, dtype=scipy_form.dtype)  # type: ignore[call-arg]
    values, vectors = eigsh(form, k=1, which="LA", tol=1e-3)  # type: ignore[arg-type]
    return float(values[0]), torch.from_numpy(vectors[:, 0].copy()), count


def double_backward_product(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], object]:
    params = [p for p in model.parameters() if p.requires_grad]
    v = [torch.randn_like(p) for p in params]

    def product() -> list[Tensor]:
        total = [torch.zeros_like(p) for p in params]
        for a, b in batches(x, y):
            loss = F.cross_entropy(model(a), b, reduction="sum") / len(x)
            slope = torch.autograd.grad(loss, params, create_graph=True)
            for t, piece in zip(total, torch.autograd.grad(slope, params, v), strict=True):
                t.add_(piece)
        return total

    return product


def our_eigenvalue(
    model: nn.Module, x: Tensor, y: Tensor, compile: bool | str, sure: bool = True
) -> tuple[float, Tensor, float]:
    """From the model and the data to the eigenvalue: nothing is prepared outside.

    Without `sure` to a residual of 1e-3 alone, as the peers: nobody asks for what was missed.
    """
    objective = sl.Objective(model, (x, y), F.cross_entropy)
    pairs = sl.eigenpairs(sl.hessian(objective, compile=compile), sure=sure)  # type: ignore[arg-type]
    return pairs[0].value, pairs.vectors[:, 0], pairs[0].matvecs


def show(title: str, lines: list[Line], base: str) -> None:
    reference = next((line.seconds for line in lines if line.what == base), None)
    print(
        f"\n{title}\n| what | seconds | {base} / this | products | value | true residual | note |"
    )
    print("|---|---|---|---|---|---|---|")
    for line in lines:
        ratio = f"{reference / line.seconds:.1f}" if reference else ""
        cells = [
            line.what,
            f"{line.seconds:.3f}",
            ratio,
            "" if line.products is None else f"{line.products:.3g}",
            "" if line.value is None else f"{line.value:.3f}",
            "" if line.residual is None else f"{line.residual:.1e}",
            line.note,
        ]
        print("| " + " | ".join(cells) + " |")
