"""Networks and losses for bounds over boxes, and an attack on such bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cases import labels, randn
from spiritlevel import Objective
from spiritlevel.coordinates.inputs import affine, represent, standardization

Data = tuple[Tensor, ...]


def climbed(objective: Objective, radius: float, *, steps: int = 12, starts: int = 3) -> float:
    """The largest loss that sign-gradient ascent meets in the box, from the centre and inside."""
    draws, best = torch.Generator().manual_seed(7), objective.value()
    for start in range(starts):
        share = torch.rand(objective.size, generator=draws, dtype=torch.float64)
        step = radius * (2 * share - 1) * (start > 0)
        for k in range(steps):
            slope = objective.at(objective.vector + step).gradient()
            stride = radius if k < 3 else radius / 4
            step = (step + stride * slope.sign()).clamp(-radius, radius)
            best = max(best, objective.at(objective.vector + step).value())
    return best


class Net(nn.Module):
    """4-5-3, with a forward given as a function of itself and the inputs."""

    def __init__(self, forward: Callable[[Net, Tensor], Any]) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 3)
        self.way = forward

    def forward(self, x: Tensor) -> Any:
        return self.way(self, x)


def _twice(n: Net, x: Tensor) -> Tensor:
    return n.c(n.b(n.b(n.a(x).relu()).relu()).relu())


def _residual(n: Net, x: Tensor) -> Tensor:
    h = n.a(x)
    return n.c(h + n.b(h).relu())


def _transposed(n: Net, x: Tensor) -> Tensor:
    return n.c(F.linear(n.b(n.a(x).relu()).relu(), n.b.weight.T))


def _in_place(n: Net, x: Tensor) -> Tensor:
    h = n.a(x)
    part = h[:, :2]
    h.mul_(2).relu_()  # the part sees it
    return n.c(h + part.sum(1, keepdim=True))


def _masked(n: Net, x: Tensor) -> Tensor:
    return n.c(n.a(x).relu()).masked_fill(torch.tensor([False, False, True]), -1e9)


def _heads(n: Net, x: Tensor) -> dict[str, Tensor]:
    h = n.a(x).relu()
    return {"classes": n.c(h), "more": n.b(h)}


WAYS = {
    "a layer used twice": _twice,
    "residual": _residual,
    "transposed weights": _transposed,
    "written in place": _in_place,
    "functional": lambda n, x: F.linear(F.relu(F.linear(x, n.a.weight)), n.c.weight),
    "product of activations": lambda n, x: n.c(n.a(x) * n.b(n.a(x).relu()) - n.a(x)),
    "activations": lambda n, x: n.c(F.leaky_relu(torch.tanh(n.a(x)) + n.a(x).sigmoid(), 0.1)),
    "pooled": lambda n, x: n.c(F.max_pool1d(n.b(n.a(x)).unsqueeze(1), 3, 1, 1).squeeze(1)),
}


def _decayed(model: nn.Module, batch: Data) -> tuple[Tensor, int]:
    penalty = sum(p.square().sum() + p.abs().sum() for p in model.parameters())
    loss = F.cross_entropy(model(batch[0]), batch[1], reduction="sum")
    return loss + len(batch[0]) * 0.05 * penalty, len(batch[0])


def _both_heads(model: nn.Module, batch: Data) -> Tensor:
    out = model(batch[0])
    return F.cross_entropy(out["classes"], batch[1]) + F.cross_entropy(out["more"], batch[1])


X, Y, VALUES = randn(20, 4), labels(20), randn(20, 3, seed=5)
MIXED = torch.where(torch.arange(20) % 3 == 0, -1.0, 2.0).double()
LOSSES: dict[str, tuple[Any, Any]] = {
    "class weights": ((X, Y), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.1]))),
    "label smoothing": ((X, Y), nn.CrossEntropyLoss(label_smoothing=0.3)),
    "summed": ((X, Y), nn.CrossEntropyLoss(reduction="sum")),
    "ignored labels": ((X, torch.where(Y == 0, -100, Y)), F.cross_entropy),
    "negative weights": ((X, Y, MIXED), F.cross_entropy),
    "probabilities": ((X, VALUES.softmax(1)), F.cross_entropy),
    "log-probabilities": ((X, Y), lambda out, y: F.nll_loss(out.log_softmax(1), y)),
    "squared error": ((X, VALUES), F.mse_loss),
    "summed squared error": ((X, VALUES), nn.MSELoss(reduction="sum")),
    "absolute error": ((X, VALUES), F.l1_loss),
    "smooth absolute error": ((X, VALUES), F.smooth_l1_loss),
    "huber": ((X, VALUES), nn.HuberLoss(delta=0.3)),
    "bernoulli": ((X, VALUES.sigmoid()), F.binary_cross_entropy_with_logits),
    "weight decay": ((X, Y), _decayed),
}


def _seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().double()


def _net(way: Callable[[Net, Tensor], Any] = _residual) -> nn.Module:
    return _seeded(lambda: Net(way))


def _sequential() -> nn.Module:
    return _seeded(lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)))


def _seen(scale: float) -> Objective:
    objective = Objective(_sequential(), (5 * X, Y), F.cross_entropy)
    return represent(objective, affine(torch.zeros(4), torch.full((4,), scale).double()))


def _standard() -> Objective:
    objective = Objective(_sequential(), (5 * X + 3, Y), F.cross_entropy)
    return represent(objective, standardization(objective))


def _hooked() -> Objective:
    net = _sequential()
    net.register_forward_hook(lambda module, given, out: 5 * out)  # type: ignore[arg-type,operator]
    return Objective(net, (X, Y), F.cross_entropy)


def _shared_relu() -> Objective:
    relu = nn.ReLU()
    layers = [nn.Linear(4, 5), relu, nn.Linear(5, 5), relu, nn.Linear(5, 3)]
    return Objective(_seeded(lambda: nn.Sequential(*layers)), (X, Y), F.cross_entropy)


def _shared_layer() -> Objective:
    first, again = nn.Linear(4, 4), nn.Linear(4, 4)
    net = nn.Sequential(first, nn.ReLU(), again, nn.ReLU(), again, nn.ReLU(), nn.Linear(4, 3))
    for p in net.parameters():
        p.data = randn(*p.shape, seed=p.numel())
    return Objective(net.double(), (X, Y), F.cross_entropy)


def _tied() -> Objective:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    for p in net.parameters():
        p.data = randn(*p.shape, seed=p.numel())
    net[2].weight = net[0].weight
    return Objective(net.double(), (X, Y), F.cross_entropy)


def _late_outliers() -> Objective:
    x = X.clone()
    x[12:] *= 30
    parts = [(x[i : i + 6], Y[i : i + 6]) for i in range(0, 20, 6)]
    return Objective(_sequential(), parts, F.cross_entropy)


def _convolutional() -> Objective:
    def make() -> nn.Module:
        net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU())
        net[1].running_var.uniform_(0.5, 2)  # type: ignore[union-attr,operator]
        return net.extend([nn.MaxPool2d(2), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(2, 3)])

    return Objective(_seeded(make), (randn(6, 1, 5, 5), labels(6)), F.cross_entropy)


ENCLOSED: dict[str, Callable[[], Objective]] = {
    "inputs of another scale": lambda: _seen(0.02),
    "inputs of a small scale": lambda: _seen(1e-3),
    "standardized inputs": _standard,
    "a hook": _hooked,
    "a shared activation": _shared_relu,
    "a shared layer": _shared_layer,
    "tied weights": _tied,
    "outliers in a later batch": _late_outliers,
    "convolutional": _convolutional,
    "masked logits": lambda: Objective(_net(_masked), (X, Y % 2), F.cross_entropy),
    "two heads": lambda: Objective(_net(_heads), (X, Y), _of_model(_both_heads)),
    "some parameters": lambda: Objective(_net(), (X, Y), F.cross_entropy, params=["b.*"]),
    **{
        name: lambda way=way: Objective(_net(way), (X, Y), F.cross_entropy)
        for name, way in WAYS.items()
    },
    **{
        name: lambda data=data, loss=loss: Objective(_net(), data, loss)
        for name, (data, loss) in LOSSES.items()
    },
}


def _of_model(loss: Callable[[nn.Module, Data], Tensor]) -> Callable[..., Tensor]:
    def of_model(model: nn.Module, batch: Data) -> Tensor:
        return loss(model, batch)

    return of_model
