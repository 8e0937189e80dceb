"""What an objective refuses, in words that name the fix."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import spiritlevel as sl
from cases import BY_NAME, labels, randn, tokens

MLP = BY_NAME["mlp"]


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Random augmentation."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return MLP.data()[0][index] + torch.randn(4), MLP.data()[1][index]


def make(d: Any = None, loss: Any = F.cross_entropy, model: Any = None, **options: Any) -> None:
    sl.Objective(model or MLP.model(), MLP.data() if d is None else d, loss, **options)


def nan_data() -> tuple[Tensor, Tensor]:
    x, y = MLP.data()
    x[3, 1] = float("nan")
    return x, y


def kinked() -> nn.Module:
    """A point at which |b|^1.5 has no second derivative."""
    line = nn.Linear(4, 3).double()
    nn.init.zeros_(line.bias)
    return line


def frozen_model() -> nn.Module:
    return MLP.model().requires_grad_(False)


DROPOUT = nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 3)).double()
PAIRS = TensorDataset(*MLP.data())
REFUSALS: dict[str, tuple[Any, str]] = {
    "shuffled loader": (
        lambda: make(DataLoader(PAIRS, batch_size=5, shuffle=True)),
        "data differs between two passes.*shuffles: build it with shuffle=False",
    ),
    "augmentation": (lambda: make(Noisy()), "differs between two passes.*likely random augment"),
    "dropout": (
        lambda: make(model=DROPOUT, mode="train"),
        'differs between two evaluations.*use mode="eval", or fix the masks with seed=0',
    ),
    "NaN": (lambda: make(nan_data()), "the loss is nan: an input, a target or a prediction is not"),
    "empty list": (lambda: make([]), "data is empty: no batch"),
    "empty tensors": (lambda: make((randn(0, 4), labels(0))), "data is empty"),
    "all ignored": (
        lambda: make((randn(5, 4), torch.full((5,), -100))),
        "data is empty: no label counts",
    ),
    "frozen": (
        lambda: make(model=frozen_model()),
        "no trainable parameter; set requires_grad=True",
    ),
    "pattern": (
        lambda: make(params="conv*"),
        "params='conv\\*' matches no trainable parameter; there are: 0.weight",
    ),
    "batch": (lambda: make([randn(3, 4)]), "a batch of the kind Tensor is not understood; give"),
    "lone batch": (lambda: make([(randn(3, 4),)]), "of the kind tuple of 1 is not understood"),
    "no loss": (lambda: make(loss=None), "loss is missing for batches .x, y.: give one"),
    "not scalar": (
        lambda: make(loss=partial(F.cross_entropy, reduction="none")),
        r"loss\(outputs, y\) is not a scalar but shape \(2,\); average it",
    ),
    "not scalar, of model": (
        lambda: make(loss=lambda model, batch: model(batch[0])),
        r"what loss\(model, batch\) returns is not a scalar",
    ),
    "loss is no function": (lambda: make(loss="mse"), "loss is a str; give a function"),
    "model is no module": (lambda: make(model=len), "model is a builtin_function_or_method; give"),
    "data is a number": (lambda: make(3), "data is a int; give a pair of tensors"),
    "mode": (lambda: make(mode="test"), "mode='test' is not known; choose"),
    "microbatch": (lambda: make(microbatch=0), "microbatch=0: give a whole number"),
    "index as weight": (
        lambda: make((*MLP.data(), torch.arange(10))),
        "third member of a batch is its weight, a floating-point tensor; got torch.int64",
    ),
    "names as weight": (
        lambda: make([(*MLP.data(), ["a"] * 10)]),
        "third member of a batch is its weight, a floating-point tensor; got list",
    ),
    "mapping with a loss of outputs": (
        lambda: sl.Objective(BY_NAME["GPT-2"].model(), tokens(), F.cross_entropy),
        "the loss must be a function of the model: loss.model, batch.",
    ),
    "not twice differentiable": (
        lambda: sl.hessian(
            sl.Objective(
                kinked(),
                MLP.data(),
                lambda model, batch: (
                    model.bias.norm() ** 1.5 + F.cross_entropy(model(batch[0]), batch[1])
                ),
            )
        ),
        "agrees with a finite difference of gradients.*may not be twice differentiable",
    ),
    "weights need single losses": (
        lambda: make(
            (*MLP.data(), torch.ones(10)), loss=lambda out, y: F.cross_entropy(out, y) * 1
        ),
        "need a loss that takes reduction='none'",
    ),
    "batch statistics cannot be cut": (
        lambda: BY_NAME["cnn with BatchNorm"].objective(mode="train", microbatch=2),
        "microbatch=2 would change the loss",
    ),
    "at, size": (
        lambda: MLP.objective().at(torch.zeros(3)),
        "needs a vector of 43 numbers; got shape",
    ),
    "at, name": (
        lambda: MLP.objective().at({"x": randn(1)}),
        "unknown parameter 'x'; there are: 0.w",
    ),
    "at, shape": (
        lambda: MLP.objective().at({"2.bias": randn(1)}),
        r"of shape \(1,\); it needs \(3,\)",
    ),
    "no labels": (
        lambda: sl.Objective(BY_NAME["GPT-2"].model(), {"input_ids": tokens()["input_ids"]}),
        "returned .* and no loss for a batch with the keys .*: add 'labels'",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_name_the_fix(name: str) -> None:
    call, message = REFUSALS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(sl.SpiritlevelError, match=message):
            call()
