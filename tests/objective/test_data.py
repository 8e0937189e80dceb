"""Data as people have them: arrays, lists, names, single examples; and what is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import spiritlevel as sl
from cases import labels, mlp, randn
from spiritlevel.objective.batches import is_one_batch

X, Y = randn(11, 4), labels(11)
ROWS, CLASSES = X.numpy(), Y.numpy()
MODEL = mlp().double()
READ_ONLY = ROWS.copy()
READ_ONLY.setflags(write=False)


class Frame:
    """What a data frame is to numpy."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values
        self.shape, self.ndim = values.shape, values.ndim

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.values


class Pair(NamedTuple):
    image: Tensor
    label: Tensor


class Examples(Dataset[tuple[np.ndarray, int]]):
    """One array and one number at a time, as image datasets give them."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        if index >= len(X):
            raise IndexError
        return ROWS[index], int(Y[index])


def plain() -> Tensor:
    """The mean cross-entropy, and autograd's gradient, without us."""
    loss = F.cross_entropy(MODEL(X), Y)
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(MODEL.parameters()))])


def named_target(out: Tensor, y: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(out, y["label"])


KINDS: dict[str, Any] = {
    "arrays": (ROWS, CLASSES),
    "a list of arrays": [ROWS, CLASSES],
    "a list of tensors": [X, Y],
    "a tensor and an array": [X, CLASSES],
    "a namedtuple": Pair(X, Y),
    "frames": (Frame(ROWS), Frame(CLASSES)),
    "batches of arrays": [(ROWS[:4], CLASSES[:4]), (ROWS[4:], CLASSES[4:])],
    "two batches as lists": [[X[:4], Y[:4]], [X[4:], Y[4:]]],
    "read-only": (READ_ONLY, CLASSES),
    "back to front": (ROWS[::-1], CLASSES[::-1]),
    "every second column": (np.repeat(ROWS, 2, 1)[:, ::2], CLASSES),
    "foreign bytes": (ROWS.astype(">f8"), CLASSES.astype(">i8")),
    "int32 labels": (X, CLASSES.astype(np.int32)),
    "uint16 labels": (X, CLASSES.astype(np.uint16)),
    "uint8 labels": (X, CLASSES.astype(np.uint8)),
    "a dataset of arrays and numbers": Examples(),
    "single examples": [(X[i], Y[i]) for i in range(11)],
    "single examples of a dataset": list(TensorDataset(X, Y)),  # type: ignore[call-overload]
    "single examples with numbers": [Examples()[i] for i in range(11)],
    "single examples with numpy's numbers": [(ROWS[i], CLASSES[i]) for i in range(11)],
    "named inputs": ({"input": ROWS}, CLASSES),
    "named inputs in a list": [{"input": X}, Y],
    "several inputs in a list": [[X], Y],
    "batches with named inputs": [({"input": X[:4]}, Y[:4]), ({"input": X[4:]}, Y[4:])],
}
NAMED: dict[str, Any] = {
    "a named target": (X, {"label": Y}),
    "a named target in a list": [ROWS, {"label": CLASSES}],
    "batches": [(X[:4], {"label": Y[:4]}), (X[4:], {"label": Y[4:]})],
    "a loader": DataLoader(
        [(X[i], {"label": Y[i]}) for i in range(11)],  # type: ignore[arg-type]
        batch_size=4,
    ),
    "single examples": [(X[i], {"label": int(Y[i])}) for i in range(11)],
    "named inputs and targets": ({"input": X}, {"label": Y}),
}


@pytest.mark.parametrize(
    ("data", "loss"),
    [
        *(pytest.param(data, F.cross_entropy, id=name) for name, data in KINDS.items()),
        *(pytest.param(data, named_target, id=f"named: {n}") for n, data in NAMED.items()),
    ],
)
def test_every_kind_gives_the_numbers_of_plain_torch(data: Any, loss: Callable[..., Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = sl.Objective(MODEL, data, loss)
    assert found.value() == pytest.approx(F.cross_entropy(MODEL(X), Y).item(), rel=1e-12)
    torch.testing.assert_close(found.gradient(), plain(), rtol=1e-10, atol=1e-12)
    assert (found.examples, found.count) == (11, 11)
    assert found.per_example_gradients().shape == (11, found.size)
    torch.testing.assert_close(found.per_example_gradients().mean(0), plain())


def test_weights_in_lists_and_arrays_and_single_examples() -> None:
    w = randn(11, seed=9).abs()
    each = F.cross_entropy(MODEL(X), Y, reduction="none")
    truth = ((w * each).sum() / w.sum()).item()
    singles = [(X[i], Y[i], float(w[i])) for i in range(11)]
    for data in ([X, Y, w], (ROWS, CLASSES, w.numpy()), singles):
        found = sl.Objective(MODEL, data, F.cross_entropy)
        assert found.value() == pytest.approx(truth, rel=1e-12)


def test_numbers_as_targets_of_single_examples_keep_their_precision() -> None:
    line = nn.Linear(4, 1).double()
    y = randn(11, seed=2)
    found = sl.Objective(
        line,
        [(X[i], float(y[i])) for i in range(11)],
        lambda out, y: F.mse_loss(out.squeeze(1), y),
    )
    assert found.value() == pytest.approx(F.mse_loss(line(X).squeeze(1), y).item(), rel=1e-14)
    assert found.examples == 11


def test_class_156_is_not_the_label_to_ignore() -> None:
    """In bytes -100 is 156: that class was left out of the count."""
    model = nn.Linear(4, 200).double()
    y = torch.full((11,), 156)
    y[:4] = 3
    found = sl.Objective(model, (X, y.byte()), F.cross_entropy)
    assert found.count == 11
    assert found.value() == pytest.approx(F.cross_entropy(model(X), y).item(), rel=1e-12)


def test_bytes_that_the_model_or_the_loss_casts_are_images() -> None:
    images = torch.randint(0, 256, (11, 4), generator=torch.Generator().manual_seed(0))

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = MODEL

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x.double() / 255)

    truth = F.cross_entropy(MODEL(images.double() / 255), Y).item()
    whole = sl.Objective(Scaled(), (images.byte(), Y), F.cross_entropy)

    def own(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch["image"].double() / 255), batch["label"])

    named = sl.Objective(MODEL, {"image": images.byte().numpy(), "label": CLASSES}, own)
    assert whole.value() == pytest.approx(truth, rel=1e-12)
    assert named.value() == pytest.approx(truth, rel=1e-12)


def test_a_loss_without_targets_takes_batches_of_bare_tensors() -> None:
    """Lists of other lengths, or of more tensors, can be nothing else."""

    def size(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).square().mean()

    truth = MODEL(X).square().mean().item()
    for data in (X, ROWS, [X[:4], X[4:]], list(X.split(2)), [X], iter([X[:6], X[6:]])):
        assert sl.Objective(MODEL, data, size).value() == pytest.approx(truth, rel=1e-12)


@pytest.mark.parametrize(
    ("data", "one"),
    [
        ((X, Y), True),
        ([X, Y], True),
        ([X, Y, X], True),
        ([X, Y, X, Y], False),
        ([X[:5], X[5:]], False),
        ((X[:5], X[5:]), True),  # nodes and edges, for a loss of one's own
        ([(X, Y), (X, Y)], False),
        (((X, X), Y), True),
        ([(X, X), (Y, Y)], False),
        ((X, (Y, Y)), True),
        ([{"a": X}, {"a": X}], False),
        (({"a": X}, {"b": Y}), True),
        ([{"a": X}, {"b": Y}, {"a": X}], False),
        ((object(), Y), True),  # a graph of somebody's
        ([object(), object()], False),
        ([torch.tensor(1.0), torch.tensor(2.0)], False),
        (TensorDataset(X, Y), False),
        (X, True),
        ({"a": X}, True),
        (3, False),
        ([], False),
    ],
)
def test_what_is_one_batch(data: Any, one: bool) -> None:
    assert is_one_batch(data) is one


REFUSALS: dict[str, tuple[Any, str]] = {
    "uint8 images": (
        (torch.zeros(11, 4, dtype=torch.uint8), Y),
        r"the model got uint8 inputs: cast them, x.float\(\) / 255",
    ),
    "uint8 arrays": ((np.zeros((11, 4), np.uint8), CLASSES), "the model got uint8 inputs: cast"),
    "lengths": ((X, Y[:9]), "x has 11 rows and y has 9: give one target for each example"),
    "lengths of arrays": ((ROWS, CLASSES[:9]), "x has 11 rows and y has 9"),
    "objects": ((ROWS.astype(object), CLASSES), "data holds an array of object; give numbers"),
    "strings": ((ROWS.astype(str), CLASSES), "data holds an array of <U32; give numbers"),
    "masked": ((np.ma.masked_array(ROWS), CLASSES), "data holds a masked array; fill its gaps"),
    "numbers in lists": ((X.tolist(), Y.tolist()), "a list of plain numbers; make tensors of"),
    "a batch of lists": ([(X.tolist(), Y.tolist())], "a tuple of plain numbers; make tensors"),
    "named lists": ({"a": X.tolist()}, "a dict of plain numbers; make tensors of them"),
    "x alone": (ROWS, r"a batch of the kind Tensor is not understood; give \(x, y\)"),
    "x alone in a list": ([X], r"a batch of the kind Tensor is not understood; give \(x, y\)"),
    "four": ([X, Y, X, Y], "a batch of the kind Tensor is not understood"),
    "a list of two lengths": ([X, Y[:9]], "a batch of the kind Tensor is not understood"),
    "a generator of single tensors": (iter(X), "a batch of the kind Tensor is not understood"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_name_the_fix(name: str) -> None:
    data, message = REFUSALS[name]
    with pytest.raises(sl.SpiritlevelError, match=message):
        sl.Objective(MODEL, data, F.cross_entropy)


def test_what_is_odd_about_the_data_is_named_instead_of_what_it_led_to() -> None:
    said = "model or the loss raised RuntimeError: mat1"
    with pytest.raises(sl.SpiritlevelError, match=said) as caught:
        sl.Objective(MODEL, (randn(11, 5), Y), F.cross_entropy)
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(sl.SpiritlevelError, match="the model got uint8 inputs") as caught:
        sl.Objective(MODEL, (X.abs().byte(), Y), partial(F.cross_entropy))
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_arrays_are_copied() -> None:
    rows = ROWS.copy()
    found = sl.Objective(MODEL, (rows, CLASSES), F.cross_entropy)
    before = found.value()
    rows[:] = 0
    assert found.at(found.vector).value() == before
