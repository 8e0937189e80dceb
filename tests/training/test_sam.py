"""Sharpness-aware minimization against its formula, in double precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from climbs import RATE, X, Y, closure_of, convolutional, flat, net, same, slope
from spiritlevel.training.sam import SAM


def ones(w: Tensor) -> Tensor:
    return torch.ones_like(w)


def filters(w: Tensor) -> Tensor:
    if w.ndim < 2:
        return w.abs() + 0.01
    return torch.stack([torch.full_like(f, float(f.norm())) for f in w]) + 0.01


UNITS: dict[Any, Callable[[Tensor], Tensor]] = {
    False: ones,
    True: lambda w: w.abs() + 0.01,
    "element": lambda w: w.abs() + 0.01,
    "filter": filters,
}


def units_of(model: nn.Module, adaptive: Any) -> Tensor:
    return torch.cat([UNITS[adaptive](p.detach()).reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize("norm", [2, 2.0, math.inf])
@pytest.mark.parametrize("adaptive", UNITS)
@pytest.mark.parametrize("make", [net, convolutional])
def test_one_step_is_the_formula(make: Callable[[], nn.Module], adaptive: Any, norm: float) -> None:
    model = make()
    before, t = flat(model), units_of(model, adaptive)
    g = slope(model, before)
    e = 0.1 * t**2 * g / (t * g).norm() if norm == 2 else 0.1 * t * g.sign()
    expected = before - RATE * slope(model, before + e)
    optimizer = SAM(model.parameters(), rho=0.1, adaptive=adaptive, norm=norm, lr=RATE)
    loss = optimizer.step(closure_of(model, optimizer))
    same(flat(model), expected)
    same(loss.detach(), F.cross_entropy(make()(X), Y).detach())


def test_a_base_with_a_state_sees_the_gradient_uphill() -> None:
    model, twin = net(), net()
    optimizer = SAM(model.parameters(), torch.optim.AdamW, rho=0.05, lr=0.01)
    plain = torch.optim.AdamW(twin.parameters(), lr=0.01)
    closure = closure_of(model, optimizer)
    for _ in range(4):
        optimizer.step(closure)
        here = flat(twin)
        g = slope(twin, here)
        uphill = slope(twin, here + 0.05 * g / g.norm())
        pieces = uphill.split([p.numel() for p in twin.parameters()])
        for p, piece in zip(twin.parameters(), pieces, strict=True):
            p.grad = piece.view_as(p)
        plain.step()
    torch.testing.assert_close(flat(model), flat(twin), rtol=1e-11, atol=1e-13)


def test_the_published_treatment_of_biases_is_a_group_of_their_own() -> None:
    """T = |w| + eta for weights and 1 for biases, one norm over both."""
    model = net()
    weights = [p for p in model.parameters() if p.ndim > 1]
    biases = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": weights}, {"params": biases, "adaptive": False}]
    optimizer = SAM(groups, rho=0.5, adaptive=True, lr=RATE)
    before = flat(model)
    t = torch.cat(
        [(p.abs() + 0.01 if p.ndim > 1 else ones(p)).reshape(-1) for p in model.parameters()]
    )
    g = slope(model, before)
    expected = before - RATE * slope(
        model, before + 0.5 * t.detach() ** 2 * g / (t * g).norm().detach()
    )
    optimizer.step(closure_of(model, optimizer))
    same(flat(model), expected)


def test_two_calls_are_the_closure() -> None:
    model, twin = net(), net()
    optimizer = SAM(model.parameters(), rho=0.1, lr=RATE, momentum=0.9)
    other = SAM(twin.parameters(), rho=0.1, lr=RATE, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)  # warns where no step is seen
    torch.optim.lr_scheduler.StepLR(other, 1, 0.5)
    for k in range(3):
        F.cross_entropy(model(X), Y).backward()
        before = flat(model)
        assert optimizer.ascend()
        assert (flat(model) - before).norm() == pytest.approx(0.1, rel=1e-12)
        assert all(p.grad is None for p in model.parameters())
        F.cross_entropy(model(X), Y).backward()
        optimizer.descend()
        optimizer.zero_grad()
        other.param_groups[0]["lr"] = RATE * 0.5**k
        other.step(closure_of(twin, other))
        scheduler.step()
        assert torch.equal(flat(model), flat(twin))


def test_step_at_the_top_goes_down_and_elsewhere_says_what_is_missing() -> None:
    model, twin = net(), net()
    optimizer, other = (SAM(m.parameters(), rho=0.1, lr=RATE) for m in (model, twin))
    F.cross_entropy(model(X), Y).backward()
    before = flat(model)
    with pytest.raises(sl.SpiritlevelError, match=r"step\(\) needs two gradients: give step\(clos"):
        optimizer.step()
    with pytest.raises(sl.SpiritlevelError, match=r"descend\(\) without ascend\(\)"):
        optimizer.descend()
    assert torch.equal(flat(model), before)
    optimizer.ascend()
    for wrong, message in (
        (optimizer.ascend, r"ascend\(\) twice: call descend\(\)"),
        (lambda: optimizer.step(closure_of(model, optimizer)), r"step\(closure\) after ascend\(\)"),
        (optimizer.state_dict, r"state_dict\(\) between ascend\(\) and descend\(\)"),
    ):
        with pytest.raises(sl.SpiritlevelError, match=message):
            wrong()
    F.cross_entropy(model(X), Y).backward()
    seen: list[int] = []
    optimizer.register_step_post_hook(lambda *_: seen.append(optimizer.steps))
    optimizer.step()
    other.step(closure_of(twin, other))
    assert torch.equal(flat(model), flat(twin))
    assert seen == [1]  # one step is one, whatever it calls
    optimizer.step(closure_of(model, optimizer))
    F.cross_entropy(model(X), Y).backward()
    optimizer.ascend()
    F.cross_entropy(model(X), Y).backward()
    optimizer.descend()
    assert seen == [1, 2, 3]


def test_every_third_step_climbs() -> None:
    model, calls = net(), 0
    optimizer = SAM(model.parameters(), rho=0.1, lr=RATE, every=3)
    inside = closure_of(model, optimizer)

    def closure() -> Tensor:
        nonlocal calls
        calls += 1
        return inside()

    expected = flat(model)
    for k in range(7):
        assert optimizer.due == (k % 3 == 0)
        g = slope(model, expected)
        top = expected + 0.1 * g / g.norm() if k % 3 == 0 else expected
        expected = expected - RATE * slope(model, top)
        optimizer.step(closure)
        same(flat(model), expected)
    assert calls == 7 + 3
    inside()
    before = flat(model)
    optimizer.step()  # the eighth does not climb: one gradient is enough
    same(flat(model), before - RATE * slope(model, before))
    inside()
    before = flat(model)
    assert not optimizer.ascend()  # who always makes two passes makes a plain step
    assert torch.equal(flat(model), before)
    inside()
    optimizer.descend()
    same(flat(model), before - RATE * slope(model, before))
    assert optimizer.due


@pytest.mark.parametrize("weights", [None, [4, 4, 4], [6, 4, 2]])
def test_every_part_of_the_batch_climbs_on_its_own(weights: list[int] | None) -> None:
    model = net()
    optimizer = SAM(model.parameters(), rho=0.1, lr=RATE)
    sizes = weights or [4, 4, 4]
    pieces = list(zip(X.split(sizes), Y.split(sizes), strict=True))
    before, expected = flat(model), torch.zeros_like(flat(model))
    for (x, y), count in zip(pieces, sizes, strict=True):
        g = slope(model, before, x, y)
        expected += count / 12 * slope(model, before + 0.1 * g / g.norm(), x, y)
    loss = optimizer.step([closure_of(model, optimizer, x, y) for x, y in pieces], weights=weights)
    same(flat(model), before - RATE * expected)
    assert loss.item() == pytest.approx(F.cross_entropy(net()(X), Y).item(), rel=1e-13)


def test_one_example_at_a_time() -> None:
    """1-SAM by hand: for (a_i w)^2 / 2 the point uphill is w + rho sign(a_i^2 w)."""
    a, w = (
        torch.tensor([1.0, -2.0, 3.0]).double(),
        nn.Parameter(torch.tensor(0.7, dtype=torch.float64)),
    )
    optimizer = SAM([w], rho=0.2, lr=0.1)

    def part(i: int) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = (a[i] * w) ** 2 / 2
            loss.backward()
            return loss

        return closure

    optimizer.step([part(i) for i in range(3)])
    assert w.item() == pytest.approx(0.7 - 0.1 * (1 + 4 + 9) / 3 * 0.9, rel=1e-15)


def test_parts_that_do_not_see_a_weight_leave_its_gradient_out() -> None:
    a, b, c = (nn.Parameter(torch.ones(1).double()) for _ in range(3))
    optimizer = SAM([a, b, c], rho=0.0, lr=0.1, weight_decay=0.5)

    def part(w: Tensor) -> Callable[[], None]:
        def closure() -> None:
            optimizer.zero_grad()
            w.square().sum().backward()

        return closure

    assert optimizer.step([part(a), part(b)]) is None
    expected = 1 - 0.1 * (1 + 0.5)
    assert [w.item() for w in (a, b, c)] == pytest.approx([expected, expected, 1.0], rel=1e-15)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([1, 2], r"weights=\[1, 2\]: give one number for each of the 3 closures"),
        ([1, 2, -1], "weights=-1: give a number of at least 0"),
        ([0, 0, 0], r"weights=\[0, 0, 0\]: give some that are positive"),
    ],
)
def test_weights_that_are_none(wrong: list[float], message: str) -> None:
    optimizer = SAM(net().parameters(), lr=RATE)
    with pytest.raises(sl.SpiritlevelError, match=message):
        optimizer.step([lambda: None] * 3, weights=wrong)


def normed(momentum: float | None) -> nn.Sequential:
    torch.manual_seed(3)
    norm = nn.BatchNorm1d(5, momentum=momentum)
    model = nn.Sequential(nn.Linear(4, 5), norm, nn.ReLU(), nn.Linear(5, 3)).double()
    model.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=False)

    def count(module: Any, inputs: Any) -> None:
        module.calls = module.calls + 1  # replaces the buffer, which a copy in place does not see

    model.register_forward_pre_hook(count)
    return model


@pytest.mark.parametrize("momentum", [0.3, None])
def test_the_second_pass_leaves_no_trace_in_buffers(momentum: float | None) -> None:
    model, plain, traced = (normed(momentum) for _ in range(3))
    optimizer = SAM(model.parameters(), rho=0.5, lr=RATE, model=model)
    forgetful = SAM(traced.parameters(), rho=0.5, lr=RATE)
    optimizer.step(closure_of(model, optimizer))
    forgetful.step(closure_of(traced, forgetful))
    plain(X)
    kept, once, twice = (dict(m.named_buffers()) for m in (model, plain, traced))
    assert all(torch.equal(kept[name], once[name]) for name in once)
    assert int(kept["1.num_batches_tracked"]) == int(kept["calls"]) == 1
    assert int(twice["1.num_batches_tracked"]) == int(twice["calls"]) == 2
    assert not torch.equal(twice["1.running_mean"], once["1.running_mean"])


def test_gradients_over_several_passes_are_those_of_one() -> None:
    model, twin = net(), net()
    optimizer, other = (SAM(m.parameters(), rho=0.1, lr=RATE) for m in (model, twin))
    for _ in range(3):
        for go in (optimizer.ascend, optimizer.descend):
            for x, y in zip(X.split([5, 4, 3]), Y.split([5, 4, 3]), strict=True):
                (F.cross_entropy(model(x), y, reduction="sum") / 12).backward()
            go()
        optimizer.zero_grad()
        other.step(closure_of(twin, other))
        torch.testing.assert_close(flat(model), flat(twin), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bad", [math.inf, math.nan, 0.0])
def test_gradients_without_a_direction_do_not_climb(bad: float) -> None:
    w = nn.Parameter(torch.tensor([1.0, 2.0]).double())
    optimizer = SAM([w], rho=0.1, lr=RATE)
    for norm in (2.0, math.inf):
        optimizer.norm = norm
        w.grad = torch.tensor([0.0 if bad == 0 else 1.0, bad]).double()
        assert not optimizer.ascend()
        assert torch.equal(w.detach(), torch.tensor([1.0, 2.0]).double())
        w.grad = torch.zeros(2).double()
        optimizer.descend()
        assert torch.equal(w.detach(), torch.tensor([1.0, 2.0]).double())


@pytest.mark.parametrize("size", [1e-44, 1e-38, 1e-25, 1e-8, 1.0, 1e18, 1e30, 1e37])
@pytest.mark.parametrize("adaptive", [False, True])
def test_single_precision_climbs_as_far_whatever_the_gradients_size(
    size: float, adaptive: bool
) -> None:
    """Squares overflow and vanish long before gradients do."""
    w = nn.Parameter(torch.tensor([1.0, 1.0]))
    optimizer = SAM([w], rho=0.5, adaptive=adaptive, eta=0.0, lr=1.0)
    w.grad = torch.tensor([3.0, -4.0]) * size
    optimizer.ascend()
    rough = 0.3 if size < 1e-40 else 1e-6  # such numbers have few bits
    torch.testing.assert_close(w.detach(), torch.tensor([1.3, 0.6]), rtol=rough, atol=0)


def test_maximized_losses_are_left_downhill() -> None:
    w, v = (nn.Parameter(torch.tensor([1.0, 2.0]).double()) for _ in range(2))
    up, down = SAM([w], rho=0.1, lr=RATE, maximize=True), SAM([v], rho=0.1, lr=RATE)

    def part(p: Tensor, sign: float, optimizer: SAM) -> Callable[[], None]:
        def closure() -> None:
            optimizer.zero_grad()
            (sign * p**3).sum().backward()

        return closure

    up.step(part(w, -1.0, up))
    down.step(part(v, 1.0, down))
    assert torch.equal(w, v)


def test_weights_are_where_they_were_after_a_closure_that_fails() -> None:
    model, calls = net(), 0
    optimizer = SAM(model.parameters(), rho=0.1, lr=RATE)
    inside, before = closure_of(model, optimizer), flat(model)

    def closure() -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return inside()

    with pytest.raises(KeyboardInterrupt):
        optimizer.step(closure)
    assert torch.equal(flat(model), before)
    optimizer.step(inside)
    assert not torch.equal(flat(model), before)


def test_sparse_gradients_are_refused() -> None:
    table = nn.Embedding(4, 2, sparse=True)
    optimizer = SAM(table.parameters(), lr=RATE)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(sl.SpiritlevelError, match=r"sparse or spread over processes; give"):
        optimizer.ascend()
