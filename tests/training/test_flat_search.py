"""Flat minimum search against a dense computation, and what its B and its lambda do."""

from __future__ import annotations

import copy
import gc
import io
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from cases import randn
from spiritlevel.training import FlatMinimumSearch

X = randn(12, 3)
Y = torch.stack([X[:, 0] * X[:, 1], X[:, 2].sin()], 1)


def net(*, bend: type[nn.Module] = nn.Tanh, bias: bool = True, seed: int = 1) -> Any:
    torch.manual_seed(seed)
    parts = [nn.Linear(3, 5, bias=bias), bend(), nn.Linear(5, 2, bias=bias)]
    return nn.Sequential(*parts).double()


def closure_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(X), Y)
        loss.backward()
        return loss

    return closure


def flat(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def measured(model: nn.Module) -> float:
    return sl.MEASURES["flat_minimum_search"](sl.Objective(model, (X, Y), F.mse_loss)).value


def dense(model: nn.Module, weight: float, eps: float = 0.01) -> tuple[Tensor, Tensor]:
    """E + weight B and its gradient, written down once more: all second derivatives by torch."""
    shapes = [p.shape for p in model.parameters()]
    names = [name for name, _ in model.named_parameters()]

    def outputs(vector: Tensor) -> Tensor:
        pieces = vector.split([s.numel() for s in shapes])
        state = {n: p.view(s) for n, p, s in zip(names, pieces, shapes, strict=True)}
        return torch.func.functional_call(model, state, (X,))

    def both(vector: Tensor) -> Tensor:
        jacobian = torch.func.jacrev(outputs)(vector)  # (examples, outputs, weights)
        size = torch.linalg.vector_norm(jacobian, dim=0) / len(X) ** 0.5
        size = size[:, size.sum(0) > 0]
        length = size.norm(dim=0)
        sums = (size / length).sum(1)
        n = len(length)
        b = length.log().sum() + n * sums.norm().log() - n * math.log(eps) / 2
        return F.mse_loss(outputs(vector), Y) + weight * b

    point = flat(model)
    return both(point), torch.func.grad(both)(point)


@pytest.mark.parametrize("bend", [nn.Tanh, nn.LeakyReLU])
def test_a_step_is_the_formula(bend: type[nn.Module]) -> None:
    model = net(bend=bend)
    total, slope = dense(model, 0.02)
    before, b = flat(model), measured(model)
    optimizer = FlatMinimumSearch(model.parameters(), model=model, weight=0.02, lr=0.1)
    loss = float(optimizer.step(closure_of(model, optimizer)).detach())
    assert optimizer.penalty == pytest.approx(b, rel=1e-13)
    assert loss + 0.02 * b == pytest.approx(float(total), rel=1e-13)
    assert (flat(model) - before + 0.1 * slope).norm() <= 1e-12 * before.norm()
    assert optimizer.silent == 0
    alone = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
    assert torch.allclose(alone, dense(net(bend=bend), 0.0)[1], rtol=1e-12, atol=1e-15)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.last = nn.LSTM(1, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.cell(x[:, :, None])[0][:, -1])


def normed() -> nn.Module:
    """Zeros at the end, behind which vmap's wrong derivatives of the norm would not be seen."""
    model: Any = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 2))
    nn.init.zeros_(model[3].weight)
    return model


@pytest.mark.parametrize("make", [normed, Recurrent])
def test_where_vmap_is_wrong_or_silent_the_slope_is_right(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(4)
    model = make().double()
    one = FlatMinimumSearch(model.parameters(), torch.optim.Adam, model=model, lr=0.05)
    for _ in range(2):  # away from the zeros, with what was decided at them
        one.step(closure_of(model, one))
    before = flat(model)
    optimizer = FlatMinimumSearch(model.parameters(), model=model, weight=1.0, lr=1.0)
    optimizer._mapped = one._mapped
    optimizer.step(lambda: (optimizer.zero_grad(), model(X).sum())[1])
    slope = before - flat(model)
    direction = torch.randn(len(slope), generator=torch.Generator().manual_seed(0)).double()
    found = []
    for sign in (1, -1):
        moved = before + sign * 1e-5 * direction
        nn.utils.vector_to_parameters(moved, model.parameters())
        found.append(measured(model))
    assert float(slope @ direction) == pytest.approx((found[0] - found[1]) / 2e-5, rel=1e-6)


def test_with_a_weight_of_zero_it_is_its_base() -> None:
    model, plain = net(), net()
    optimizer = FlatMinimumSearch(
        model.parameters(), torch.optim.Adam, model=model, weight=0.0, lr=0.1
    )
    base = torch.optim.Adam(plain.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.step(closure_of(model, optimizer))
        base.step(closure_of(plain, base))
    assert torch.equal(flat(model), flat(plain))
    assert optimizer.penalty is None


def test_silent_weights_are_left_out_and_counted() -> None:
    model = net(bend=nn.ReLU)
    with torch.no_grad():
        model[0].bias[2] = -100.0  # dead: 3 weights and a bias before, 2 weights after
    before, measured_before = flat(model), measured(model)
    _, slope = dense(model, 0.02)
    optimizer = FlatMinimumSearch(model.parameters(), model=model, weight=0.02, lr=0.1)
    optimizer.step(closure_of(model, optimizer))
    assert optimizer.silent == 6
    assert optimizer.penalty == pytest.approx(measured_before, rel=1e-13)
    assert (flat(model) - before + 0.1 * slope).norm() <= 1e-12 * before.norm()


def test_an_output_that_does_not_see_a_weight_has_no_infinite_slope() -> None:
    """Row k of the last layer is for output k alone: the roots are of zero."""
    model = net()
    optimizer = FlatMinimumSearch(model.parameters(), model=model, lr=0.1)
    optimizer.step(closure_of(model, optimizer))
    assert bool(flat(model).isfinite().all())


def test_layers_rescaled_against_each_other_change_b_by_what_they_hold() -> None:
    """Delta B = (n2 - n1) log a under (a W1, W2 / a)."""
    found = []
    for scale in (1.0, 3.0):
        model = net(bend=nn.LeakyReLU, bias=False)
        with torch.no_grad():
            model[0].weight *= scale
            model[2].weight /= scale
        optimizer = FlatMinimumSearch(model.parameters(), model=model, lr=0.0)
        optimizer.step(closure_of(model, optimizer))
        found.append(optimizer.penalty)
    assert found[1] - found[0] == pytest.approx((10 - 15) * math.log(3), rel=1e-12)


@pytest.mark.parametrize("seed", [1, 2])
def test_b_falls_at_an_equal_fit(seed: int) -> None:
    model = net(seed=seed)
    warm: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    while float(warm.step(closure_of(model, warm)).detach()) > 0.03:
        pass
    plain = copy.deepcopy(model)
    optimizer = FlatMinimumSearch(model.parameters(), model=model, weight=3e-3, lr=0.05)
    for _ in range(60):
        optimizer.step(closure_of(model, optimizer))
    reached = float(F.mse_loss(model(X), Y).detach())
    base: Any = torch.optim.SGD(plain.parameters(), lr=0.05)
    for _ in range(5000):
        if float(base.step(closure_of(plain, base)).detach()) <= reached:
            break
    assert float(F.mse_loss(plain(X), Y).detach()) <= reached, "a fit as good as the other"
    assert measured(model) < measured(plain) - 1


def told(losses: list[float], **options: Any) -> list[float]:
    """lambda after every step of a training with these losses, without any change of weights."""
    model = net()
    given = {"weight": 1.0, "change": 0.25, "tolerance": 1.0, "lr": 0.0, **options}
    optimizer = FlatMinimumSearch(model.parameters(), model=model, **given)
    found = []
    for loss in losses:

        def closure(loss: float = loss) -> float:
            model(X)
            return loss

        optimizer.step(closure)
        found.append(optimizer.param_groups[0]["weight"])
    return found


def test_lambda_follows_its_rule() -> None:
    # falls; grows above the average; grows less than the average; grows under the tolerance
    assert told([8, 9]) == [1.25, 1.25 * 0.9]
    assert told([8, 2, 3]) == [1.25, 1.5, 1.25]  # A = 0.9 (0.9 * 8 + 0.1 * 2) + 0.1 * 3 > 3
    assert told([0.2, 0.3, 0.4]) == [1.25, 1.5, 1.75]
    assert told([8, 2, 3, 2.5], change=5.0) == [6.0, 11.0, 6.0, 11.0]
    assert told([8, 2, 3, 4], weight=0.0, change=0.0) == [0.0] * 4
    assert told([8, 9], tolerance=None) == [1.0, 1.0]
    # the means of two steps are 8 and 9
    assert told([7, 9, 10, 8], every=2) == [1.0, 1.25, 1.25, 1.25 * 0.9]


def test_groups_have_weights_of_their_own() -> None:
    model = net()
    before = flat(model)
    dense_plain, dense_more = dense(model, 0.0)[1], dense(model, 0.02)[1]
    parts = [
        {"params": model[0].parameters(), "weight": 0.0, "change": 0.0},
        {"params": model[2].parameters(), "lr": 0.2},
    ]
    optimizer = FlatMinimumSearch(parts, model=model, weight=0.02, tolerance=9.0, lr=0.1)
    optimizer.step(closure_of(model, optimizer))
    cut = 3 * 5 + 5
    expected = torch.cat([0.1 * dense_plain[:cut], 0.2 * dense_more[cut:]])
    assert (flat(model) - before + expected).norm() <= 1e-12 * before.norm()
    assert [g["weight"] for g in optimizer.param_groups] == [0.0, 0.02 + 1e-4]


def test_some_weights_alone_have_a_box_of_their_own() -> None:
    model = net()
    objective = sl.Objective(model, (X, Y), F.mse_loss, params="2.*")
    frozen = model[0].weight.detach().clone()
    optimizer = FlatMinimumSearch(model[2].parameters(), model=model, lr=0.1)
    optimizer.step(closure_of(model, optimizer))
    expected = sl.MEASURES["flat_minimum_search"](objective).value
    assert optimizer.penalty == pytest.approx(expected, rel=1e-13)
    assert torch.equal(model[0].weight, frozen)


def test_batches_in_parts_are_one_batch() -> None:
    model, other = net(), net()
    one = FlatMinimumSearch(model.parameters(), model=model, lr=0.1)
    two = FlatMinimumSearch(other.parameters(), model=other, lr=0.1)
    one.step(closure_of(model, one))

    def accumulated() -> Tensor:
        two.zero_grad()
        losses = [F.mse_loss(other(X[s]), Y[s]) * part for s, part in PARTS]
        for loss in losses:
            loss.backward()
        return sum(losses)  # type: ignore[return-value]

    two.step(accumulated)
    assert (flat(model) - flat(other)).norm() <= 1e-13 * flat(model).norm()
    assert one.penalty == pytest.approx(two.penalty, rel=1e-13)


PARTS = [(slice(0, 8), 8 / 12), (slice(8, 12), 4 / 12)]


class Dropping(nn.Module):
    """Dropout, statistics and named inputs: what has to be as it was."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)
        self.last, self.drop = nn.Linear(4, 2), nn.Dropout(0.5)

    def forward(self, *, x: Tensor, loud: bool) -> dict[str, Tensor]:
        return {"logits": self.last(self.drop(self.norm(self.first(x)))) * (2 if loud else 1)}


def test_it_leaves_modes_statistics_and_chance_alone() -> None:
    torch.manual_seed(0)
    model: Any = Dropping().train()
    model.drop.eval()
    optimizer = FlatMinimumSearch(model.parameters(), model=model, lr=0.1)
    x = X.float()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x=x, loud=True)["logits"], Y.float())
        loss.backward()
        return loss

    chance = torch.get_rng_state()
    optimizer.step(closure)
    assert torch.equal(torch.get_rng_state(), chance)
    flags = [part.training for part in (model, model.norm, model.drop)]
    assert flags == [True, True, False]
    assert int(model.norm.num_batches_tracked) == 1, "the pass of the closure alone"
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in model.parameters())


def test_stored_and_loaded_it_goes_on_bit_for_bit() -> None:
    options: dict[str, Any] = {"tolerance": 0.5, "every": 2, "momentum": 0.9}
    model = net()
    optimizer = FlatMinimumSearch(model.parameters(), model=model, lr=0.02, **options)
    for _ in range(3):
        optimizer.step(closure_of(model, optimizer))
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    sent_net, sent = pickle.loads(pickle.dumps((model, optimizer)))
    again = net(seed=5)
    other = FlatMinimumSearch(again.parameters(), model=again, lr=1.0, weight=7.0, **options)
    again.load_state_dict(weights)
    other.load_state_dict(state)
    for _ in range(3):
        optimizer.step(closure_of(model, optimizer))
    for there, one in ((again, other), (sent_net, sent)):
        for _ in range(3):
            one.step(closure_of(there, one))
        assert torch.equal(flat(there), flat(model))
        assert one.penalty == optimizer.penalty
        assert one.param_groups[0]["weight"] == optimizer.param_groups[0]["weight"]


def test_a_scheduler_governs_it() -> None:
    model = net()
    optimizer = FlatMinimumSearch(model.parameters(), model=model, lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.0)
    optimizer.step(closure_of(model, optimizer))
    schedule.step()
    before = flat(model)
    optimizer.step(closure_of(model, optimizer))
    assert torch.equal(flat(model), before)


def hooks(model: nn.Module) -> int:
    return len(model._forward_pre_hooks)


def test_the_hook_ends_with_the_optimizer_and_stays_out_of_copies() -> None:
    model = net()
    optimizer = FlatMinimumSearch(model.parameters(), model=model, lr=0.1)
    assert hooks(model) == 1
    copied = copy.deepcopy(model)
    closed = FlatMinimumSearch(model.parameters(), model=model, lr=0.1)
    closed.close()
    assert hooks(model) == 1
    with pytest.raises(sl.SpiritlevelError, match="the closure did not call model"):
        closed.step(closure_of(model, closed))
    with pytest.raises(sl.SpiritlevelError, match="the closure did not call model"):
        optimizer.step(closure_of(copied, optimizer))
    del optimizer
    gc.collect()
    assert hooks(model) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": -1.0}, "weight=-1.0: give a number of at least 0"),
        ({"change": math.inf}, "change=inf: give a number of at least 0"),
        ({"every": 0}, "every=0: give a whole number of at least 1"),
        ({"tolerance": "low"}, "tolerance='low': give a number"),
        ({"model": None}, "model is a NoneType; give the"),
        ({"model": nn.Linear(2, 2)}, "that is no parameter of model, a Linear"),
        ({"rho": 1}, "rho: no option of FlatMinimumSearch or SGD"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    model = net()
    with pytest.raises(sl.SpiritlevelError, match=message):
        FlatMinimumSearch(model.parameters(), **{"model": model, "lr": 0.1, **options})


def test_bad_calls_are_refused() -> None:
    model = net()
    optimizer = FlatMinimumSearch(model.parameters(), model=model, lr=0.1)
    with pytest.raises(sl.SpiritlevelError, match="closure is None"):
        optimizer.step()
    heard = FlatMinimumSearch(model.parameters(), model=model, lr=0.1, tolerance=0.1)
    with pytest.raises(sl.SpiritlevelError, match="the closure returned no loss"):
        heard.step(lambda: model(X).sum().backward())
    with pytest.raises(sl.SpiritlevelError, match="no common axis of examples"):
        optimizer.step(lambda: model(X[:0]).sum())
    wide: Any = nn.Linear(3, 129).double()
    many = FlatMinimumSearch(wide.parameters(), model=wide, lr=0.1)
    with pytest.raises(sl.SpiritlevelError, match="examples have 129 outputs"):
        many.step(lambda: wide(X).sum())
