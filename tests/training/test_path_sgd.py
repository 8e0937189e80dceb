"""Path-SGD: its scales in closed form, and steps that no rescaling of units changes."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import spiritlevel as sl
from cases import labels, randn
from spiritlevel.training import PathSGD

X, Y = randn(8, 4), labels(8)


def mlp() -> Any:
    torch.manual_seed(1)
    parts = [nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)]
    return nn.Sequential(*parts).double()


def cnn() -> Any:
    torch.manual_seed(2)
    parts = [nn.Conv2d(1, 3, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3, 3)]
    return nn.Sequential(nn.Unflatten(1, (1, 4, 4)), *parts).double()


def closure_of(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Callable[[], Any]:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), Y)
        loss.backward()
        return loss

    return closure


def flat(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def test_scales_of_two_layers_are_sums_of_squares() -> None:
    torch.manual_seed(0)
    net: Any = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    one, other = (net[i].weight.detach().square() for i in (0, 2))
    bias = net[0].bias.detach().square()
    found = PathSGD(net.parameters(), model=net, example=X, lr=0.1).path_scales()
    assert torch.allclose(found["0.weight"], other.sum(0)[:, None].expand(5, 4), rtol=1e-14)
    assert torch.allclose(found["0.bias"], other.sum(0), rtol=1e-14)
    assert torch.allclose(found["2.weight"], (one.sum(1) + bias).expand(3, 5), rtol=1e-14)
    assert torch.equal(found["2.bias"], torch.ones(3).double())


def test_scales_are_the_derivatives_of_the_path_norm() -> None:
    net = cnn()
    x = randn(8, 16)
    objective = sl.Objective(net, (x, Y), F.cross_entropy)
    found = PathSGD(net.parameters(), model=net, example=x, lr=0.1).path_scales()
    norm = sl.MEASURES["path_norm"](objective).value ** 2
    name, place = "1.weight", (2, 0, 1, 0)
    weight = objective.params[name]
    weight[place] = (weight[place].square() + 1e-3).sqrt()
    moved = sl.MEASURES["path_norm"](objective.at({name: weight})).value ** 2
    assert (moved - norm) / 1e-3 == pytest.approx(float(found[name][place]), rel=1e-9)


def test_on_a_balanced_chain_a_step_is_one_of_sgd_with_another_rate() -> None:
    """y = w2 w1 x with w1 = w2 = w: both scales are w^2."""
    net: Any = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
    nn.init.constant_(net[0].weight, 0.5)
    nn.init.constant_(net[1].weight, 0.5)
    optimizer = PathSGD(net.parameters(), model=net, lr=0.1)
    loss = (net(torch.full((1, 1), 3.0).double()) - 1).square().sum() / 2
    loss.backward()
    optimizer.step()
    # g = (w^2 x - 1) x w = -0.25 * 3 * 0.5
    expected = 0.5 + 0.1 * 0.375 / 0.25
    assert [float(p.detach()) for p in net.parameters()] == pytest.approx([expected] * 2, rel=1e-14)
    assert float(net[0].weight.grad) == -0.375, "the gradient of the loss is still there"


def stepped(net: nn.Module, kind: Any, x: Tensor, steps: int = 3, **options: Any) -> Tensor:
    """The predictions after some steps."""
    optimizer = kind(net.parameters(), **options)
    for _ in range(steps):
        optimizer.step(closure_of(net, optimizer, x))
    with torch.no_grad():
        return net(x)


GROUP = sl.symmetries(mlp(), X)


@settings(max_examples=8)
@given(seed=st.integers(0, 10**6), momentum=st.sampled_from([0.0, 0.9]))
def test_rescaled_units_make_rescaled_steps(seed: int, momentum: float) -> None:
    model, twin = mlp(), mlp()
    t = GROUP.random(seed, scale=0.7)
    twin.load_state_dict(GROUP.act(dict(mlp().state_dict()), t))
    options: dict[str, Any] = {"lr": 0.02, "momentum": momentum, "weight_decay": 0.01}
    here, there = (stepped(m, PathSGD, X, model=m, example=X, **options) for m in (model, twin))
    assert (here - there).abs().max() <= 1e-10 * here.abs().max()
    moved = GROUP.act(dict(model.named_parameters()), t)
    for name, p in twin.named_parameters():
        assert torch.allclose(p, moved[name], rtol=1e-9, atol=1e-12)


def test_sgd_makes_other_steps_of_a_rescaled_network() -> None:
    model, twin = mlp(), mlp()
    twin.load_state_dict(GROUP.act(dict(mlp().state_dict()), GROUP.random(0, scale=0.7)))
    assert torch.allclose(model(X), twin(X), rtol=1e-12)
    here, there = (stepped(m, torch.optim.SGD, X, lr=0.02) for m in (model, twin))
    assert (here - there).abs().max() > 1e-3


def test_so_it_is_with_convolutions_and_maxima() -> None:
    model, twin, x = cnn(), cnn(), randn(8, 16)
    group = sl.symmetries(model, x)
    assert group.dim == 3
    twin.load_state_dict(group.act(dict(cnn().state_dict()), group.random(1)))
    here, there = (stepped(m, PathSGD, x, model=m, example=x, lr=0.02) for m in (model, twin))
    assert (here - there).abs().max() <= 1e-10 * here.abs().max()
    assert (here - cnn()(x)).abs().max() > 1e-3


def test_units_without_paths_stay() -> None:
    net = mlp()
    with torch.no_grad():
        net[2].weight[:, 1] = 0.0
        net[4].weight[:, 2] = 0.0
    before = {n: p.detach().clone() for n, p in net.named_parameters()}
    stepped(net, PathSGD, X, steps=1, model=net, example=X, lr=0.1)
    after = dict(net.named_parameters())
    assert torch.equal(after["0.weight"][1], before["0.weight"][1])
    assert torch.equal(after["2.bias"][2], before["2.bias"][2])
    assert not torch.equal(after["2.weight"], before["2.weight"])


def test_groups_have_options_of_their_own() -> None:
    net, whole = mlp(), mlp()
    before = dict(mlp().named_parameters())
    stepped(whole, PathSGD, X, steps=1, model=whole, example=X, lr=0.1)
    parts = [{"params": net[:2].parameters(), "lr": 0.05}, {"params": net[4].parameters()}]
    optimizer = PathSGD(parts, model=net, example=X, lr=0.1)
    optimizer.add_param_group({"params": net[2].bias, "lr": 0.0})
    optimizer.step(closure_of(net, optimizer, X))
    rates = {"0": 0.5, "4": 1.0, "2": 0.0}
    for name, p in net.named_parameters():
        full = dict(whole.named_parameters())[name] - before[name]
        assert torch.allclose(p, before[name] + rates[name[0]] * full, rtol=0, atol=1e-14)


def test_stored_and_loaded_it_goes_on_bit_for_bit() -> None:
    net = mlp()
    optimizer = PathSGD(net.parameters(), model=net, example=X, lr=0.02, momentum=0.9)
    optimizer.step(closure_of(net, optimizer, X))
    file = io.BytesIO()
    torch.save([net.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    sent_net, sent = pickle.loads(pickle.dumps((net, optimizer)))
    again = mlp()
    other = PathSGD(again.parameters(), model=again, example=X, lr=1.0)
    again.load_state_dict(weights)
    other.load_state_dict(state)
    for model, one in ((net, optimizer), (again, other), (sent_net, sent)):
        one.step(closure_of(model, one, X))
        assert torch.equal(flat(model), flat(net))


def test_single_precision_has_scales_of_double() -> None:
    net = mlp().float()
    optimizer = PathSGD(net.parameters(), model=net, example=X.float(), lr=0.02)
    exact = PathSGD((double := mlp().float().double()).parameters(), model=double, lr=0.02)
    for name, scale in exact.path_scales().items():
        assert torch.equal(scale, optimizer.path_scales()[name])
    for layer in (2, 4):
        net[layer].weight.data *= 1e-20
    with pytest.raises(sl.SpiritlevelError, match="over its path scale is too large"):
        optimizer.step(closure_of(net, optimizer, X.float()))


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), r"batch norm \(1\)"),
        (nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)), "tanh is no such"),
        (nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 3)), "numbers, not tokens"),
    ],
)
def test_networks_without_paths_are_refused(net: nn.Module, message: str) -> None:
    with pytest.raises(sl.SpiritlevelError, match=message):
        PathSGD(net.parameters(), model=net, lr=0.1)


def test_bad_arguments_are_refused() -> None:
    net = mlp()
    with pytest.raises(sl.SpiritlevelError, match="no parameter of model, a Sequential"):
        PathSGD(mlp().parameters(), model=net, example=X, lr=0.1)
    with pytest.raises(sl.SpiritlevelError, match=r"model is a int; give the torch.nn.Module"):
        PathSGD(net.parameters(), model=3, lr=0.1)  # type: ignore[arg-type]
    with pytest.raises(sl.SpiritlevelError, match="rho: no option of PathSGD or SGD"):
        PathSGD(net.parameters(), model=net, example=X, lr=0.1, rho=1)
    with pytest.raises(sl.SpiritlevelError, match="does not take this example"):
        PathSGD(net.parameters(), model=net, example=randn(2, 5), lr=0.1)
