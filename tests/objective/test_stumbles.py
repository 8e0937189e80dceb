"""What the model or the loss raises comes out as one error that says so; what is ours does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from cases import labels, randn
from spiritlevel.objective import builder

X, Y = randn(20, 5), labels(20)


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double()


class Raising(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = mlp()

    def forward(self, x: Tensor) -> Tensor:
        raise KeyError("oops")


def penalized(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x = batch[0].clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return F.cross_entropy(model(x), batch[1]) + slope.square().mean()


def functional(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    slope = torch.func.grad(lambda x: model(x).sum())(batch[0])
    return F.cross_entropy(model(batch[0]), batch[1]) + slope.square().mean()


@pytest.mark.parametrize(
    ("make", "cause", "said"),
    [
        (lambda: (Raising(), (X, Y)), KeyError, r"KeyError: 'oops' \(test_stumbles.py, line 31\)"),
        (lambda: (mlp(), (X[:, :3], Y)), RuntimeError, "shapes cannot be multiplied"),
        (lambda: (mlp(), (X, Y + 0j)), RuntimeError, "Long"),
        (
            lambda: (mlp(), (X, Y), penalized),
            RuntimeError,
            "differentiate by torch.func.grad$",
        ),
    ],
)
def test_what_is_raised_on_the_given_data_is_told(
    make: Callable[[], Any], cause: type[Exception], said: str
) -> None:
    given = make()
    model, data, loss = given if len(given) == 3 else (*given, F.cross_entropy)
    with pytest.raises(sl.SpiritlevelError, match=r"^the model or the loss raised") as told:
        sl.Objective(model, data, loss)
    assert isinstance(told.value.__cause__, cause)
    with pytest.raises(sl.SpiritlevelError, match=said):
        raise told.value


def test_a_penalty_on_gradients_is_a_loss_by_torch_func() -> None:
    objective, model = sl.Objective(mlp(), (X, Y), functional), mlp()
    wanted = penalized(model, (X, Y))
    slopes = torch.autograd.grad(wanted, list(model.parameters()), materialize_grads=True)
    assert objective.value() == pytest.approx(wanted.item(), rel=1e-12)
    torch.testing.assert_close(objective.gradient(), torch.cat([g.flatten() for g in slopes]))


def test_what_is_ours_is_not_blamed_on_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "adapt", len)
    with pytest.raises(TypeError, match="takes exactly one argument"):
        sl.Objective(mlp(), (X, Y), F.cross_entropy)


def test_what_can_be_seen_before_it_runs() -> None:
    with pytest.raises(sl.SpiritlevelError, match=r"give one: CrossEntropyLoss\(\)"):
        sl.Objective(mlp(), (X, Y), nn.CrossEntropyLoss)
    lazy = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(sl.SpiritlevelError, match=r"^0.weight has no shape yet: run the model"):
        sl.Objective(lazy, (X, Y), F.cross_entropy)


def test_a_loss_without_a_second_derivative_says_so() -> None:
    objective = sl.Objective(mlp(), (X, Y), nn.MultiMarginLoss())
    assert objective.value() == pytest.approx(nn.MultiMarginLoss()(mlp()(X), Y).item())
    with pytest.raises(sl.SpiritlevelError, match="torch has no second derivative of this loss"):
        sl.hessian(objective)


# What is none of the user's business --------------------------------------------------------------


class Words(nn.Module):
    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(7, 4, sparse=sparse), nn.Linear(4, 3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(x).mean(1))


def test_sparse_gradients_of_words_are_those_of_dense_ones() -> None:
    tokens = torch.randint(0, 7, (20, 5), generator=torch.Generator().manual_seed(0))
    given = Words(sparse=True)
    sparse, dense = (
        sl.Objective(model, (tokens, Y), F.cross_entropy) for model in (given, Words(sparse=False))
    )
    assert torch.equal(sparse.gradient(), dense.gradient())
    least = [sl.orbit.minimum(one, norm="trace").value for one in (sparse, dense)]
    assert least[0] == least[1]
    assert given.words.sparse


class OldRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return slope * (x > 0)


class Old(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp()

    def forward(self, x: Tensor) -> Tensor:
        first, _, last = self.layers
        return last(OldRelu.apply(first(x)))


def test_functions_of_the_old_style_have_a_diagonal() -> None:
    old, new = (sl.Objective(net, (X, Y), F.cross_entropy) for net in (Old(), mlp()))
    found, wanted = sl.ggn_diagonal(old).values, sl.ggn_diagonal(new).values
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(found, sl.ggn(old).dense().diagonal(), rtol=1e-8, atol=1e-12)
