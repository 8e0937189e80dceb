"""Entropy-SGD: one step by hand, the local entropy of a quadratic, and the wide of two wells."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from cases import randn
from spiritlevel.training.entropy import EntropySGD


def parameter(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=torch.float64))


def closure_of(
    w: Tensor, optimizer: torch.optim.Optimizer, loss: Callable[[Tensor], Tensor]
) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(w)
        value.backward()
        return value

    return closure


def draws(seed: int, *shape: int) -> Iterator[Tensor]:
    source = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randn(*shape, generator=source, dtype=torch.float64)


def papers_step(x: Tensor, grad: Callable[[Tensor], Tensor], lr: float, seed: int) -> Tensor:
    """As printed: gamma 1, eta' = eta / 10, alpha 0.9, noise 2 sqrt(eta'), L = 20."""
    y, mu, noise = x.clone(), x.clone(), draws(seed, *x.shape)
    for _ in range(20):
        y = y - 0.1 * lr * (grad(y) - (x - y)) + 2 * math.sqrt(0.1 * lr) * next(noise)
        mu = 0.1 * mu + 0.9 * y
    return x - lr * (x - mu)


def released_steps(
    x: Tensor, grad: Callable[[Tensor], Tensor], lr: float, seed: int, steps: int
) -> Tensor:
    """As the code runs, with a counter that counts; the outer momentum is torch's.

    The sign of the noise, which does not matter, is ours.
    """
    noise, outer = draws(seed, *x.shape), torch.zeros_like(x)
    for t in range(steps):
        y, mu, speed = x.clone(), x.clone(), torch.zeros_like(x)
        gamma = 1e-4 * 1.001**t
        for _ in range(20):
            d = grad(y) + 0.01 * y
            speed = 0.9 * speed + d
            d = d + 0.9 * speed
            d = d - gamma * (x - y) - 1e-4 / math.sqrt(0.5 * 0.1) * next(noise)
            y = y - 0.1 * d
            mu = 0.75 * mu + 0.25 * y
        d = (x - mu) + 0.01 * x
        outer = 0.9 * outer + d
        x = x - lr * (d + 0.9 * outer)
    return x


def quartic(w: Tensor) -> Tensor:
    return (w**4 / 4 + w**2 / 2).sum()


def steep(w: Tensor) -> Tensor:
    return w**3 + w


def test_one_step_of_the_papers_version() -> None:
    w = parameter(0.4, -0.7, 1.1)
    expected = papers_step(w.detach(), steep, 0.3, seed=5)
    optimizer = EntropySGD([w], lr=0.3, seed=5)
    loss = optimizer.step(closure_of(w, optimizer, quartic))
    torch.testing.assert_close(w.detach(), expected, rtol=1e-13, atol=1e-14)
    start = torch.tensor([0.4, -0.7, 1.1], dtype=torch.float64)
    assert loss.item() == pytest.approx(quartic(start).item(), rel=1e-14)
    assert "the paper's version, inner=20" in repr(optimizer)


def test_steps_of_the_released_version() -> None:
    w = parameter(0.4, -0.7, 1.1)
    expected = released_steps(w.detach(), steep, 0.3, seed=5, steps=3)
    options = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}
    optimizer = EntropySGD([w], version="released", lr=0.3, seed=5, **options)
    for _ in range(3):
        optimizer.step(closure_of(w, optimizer, quartic))
    torch.testing.assert_close(w.detach(), expected, rtol=1e-12, atol=1e-14)
    assert "the released version, inner=20" in repr(optimizer)


def test_a_share_of_the_plain_gradient_takes_one_more_call() -> None:
    w = parameter(0.4, -0.7)
    optimizer = EntropySGD([w], lr=0.5, inner=3, noise=0.0, gradient=0.2, scoping=0.5)
    calls: list[Tensor] = []

    def loss(w: Tensor) -> Tensor:
        calls.append(w.detach().clone())
        return quartic(w)

    x = w.detach().clone()
    for t in range(2):
        y, mu, gamma = x, x, 1.5**t
        for _ in range(3):
            y = y - 0.05 * (steep(y) - gamma * (x - y))
            mu = 0.1 * mu + 0.9 * y
        optimizer.step(closure_of(w, optimizer, loss))
        assert len(calls) == 4 * (t + 1)
        assert torch.equal(calls[-1], x)
        x = x - 0.5 * (gamma * (x - mu) + 0.2 * steep(x))
        torch.testing.assert_close(w.detach(), x, rtol=1e-14, atol=1e-15)
        x = w.detach().clone()


def test_each_pass_may_have_a_closure_of_its_own() -> None:
    w, order = parameter(1.0), []
    optimizer = EntropySGD([w], lr=0.1, inner=3)
    plain = closure_of(w, optimizer, quartic)

    def named(name: int) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            order.append(name)
            return plain()

        return closure

    optimizer.step([named(k) for k in range(3)])
    assert order == [0, 1, 2]
    with pytest.raises(
        sl.SpiritlevelError, match="closure has 2 functions; give one, or 3, as inn"
    ):
        optimizer.step([named(0), named(1)])
    with pytest.raises(sl.SpiritlevelError, match=r"closure=None: give a function that clears"):
        optimizer.step()


K, G, START, STEP = 3.0, 0.7, 2.0, 1e-3


def quadratic(w: Tensor) -> Tensor:
    return K * w.square().sum() / 2


@pytest.mark.parametrize(("version", "factor"), [("paper", G), ("released", 1.0)])
def test_without_noise_a_long_walk_gives_the_closed_form(version: Any, factor: float) -> None:
    """grad -F = k g / (k + g) x; the released code leaves out g."""
    w = parameter(START, -1.0)
    optimizer = EntropySGD(
        [w], version=version, gamma=G, noise=0.0, inner=200, inner_rate=0.1, scoping=0.0, lr=STEP,
        inner_momentum=0.0,
    )  # fmt: skip
    optimizer.step(closure_of(w, optimizer, quadratic))
    expected = torch.tensor([START, -1.0], dtype=torch.float64) * (1 - STEP * factor * K / (K + G))
    torch.testing.assert_close(w.detach(), expected, rtol=1e-13, atol=0)


def test_with_noise_the_gradient_is_that_of_the_local_entropy() -> None:
    """k g / (k + g) x within four standard errors, with the variance that the walk has.

    Each coordinate is a walk of its own: x' has the variance c^2 / (1 - (1 - r (k + g))^2), c^2 =
    2 r, about 1 / (k + g) as exp(-f - g |x - x'|^2 / 2) has.
    """
    many, rate = 4000, 0.02
    found = []
    for seed in range(3):
        w = nn.Parameter(torch.full((many,), START, dtype=torch.float64))
        optimizer = EntropySGD(
            [w], gamma=G, noise=math.sqrt(2), inner=150, inner_rate=rate, averaging=1.0, lr=STEP,
            seed=seed,
        )  # fmt: skip
        optimizer.step(closure_of(w, optimizer, quadratic))
        found.append((START - w.detach()) / STEP)
    slopes = torch.cat(found)
    error = slopes.std() / math.sqrt(len(slopes))
    expected = K * G / (K + G) * START
    assert abs(slopes.mean().item() - expected) < 4 * error.item()
    assert error.item() < 0.01 * expected
    shrink = 1 - rate * (K + G)
    variance = G**2 * 2 * rate / (1 - shrink**2)
    spread = slopes.var().item()
    assert spread == pytest.approx(variance, rel=4 * math.sqrt(2 / len(slopes)))
    assert not torch.equal(found[0], found[1])


NARROW, WIDE = 0.2, 1.0  # widths of two wells, equally deep, at -1 and at 2


def wells(w: Tensor) -> Tensor:
    narrow = torch.exp(-((w + 1) ** 2) / (2 * NARROW**2))
    wide = torch.exp(-((w - 2) ** 2) / (2 * WIDE**2))
    return -torch.log(narrow + wide + 1e-3).sum()


def test_the_wide_of_two_wells_is_found() -> None:
    """Many begin in the narrow one: gradient descent stays there, small gamma leaves it."""
    ends = {}
    for name in ("plain", "small gamma", "large gamma"):
        w = nn.Parameter(torch.linspace(-1.3, -0.7, 100, dtype=torch.float64))
        if name == "plain":
            optimizer: Any = torch.optim.SGD([w], lr=0.05)
        else:
            gamma = 0.1 if name == "small gamma" else 200.0
            optimizer = EntropySGD(
                [w], gamma=gamma, lr=0.5 / gamma, inner=100, inner_rate=0.02, averaging=0.05,
                noise=math.sqrt(2),
            )  # fmt: skip
        for _ in range(20):
            optimizer.step(closure_of(w, optimizer, wells))
        ends[name] = (w.detach() - 2).abs() < 1.5
    assert ends["plain"].sum() == 0
    assert ends["large gamma"].sum() <= 5
    assert ends["small gamma"].sum() >= 75  # 88 to 96 for five seeds


def test_weights_return_where_a_closure_fails_and_buffers_stay() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double()
    plain = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double()
    plain.load_state_dict(model.state_dict())
    optimizer = EntropySGD(model.parameters(), lr=0.1, inner=4, model=model)
    x, calls = randn(6, 3), 0

    def closure() -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        return loss

    before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    with pytest.raises(KeyboardInterrupt):
        optimizer.step(closure)
    assert torch.equal(nn.utils.parameters_to_vector(model.parameters()), before)
    plain(x)
    for (name, found), expected in zip(model.named_buffers(), plain.buffers(), strict=True):
        assert torch.equal(found, expected), name


def test_weights_without_gradients_do_not_walk() -> None:
    w, idle = parameter(1.0), parameter(2.0)
    optimizer = EntropySGD([w, idle], lr=0.1, inner=3)
    optimizer.step(closure_of(w, optimizer, quadratic))
    assert idle.item() == 2.0
    assert idle.grad is None
    assert w.item() != 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"version": "early"}, "version='early' is not known; choose one of 'paper', 'released'"),
        ({"inner": 0}, "inner=0: give a whole number of at least 1"),
        ({"gamma": -1}, "gamma=-1: give a number of at least 0"),
        ({"averaging": 0}, "averaging=0: give a positive number"),
        ({"inner_rate": 0}, "inner_rate=0: give a positive number"),
        ({"noise": "much"}, "noise='much': give a number of at least 0"),
        ({"gama": 1}, "gama: no option of EntropySGD or SGD; there are: gamma, scoping"),
        ({"seed": 0.5}, "seed=0.5: give a whole number of 64 bits"),
    ],
)
def test_what_cannot_be_used_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(sl.SpiritlevelError, match=message):
        EntropySGD([parameter(1.0)], **options)
