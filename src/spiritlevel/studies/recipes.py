"""One training that a configuration describes in full: data, network, optimizer, and its end.

>>> from spiritlevel.studies import Study, recipes
>>> grid = recipes.grid(width=[8, 32], rate=[0.05, 0.2], stop=0.1)
>>> study = Study("width and rate", grid, recipes.train, ["hessian_trace"], seeds=2)
"""

from __future__ import annotations

import copy
import dataclasses
import math
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.base import doors, tensor_doors
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import fixed_rng
from spiritlevel.objective import Objective
from spiritlevel.results.history import Epoch, History
from spiritlevel.studies.datasets import CLASSES, NAMES, Images, images, noisy
from spiritlevel.studies.study import Trained
from spiritlevel.training.loop import fit
from spiritlevel.training.many import fit_many
from spiritlevel.training.naming import (
    OPTIMIZERS,
    SCHEDULES,
    Subject,
    optimizer_named,
    schedule_named,
)

WHOLE = 2000  # examples that are evaluated together
STACKED = {"sgd": {"momentum": 0.9}, "sam": {"momentum": 0.9, "rho": 0.05}, "adam": {}}
NORMS = ("none", "batch", "layer")
DEVICE = "SPIRITLEVEL_DEVICE"  # the environment variable that names another one than the default
Task = tuple[Mapping[str, Any], int]


@dataclass(frozen=True)
class Recipe:
    """What a training is made of; a configuration names what differs from these.

    `depth` counts hidden layers. `rate` is `times` the optimizer's own where it is 0. A training
    ends at the loss `stop` over all its data, or after `patience` epochs in which no loss was the
    least, and after `epochs` at last; not to get to the loss where it is to end is an error.
    """

    data: str = "digits"
    examples: int = 0  # to train on; 0: all there are
    labels: float = 0.0  # the share that is drawn at random
    network: str = "mlp"
    width: int = 32
    depth: int = 2
    norm: str = "none"
    optimizer: str = "sgd"
    rate: float = 0.0
    times: float = 1.0
    batch: int = 64  # 0: all examples
    schedule: str = "constant"
    epochs: int = 100
    stop: float = 0.0
    patience: int = 0

    def __post_init__(self) -> None:
        doors.one_of("data", self.data, NAMES)
        doors.one_of("network", self.network, NETWORKS)
        doors.one_of("norm", self.norm, NORMS)
        doors.one_of("optimizer", self.optimizer, OPTIMIZERS)
        doors.one_of("schedule", self.schedule, SCHEDULES)
        for name in ("width", "depth", "epochs"):
            doors.number(name, getattr(self, name), 1, whole=True)
        for name in ("examples", "batch", "patience"):
            doors.number(name, getattr(self, name), 0, whole=True)
        for name in ("labels", "rate", "times", "stop"):
            doors.number(name, getattr(self, name), 0)
        if self.labels > 1:
            raise SpiritlevelError(f"labels={self.labels}: give a share, a number of at most 1")
        if self.stop and self.patience:
            raise SpiritlevelError(
                f"stop={self.stop:g} and patience={self.patience} are two ways to end: give one"
            )

    @property
    def lr(self) -> float:
        return self.rate or self.times * OPTIMIZERS[self.optimizer].rate


def recipe(config: Mapping[str, Any]) -> Recipe:
    """The recipe of a configuration, whose words are those of a Recipe."""
    known = [f.name for f in dataclasses.fields(Recipe)]
    doors.a("config", config, Mapping, "a dict of axes and values")
    for name in config:
        doors.one_of("the axis", name, known)
    return Recipe(**config)


def grid(**axes: Any) -> dict[str, list[Any]]:
    """Axes of a study: a list is varied, one value is the same for all."""
    found = {name: list(v) if isinstance(v, (list, tuple)) else [v] for name, v in axes.items()}
    for name, values in found.items():
        for value in values:
            recipe({name: value})
    return found


def configurations(**axes: Any) -> list[dict[str, Any]]:
    """All combinations of these axes, for grids that are made of several."""
    known = grid(**axes)
    return [dict(zip(known, values, strict=True)) for values in product(*known.values())]


# Networks -------------------------------------------------------------------------------------


def _norm(kind: str, width: int, *, flat: bool) -> list[nn.Module]:
    if kind == "none":
        return []
    if kind == "layer":
        return [nn.LayerNorm(width) if flat else nn.GroupNorm(1, width)]
    return [nn.BatchNorm1d(width) if flat else nn.BatchNorm2d(width)]


def _mlp(one: Recipe, side: int) -> nn.Sequential:
    """side^2 - width - ... - width - 10 with ReLU."""
    layers: list[nn.Module] = [nn.Flatten()]
    for a, b in pairwise([side * side, *[one.width] * one.depth]):
        layers += [nn.Linear(a, b), *_norm(one.norm, b, flat=True), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(one.width, CLASSES))


def _cnn(one: Recipe, side: int) -> nn.Sequential:
    """3 x 3 convolutions with ReLU, the first two followed by pooling, and a linear layer."""
    layers: list[nn.Module] = []
    widths = [1, one.width, *[2 * one.width] * (one.depth - 1)]
    for place, (a, b) in enumerate(pairwise(widths)):
        layers += [nn.Conv2d(a, b, 3, padding=1), *_norm(one.norm, b, flat=False), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if place < 2 else []
    left = side // 2 ** min(one.depth, 2)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(widths[-1] * left**2, CLASSES))


NETWORKS: dict[str, Callable[[Recipe, int], nn.Sequential]] = {"mlp": _mlp, "cnn": _cnn}


def network(one: Recipe, seed: int) -> nn.Sequential:
    """The network before training, on the CPU: the same for the same seed."""
    doors.a("one", one, Recipe, "a Recipe")
    tensor_doors.seeded(seed)
    with fixed_rng(seed):
        return NETWORKS[one.network](one, images(one.data).x.shape[-1])


# Trainings ------------------------------------------------------------------------------------


def device() -> torch.device:
    """Where networks are trained: on a GPU if there is one."""
    return torch.device(os.environ.get(DEVICE) or ("cuda" if torch.cuda.is_available() else "cpu"))


@dataclass(frozen=True)
class _Data:
    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


def _data(one: Recipe, seed: int) -> _Data:
    known: Images = images(one.data)
    count = one.examples or len(known.x)
    if count > len(known.x):
        raise SpiritlevelError(f"examples is {count}; {one.data} has {len(known.x)} to train on")
    y = noisy(known.y[:count], one.labels, seed)
    parts = (known.x[:count], y, known.test_x, known.test_y)
    return _Data(*(part.to(device()) for part in parts))


def _batch(one: Recipe, data: _Data) -> int:
    """Examples of a step; there are no more than all."""
    return min(one.batch or len(data.x), len(data.x))


def train(config: Mapping[str, Any], seed: int) -> Trained:
    """One network, trained by `fit` as the configuration says."""
    one = recipe(config)
    tensor_doors.seeded(seed)
    data = _data(one, seed)
    model = network(one, seed).to(data.x.device)
    init = copy.deepcopy(model)
    optimizer = optimizer_named(
        one.optimizer, Subject(model, lambda: _objective(model, data), seed), one.lr
    )
    history = fit(
        *(model, (data.x, data.y), F.cross_entropy, optimizer, one.epochs),
        stop=_end(one),
        seed=seed,
        batch_size=_batch(one, data),
        schedule=schedule_named(one.schedule, optimizer, one.epochs),
    )
    return _trained(one, data, model, init, history)


def together(config: Mapping[str, Any]) -> Hashable:
    """What networks share that are trained in one stack: all but their rates and labels."""
    one = recipe(config)
    return dataclasses.replace(one, rate=0.0, times=1.0, labels=0.0)


def train_many(tasks: Sequence[Task]) -> list[Trained | SpiritlevelError]:
    """Networks that differ in rates, labels and seeds only, in one stack where that can be."""
    if not isinstance(tasks, (list, tuple)) or not all(map(_is_pair, tasks)) or not tasks:
        raise SpiritlevelError(f"tasks={doors.shown(tasks)}: give pairs of configuration and seed")
    recipes = [recipe(config) for config, _ in tasks]
    first = recipes[0]
    stackable = first.optimizer in STACKED and first.norm != "batch"
    if not stackable or first.patience or first.schedule != "constant":
        return [_or_error(train, config, seed) for config, seed in tasks]
    seeds = [seed for _, seed in tasks]
    data = [_data(one, seed) for one, seed in zip(recipes, seeds, strict=True)]
    fresh = [network(one, seed) for one, seed in zip(recipes, seeds, strict=True)]
    models = [model.to(data[0].x.device) for model in fresh]
    inits = copy.deepcopy(models)
    histories = fit_many(
        *(models, (data[0].x, [part.y for part in data]), F.cross_entropy, first.optimizer),
        lr=[one.lr for one in recipes],
        epochs=first.epochs,
        stop=first.stop or None,
        seeds=seeds,
        batch_size=_batch(first, data[0]),
        **STACKED[first.optimizer],
    )
    made = zip(recipes, data, models, inits, histories, strict=True)
    return [_or_error(_trained, *one) for one in made]


def _is_pair(task: Any) -> bool:
    return isinstance(task, (list, tuple)) and len(task) == 2


def _or_error(make: Callable[..., Trained], *given: Any) -> Trained | SpiritlevelError:
    try:
        return make(*given)
    except SpiritlevelError as error:
        return error


def _end(one: Recipe) -> float | Callable[[Epoch], bool] | None:
    """A loss, or a rule that ends where the losses of epochs stop falling."""
    if not one.patience:
        return one.stop or None
    losses: list[float] = []

    def ends(epoch: Epoch) -> bool:
        losses.append(epoch.loss)
        return len(losses) - losses.index(min(losses)) > one.patience

    return ends


def _objective(model: nn.Module, data: _Data) -> Objective:
    return Objective(model, (data.x, data.y), F.cross_entropy, device=data.x.device)


def _trained(
    one: Recipe, data: _Data, model: nn.Module, init: nn.Module, history: History
) -> Trained:
    model.eval()
    train_loss, train_error = _evaluated(model, data.x, data.y)
    if not math.isfinite(train_loss):
        raise SpiritlevelError(f"the training diverged at a rate of {one.lr:g}")
    if one.stop and train_loss > one.stop * (1 + 1e-3):
        raise SpiritlevelError(
            f"the training loss is {train_loss:.4g} after {one.epochs} epochs, not {one.stop:g}"
        )
    test_loss, test_error = _evaluated(model, data.test_x, data.test_y)
    noise = (test_error * (1 - test_error) / len(data.test_y)) ** 0.5  # of so many test images
    numbers = {
        "train_loss": train_loss,
        "train_error": train_error,
        "test_loss": test_loss,
        "test_error": test_error,
        "gap": test_error - train_error,
        "loss_gap": test_loss - train_loss,
        "epochs": float(len(history.epochs)),
        "rate_over_batch": one.lr / _batch(one, data),
        "test_error_stderr": noise,
        "gap_stderr": noise,
    }
    return Trained(_objective(model, data), numbers, init=init, history=history)


@torch.no_grad()
def _evaluated(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """The mean loss and the share of errors."""
    loss, wrong = 0.0, 0
    for part, labels in zip(x.split(WHOLE), y.split(WHOLE), strict=True):
        outputs = model(part)
        loss += float(F.cross_entropy(outputs, labels, reduction="sum"))
        wrong += int((outputs.argmax(1) != labels).sum())
    return loss / len(y), wrong / len(y)
