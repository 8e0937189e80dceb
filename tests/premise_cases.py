"""Networks, losses and data drawn at random: what users bring, small enough for brute force."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

INPUTS, CLASSES, SIDE = 3, 3, 4
CLASS_WEIGHTS = torch.tensor([0.25, 1.0, 3.0], dtype=torch.float64)
IGNORED = -100


@dataclass(frozen=True)
class Case:
    """One network with its loss and its data; plain words and numbers, so that it can be repeated.

    `cuts` are the places in the data, as shares, at which batches end.
    """

    architecture: str
    end: str
    loss: str
    structure: str
    order: str
    double: bool
    confidence: int
    examples: int
    cuts: tuple[float, ...]
    microbatch: int | None
    steps: int
    seed: int
    look: str


def precision(case: Case) -> torch.dtype:
    return torch.float64 if case.double else torch.float32


# Networks -----------------------------------------------------------------------------------------


class Net(nn.Module):
    """A body that makes hidden units, and what makes outputs of them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.c = nn.Linear(INPUTS, 4), nn.Linear(4, CLASSES)

    def hidden(self, x: Tensor) -> Tensor:
        return self.a(x).relu()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.hidden(x)
        return self.c(h), h


class Deep(Net):
    def __init__(self, first: Callable[[Tensor], Tensor], second: Any, bias: bool = True) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(INPUTS, 4, bias=bias), nn.Linear(4, 3, bias=bias)
        self.c, self.first, self.second = nn.Linear(3, CLASSES, bias=bias), first, second

    def hidden(self, x: Tensor) -> Tensor:
        return self.second(self.b(self.first(self.a(x))))


class Conv(Net):
    def __init__(self, pool: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self.a, self.pool = nn.Conv2d(1, 2, 3, padding=1), pool
        self.c = nn.Linear(8, CLASSES)

    def hidden(self, x: Tensor) -> Tensor:
        return self.pool(self.a(x).relu(), 2).flatten(1)


class Residual(Net):
    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Linear(4, 4, bias=False)

    def hidden(self, x: Tensor) -> Tensor:
        h = self.a(x).relu()
        return h + self.b(h).relu()


class Normed(Net):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def hidden(self, x: Tensor) -> Tensor:
        return self.norm(self.a(x)).relu()


class Tied(Net):
    """An auto-encoder whose decoder is the transpose of its encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.c = nn.Linear(INPUTS, 4, bias=False), nn.Identity()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.hidden(x)
        return h @ self.a.weight, h


class Bilinear(Net):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.c = nn.Linear(INPUTS, 3), nn.Linear(9, CLASSES)

    def hidden(self, x: Tensor) -> Tensor:
        h = self.a(x).relu()
        return (h.unsqueeze(1) * h.unsqueeze(2)).flatten(1)


class Shared(Net):
    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Linear(4, 4)

    def hidden(self, x: Tensor) -> Tensor:
        return self.b(self.b(self.a(x).relu()).relu()).relu()


class Gated(Net):
    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Linear(INPUTS, 4)

    def hidden(self, x: Tensor) -> Tensor:
        return self.a(x).relu() * self.b(x).tanh()


class Silent(Net):
    """One unit that never fires, and one that nobody hears."""

    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.a.bias[0] = -1e3
            self.c.weight[:, 1] = 0.0


def batch_norm() -> nn.Module:
    norm = nn.BatchNorm1d(4)
    with torch.no_grad():
        for tensor in (norm.running_mean, norm.bias):
            assert tensor is not None
            tensor.normal_()
        for tensor in (norm.running_var, norm.weight):
            assert tensor is not None
            tensor.uniform_(0.5, 2.0)
    return norm


class Scaled(Net):
    def __init__(self) -> None:
        super().__init__()
        self.a = weight_norm(nn.Linear(INPUTS, 4))


def _leaky(h: Tensor) -> Tensor:
    return F.leaky_relu(h, 0.1)


ARCHITECTURES: dict[str, Callable[[], Net]] = {
    "relu": lambda: Deep(F.relu, F.relu),
    "no biases": lambda: Deep(F.relu, F.relu, bias=False),
    "leaky": lambda: Deep(_leaky, _leaky),
    "tanh": lambda: Deep(torch.tanh, torch.tanh),
    "mixed": lambda: Deep(F.relu, torch.tanh),
    "hardtanh": lambda: Deep(F.relu, lambda h: F.hardtanh_(h.clone())),
    "max pooling": lambda: Conv(F.max_pool2d),
    "mean pooling": lambda: Conv(F.avg_pool2d),
    "residual": Residual,
    "batch norm": lambda: Normed(batch_norm()),
    "layer norm": lambda: Normed(nn.LayerNorm(4)),
    "tied": Tied,
    "bilinear": Bilinear,
    "shared": Shared,
    "gated": Gated,
    "silent": Silent,
    "weight norm": Scaled,
}
IMAGES = ("max pooling", "mean pooling")


def _masked(how: str, z: Tensor, x: Tensor) -> Tensor:
    """The last class is shut for some of the examples."""
    last = torch.arange(z.shape[1], device=z.device) == z.shape[1] - 1
    shut = (x.flatten(1)[:, :1] > 0) & last
    word, amount = how.split()
    value = torch.finfo(torch.float32).min if amount == "finfo.min" else float(amount)
    if word == "fill":
        return z.masked_fill(shut, value)
    return z + torch.zeros_like(z).masked_fill(shut, value)


MASKS = ("fill -1e9", "fill finfo.min", "fill -inf", "add -1e9", "add -inf")
ENDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "plain": lambda z, x: z,
    "log_softmax": lambda z, x: F.log_softmax(z, dim=1),
    **{how: functools.partial(_masked, how) for how in MASKS},
}


@dataclass
class Answer:
    main: Tensor
    aux: Tensor


# structure: what the model returns, the main head of it, whether a loss sees the other head too
STRUCTURES: dict[str, tuple[Callable[[Tensor, Tensor], Any], Callable[[Any], Tensor], bool]] = {
    "tensor": (lambda z, aux: z, lambda out: out, False),
    "one": (lambda z, aux: {"main": z}, lambda out: out["main"], False),
    "heads": (lambda z, aux: {"main": z, "aux": aux}, lambda out: out["main"], False),
    "tuple": (lambda z, aux: (z, aux), lambda out: out[0], True),
    "dict": (lambda z, aux: {"aux": aux, "main": z}, lambda out: out["main"], False),
    "nested": (lambda z, aux: {"a": (z,), "b": {"aux": aux}}, lambda out: out["a"][0], True),
    "dataclass": (Answer, lambda out: out.main, False),
}
SECOND = {"tuple": lambda out: out[1], "nested": lambda out: out["b"]["aux"]}
SINGLE = ("tensor", "one", "heads")  # structures whose loss gets one tensor


class Model(nn.Module):
    """A network with its end, that returns a tensor or a structure of them."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.net = ARCHITECTURES[case.architecture]()
        self.case = case
        with_aux = case.structure not in ("tensor", "one")
        width = self.net.hidden(torch.zeros(2, *input_shape(case))).shape[1]
        self.aux = nn.Linear(width, 2) if with_aux else None

    def forward(self, x: Tensor) -> Any:
        z, h = self.net(x)
        z = ENDS[self.case.end](z, x)
        aux = h if self.aux is None else self.aux(h)
        return STRUCTURES[self.case.structure][0](z, aux)


def input_shape(case: Case) -> tuple[int, ...]:
    return (1, SIDE, SIDE) if case.architecture in IMAGES else (INPUTS,)


# Losses -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A loss of one tensor of outputs: as users give it, and its mean over all the data.

    `truth(outputs, y, weight)` is in the words of its definition. `given` may be a function of the
    model (`of_model`), which picks its outputs itself. `linear` ones curve in logits alone.
    """

    given: Callable[..., Any]
    truth: Callable[[Tensor, Tensor, Tensor], Tensor]
    target: str = "labels"
    weighted: bool = False
    of_model: bool = False
    linear: bool = False


def _mean(units: Tensor, weight: Tensor) -> Tensor:
    """Over outputs, then over the examples by their weight."""
    return (units.flatten(1).mean(1) * weight).sum() / weight.sum()


def _entropy(out: Tensor, y: Tensor, weight: Tensor, by_class: Tensor | None = None) -> Tensor:
    """sum_i w_i c_i (-log p_iy) / sum_i w_i c_i over the labels that count."""
    counts = y != IGNORED
    labels = y.masked_fill(~counts, 0)
    share = weight * counts * (1.0 if by_class is None else by_class.to(out)[labels])
    units = -out.log_softmax(1).gather(1, labels.unsqueeze(1)).squeeze(1)
    return (torch.where(counts, units, 0.0) * share).sum() / share.sum()


def _by_class(out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    return _entropy(out, y, weight, CLASS_WEIGHTS)


def _smoothed(out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    counts = (y != IGNORED).to(out)
    rest = -(out.log_softmax(1).mean(1) * counts).sum() / counts.sum()
    return 0.8 * _entropy(out, y, weight) + 0.2 * rest


def _soft(out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    return -(out.log_softmax(1) * y).sum(1).mean()


def _binary(out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    return _mean(F.softplus(out) - y * out, weight)


def _cauchy(out: Tensor, y: Tensor) -> Tensor:
    return (1 + (out - y).square()).log().mean()


def _hinge(out: Tensor, y: Tensor) -> Tensor:
    return (1 - y * out).clamp(min=0).mean()


def _picked(out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """The mean of -log p_y where log p is given."""
    counts = y != IGNORED
    return -out[counts].gather(1, y[counts].unsqueeze(1)).mean()


def _kl(out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    return (y * (y.log() - out)).sum(1).mean()


def _with_class_weights(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y, weight=CLASS_WEIGHTS.to(out))


def _nll(out: Tensor, y: Tensor) -> Tensor:
    return F.nll_loss(out, y)


def _lambda(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y)


def main_head(model: nn.Module, x: Tensor) -> Tensor:
    """The outputs that matter of a model at work, whatever it returns."""
    case = model.case  # type: ignore[union-attr]
    return STRUCTURES[case.structure][1](model(x))  # type: ignore[index, arg-type]


def decay(model: nn.Module, batch: Any) -> tuple[Tensor, int]:
    x, y = batch[0], batch[1]
    squares = sum(p.square().sum() for p in model.parameters())
    total = F.cross_entropy(main_head(model, x), y, reduction="sum")
    return total + 0.01 * len(y) * squares, len(y)


def activity(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch[0], batch[1]
    hidden = model.net.hidden(x)  # type: ignore[union-attr, operator]
    return F.cross_entropy(main_head(model, x), y) + 0.1 * hidden.square().mean()


def unpenalized(model: nn.Module, batch: Any) -> tuple[Tensor, int]:
    return F.cross_entropy(main_head(model, batch[0]), batch[1], reduction="sum"), len(batch[1])


def _rows(function: Callable[..., Tensor]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda out, y, weight: _mean(function(out, y, reduction="none"), weight)


def _plain(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda out, y, weight: function(out, y)


_summed_squares = functools.partial(F.mse_loss, reduction="sum")


def _outputs_summed(out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    return ((out - y).square().sum(1) * weight).sum() / weight.sum()


KINDS: dict[str, Kind] = {
    "cross-entropy": Kind(F.cross_entropy, _entropy),
    "class weights": Kind(nn.CrossEntropyLoss(CLASS_WEIGHTS.float()), _by_class),
    "smoothing": Kind(functools.partial(F.cross_entropy, label_smoothing=0.2), _smoothed),
    "soft targets": Kind(F.cross_entropy, _soft, "soft"),
    "weighted rows": Kind(F.cross_entropy, _entropy, weighted=True),
    "weighted rows and classes": Kind(nn.CrossEntropyLoss(CLASS_WEIGHTS.float()), _by_class, weighted=True),
    "mse": Kind(F.mse_loss, _rows(F.mse_loss), "real"),
    "mse sum": Kind(_summed_squares, _outputs_summed, "real"),
    "weighted mse": Kind(nn.MSELoss(), _rows(F.mse_loss), "real", weighted=True),
    "weighted mse sum": Kind(_summed_squares, _outputs_summed, "real", weighted=True),
    "binary": Kind(F.binary_cross_entropy_with_logits, _binary, "binary"),
    "weighted binary": Kind(nn.BCEWithLogitsLoss(), _binary, "binary", weighted=True),
    "huber": Kind(F.huber_loss, _rows(F.huber_loss), "real"),
    "l1": Kind(F.l1_loss, _rows(F.l1_loss), "real", linear=True),
    "hinge": Kind(_hinge, _plain(_hinge), "signs", linear=True),
    "cauchy": Kind(_cauchy, _plain(_cauchy), "real"),
    "lambda": Kind(_lambda, _entropy),
    "lambda with class weights": Kind(_with_class_weights, _by_class),
    "decay": Kind(decay, _entropy, of_model=True),
    "activity": Kind(activity, _entropy, of_model=True),
    "of model": Kind(unpenalized, _entropy, of_model=True),
    "nll": Kind(F.nll_loss, _picked, linear=True),
    "nll lambda": Kind(_nll, _picked, linear=True),
    "kl": Kind(nn.KLDivLoss(reduction="batchmean"), _kl, "soft", linear=True),
}
OF_LOGARITHMS = ("nll", "nll lambda", "kl", "cross-entropy", "mse")
OF_LOGITS = tuple(k for k in KINDS if k not in ("nll", "nll lambda", "kl"))
OF_MASKED = ("cross-entropy", "class weights", "lambda", "weighted rows", "of model")
SKIPS = ("cross-entropy", "class weights", "lambda", "lambda with class weights", "nll")
BY_REDUCTION = tuple(k for k, kind in KINDS.items() if kind.weighted)


def given_loss(case: Case) -> Callable[..., Any]:
    """The loss as the user of this model writes it."""
    kind, given = KINDS[case.loss], KINDS[case.loss].given
    if isinstance(given, nn.Module):
        given = copy.deepcopy(given).to(precision(case))
    own = getattr(given, "__module__", "") == __name__
    if kind.of_model or case.structure in ("tensor", "heads"):
        return given
    if case.structure == "one" and not own:  # of one tensor, which is found by itself
        return given
    _, main, sees_both = STRUCTURES[case.structure]
    second = SECOND.get(case.structure)

    def loss(out: Any, y: Tensor) -> Tensor:
        value = given(main(out), y)
        if case.loss == "mse sum":
            value = value / len(y)
        return value + second(out).square().mean() if sees_both and second else value

    return loss


# Data ---------------------------------------------------------------------------------------------


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
    batches = [
        tuple(c[a:b] for c in columns) for a, b in zip(edges, edges[1:], strict=False) if b > a
    ]
    return Data(x, y, weight, batches)


def network_of(case: Case) -> Model:
    """In float64, of numbers that the precision of the case can hold; not trained yet."""
    with torch.random.fork_rng():
        torch.manual_seed(case.seed)
        model = Model(case)
    return model.eval().double()


def confident(model: Model, factor: int) -> None:
    """The last layer times a factor: the same choices, surer."""
    with torch.no_grad():
        last = model.net.a if isinstance(model.net, Tied) else model.net.c
        for p in last.parameters():
            p.mul_(factor**0.5 if isinstance(model.net, Tied) else factor)


def held(model: Model, case: Case) -> Model:
    """A copy in the precision of the user."""
    return copy.deepcopy(model).to(precision(case))


# Draws --------------------------------------------------------------------------------------------


# What is looked at beside what every case shows; what takes long comes rarely
LOOKS = (
    *("nothing", "trace of ggn", "spectral of ggn", "trace of hessian", "ends", "audit"),
    *("frobenius of ggn", "frobenius of hessian", "spectral of hessian", "estimates"),
    *("orbit measures", "compare", "spectral of ggn", "trace of hessian", "audit", "sharpen"),
    *("discrete", "orbit measures"),
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """All combinations that make sense."""
    architecture = draw(st.sampled_from(sorted(ARCHITECTURES)))
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
