"""Data in the order and in the batches of a case, and cases at random."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from premises.case import CLASSES, IGNORED, Case, input_shape, precision
from premises.losses import BY_REDUCTION, KINDS, OF_LOGARITHMS, OF_LOGITS, OF_MASKED, SKIPS
from premises.nets import MASKS, SINGLE, STRUCTURES


def _targets(kind: str, n: int, classes: int, draws: torch.Generator) -> Tensor:
    if kind == "labels":
        return torch.randint(0, classes, (n,), generator=draws)
    real = torch.randn(n, classes, generator=draws, dtype=torch.float64)
    made = {"real": real, "soft": real.softmax(1), "binary": (real > 0).double()}
    return made[kind] if kind in made else real.sign()


@dataclass(frozen=True)
class Data:
    x: Tensor
    y: Tensor
    weight: Tensor  # of the examples: ones where the loss has none
    batches: list[tuple[Tensor, ...]]


def data_of(case: Case) -> Data:
    """In the order and the batches of the case; in its precision where the user gives them."""
    n, kind = case.examples, KINDS[case.loss]
    draws = torch.Generator().manual_seed(case.seed)
    x = torch.randn(n, *input_shape(case), generator=draws, dtype=torch.float64)
    # what is shut has no label
    classes = CLASSES - 1 if case.end in MASKS else CLASSES
    y = _targets(kind.target, n, classes, draws)
    weight = torch.ones(n, dtype=torch.float64)
    if kind.weighted:
        weight = torch.rand(n, generator=draws, dtype=torch.float64) + 0.1
        weight[n // 2] = 0.0
    late = torch.arange(n) >= n - max(n // 4, 1)
    if case.order == "sorted":
        place = y if y.ndim == 1 else y[:, 0]
        x, y = x[place.argsort()], y[place.argsort()]
    if case.order == "outliers late":
        x = torch.where(late.reshape(-1, *(1,) * (x.ndim - 1)), 20 * x, x)
        y = torch.where(late.unsqueeze(1), 10 * y, y) if kind.target == "real" else y
    if case.order == "ignored late":
        y = torch.where(late, IGNORED, y)
    precise = precision(case)
    x, weight = x.to(precise).double(), weight.to(precise).double()
    y = y.to(precise).double() if y.is_floating_point() else y
    columns = [x, y, weight] if kind.weighted else [x, y]
    columns = [c.to(precise) if c.is_floating_point() else c for c in columns]
    edges = sorted({0, n, *(round(share * n) for share in case.cuts)})
    batches = [tuple(c[a:b] for c in columns) for a, b in itertools.pairwise(edges) if b > a]
    return Data(x, y, weight, batches)


# What is looked at beside what every case shows; what takes long comes rarely
LOOKS = (
    *("nothing", "trace of ggn", "spectral of ggn", "trace of hessian", "ends", "audit"),
    *("frobenius of ggn", "frobenius of hessian", "spectral of hessian", "estimates"),
    *("orbit measures", "compare", "spectral of ggn", "trace of hessian", "audit", "sharpen"),
    *("discrete", "orbit measures"),
)


@st.composite
def cases(draw: st.DrawFn, architecture: str) -> Case:
    """All combinations that make sense."""
    end = draw(st.sampled_from(["plain"] * 4 + ["log_softmax"] + ["mask"]))
    end = draw(st.sampled_from(MASKS)) if end == "mask" else end
    losses = OF_MASKED if end in MASKS else OF_LOGARITHMS if end == "log_softmax" else OF_LOGITS
    loss = draw(st.sampled_from(losses))
    structures = SINGLE if loss in BY_REDUCTION else tuple(STRUCTURES)
    structure = draw(st.sampled_from(("tensor", "tensor", *structures)))
    orders = ["shuffled", "sorted", "outliers late"]
    order = draw(st.sampled_from(orders + ["ignored late"] * (loss in SKIPS)))
    return Case(
        architecture=architecture,
        end=end,
        loss=loss,
        structure=structure,
        order=order,
        double=draw(st.sampled_from([True, True, False])),
        confidence=draw(st.sampled_from([1, 4, 16])),
        examples=draw(st.integers(8, 16)),
        cuts=tuple(sorted(draw(st.lists(st.floats(0.05, 0.95), max_size=2)))),
        microbatch=draw(st.sampled_from([None, None, None, 5])),
        steps=draw(st.sampled_from([0, 0, 40])),
        seed=draw(st.integers(0, 10**6)),
        look=draw(st.sampled_from(LOOKS)),
    )
