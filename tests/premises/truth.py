"""The truth about a small network, by brute force: plain torch in float64, nothing of ours."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev
from torch.nn.utils.parametrize import is_parametrized
from torch.utils._pytree import tree_leaves

from premises.case import IGNORED, Case
from premises.draws import Data, data_of
from premises.losses import KINDS, SKIPPED
from premises.nets import SECOND, SINGLE, STRUCTURES, Model, confident, held, network_of

STEP = 2e-2
# whose mean divides by other things than examples; torch's own functions say by what
UNEVEN = ("lambda with class weights", "lambda that skips")
UNEVEN_IF_WRAPPED = ("class weights", "skipped class")


@dataclass(frozen=True)
class Truth:
    """A model as its user has it, its data in one piece, and its loss as it is defined."""

    case: Case
    model: Model  # in the precision of the user
    exact: Model  # the same numbers in float64
    data: Data

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.exact.named_parameters()]

    @property
    def point(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self.exact.parameters()])

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        shapes = [p.shape for p in self.exact.parameters()]
        pieces = vector.split([shape.numel() for shape in shapes])
        rows = zip(self.names, pieces, shapes, strict=True)
        return {name: piece.reshape(shape) for name, piece, shape in rows}

    def returned(self, vector: Tensor, x: Tensor | None = None) -> Any:
        return functional_call(self.exact, self.named(vector), (self.data.x if x is None else x,))

    def predictions(self, vector: Tensor, x: Tensor | None = None) -> list[Tensor]:
        """Everything that counts of what the model returns."""
        found = self.returned(vector, x)
        if self.case.structure == "heads":
            return [found["main"]]
        if self.case.structure == "dataclass":
            return [found.main, found.aux]
        return tree_leaves(found)

    def of_outputs(self, main: Tensor, second: Tensor | None) -> Tensor:
        """The mean loss of given outputs over all the data.

        Where the mean is no sum over examples it is that of the batches, by the labels that count.
        """
        if not self.is_sum:
            return self._by_batches(main, second)
        return self._mean(main, second, slice(None))

    def _mean(self, main: Tensor, second: Tensor | None, rows: slice) -> Tensor:
        loss = KINDS[self.case.loss].truth
        value = loss(main[rows], self.data.y[rows], self.data.weight[rows])
        return value if second is None else value + second[rows].square().mean()

    def _by_batches(self, main: Tensor, second: Tensor | None) -> Tensor:
        total, count, start = main.new_zeros(()), 0, 0
        for batch in self.data.batches:
            rows = slice(start, start + len(batch[0]))
            labels = self.data.y[rows]
            here = len(labels) if second is not None else int((labels != IGNORED).sum())
            if here:
                total, count = total + here * self._mean(main, second, rows), count + here
            start = rows.stop
        return total / count

    @property
    def is_sum(self) -> bool:
        """Whether the mean of the user's own function is one over examples."""
        case, kind = self.case, KINDS[self.case.loss]
        wrapped = not kind.of_model and case.structure not in SINGLE
        if case.loss in UNEVEN or (wrapped and case.loss in UNEVEN_IF_WRAPPED):
            return False
        return not (case.structure in SECOND and not kind.of_model and case.order == "ignored late")

    @property
    def has_empty_batch(self) -> bool:
        """Whether nothing counts in a batch, of which the mean of a user's function is 0 / 0."""
        left_out = [IGNORED, *([SKIPPED] if "skip" in self.case.loss else [])]
        labels = [batch[1] for batch in self.data.batches if batch[1].ndim == 1]
        return any(bool(torch.isin(y, torch.tensor(left_out)).all()) for y in labels)

    @property
    def is_convex(self) -> bool:
        return self.case.loss != "cauchy"

    def value(self, vector: Tensor) -> Tensor:
        return self.of_outputs(*self.seen(vector)) + self.penalty(vector)

    def penalty(self, vector: Tensor) -> Tensor:
        if self.case.loss == "decay":
            return 0.01 * vector.square().sum()
        if self.case.loss == "activity":
            named = self.named(vector).items()
            inside = {n.removeprefix("net."): t for n, t in named if n.startswith("net.")}
            hidden = functional_call(self.exact.net, inside, (self.data.x,))[1]
            return 0.1 * hidden.square().mean()
        return vector.new_zeros(())

    def seen(self, vector: Tensor) -> tuple[Tensor, Tensor | None]:
        """The outputs that the loss is a function of."""
        found, structure = self.returned(vector), self.case.structure
        both = structure in SECOND and not KINDS[self.case.loss].of_model
        return STRUCTURES[structure][1](found), SECOND[structure](found) if both else None

    def wobble(self, of: Callable[[Tensor], Tensor]) -> Tensor:
        """By how much some quantity is not known: what rounding the parameters does to it."""
        here, draws = of(self.point), torch.Generator().manual_seed(5)
        size = 2.0 ** (-51 if self.case.double else -23)
        found = torch.zeros_like(here)
        for _ in range(3):
            noise = torch.randn(len(self.point), generator=draws, dtype=torch.float64)
            found = torch.maximum(found, (of(self.point * (1 + size * noise)) - here).abs())
        return found

    @property
    def fuses(self) -> bool:
        """Whether a final log_softmax belongs to the loss, which is linear in what comes out."""
        linear = KINDS[self.case.loss].linear and self.case.structure in SINGLE
        return self.case.end == "log_softmax" and linear

    def gradient(self, vector: Tensor) -> Tensor:
        return torch.func.grad(self.value)(vector)

    def hessian(self, vector: Tensor) -> Tensor:
        found: Any = jacrev(torch.func.grad(self.value))(vector)
        return ((found + found.T) / 2).detach()

    def gauss_newton(self, vector: Tensor) -> Tensor:
        """J' (grad_f^2 l) J of the outputs that the loss is a function of.

        What goes into a log_softmax may be replaced by what comes out: they differ by a shift.
        """
        parts = [t for t in self.seen(vector) if t is not None]
        shapes = [t.shape for t in parts]

        def flat(v: Tensor) -> Tensor:
            return torch.cat([t.reshape(-1) for t in self.seen(v) if t is not None])

        def loss(f: Tensor) -> Tensor:
            pieces = f.split([shape.numel() for shape in shapes])
            main, *rest = (p.reshape(s) for p, s in zip(pieces, shapes, strict=True))
            main = main.log_softmax(1) if self.fuses else main
            return self.of_outputs(main, rest[0] if rest else None)

        jacobian: Any = jacrev(flat)(vector)
        usable = torch.isfinite(flat(vector))
        bend: Any = jacrev(torch.func.grad(loss))(flat(vector))
        bend = torch.where(usable[:, None] & usable[None, :], bend, 0.0)
        found = jacobian.T @ bend @ jacobian
        return ((found + found.T) / 2).detach()


def truth_of(case: Case) -> Truth:
    """The network, trained a little where the case says so, and then made confident."""
    model, data = network_of(case), data_of(case)
    fitted = Truth(case, model, model, data)
    if case.steps:
        vector = fitted.point.requires_grad_()
        optimizer = torch.optim.Adam([vector], lr=STEP)
        for _ in range(case.steps):
            optimizer.zero_grad()
            fitted.value(vector).backward()
            optimizer.step()
        torch.nn.utils.vector_to_parameters(vector.detach(), model.parameters())
    confident(model, case.confidence)
    user = held(model, case)
    return Truth(case, user, plain(copy.deepcopy(user).double()), data)


class WeightNorm(nn.Module):
    """g v / ||v||: torch's own has no right second derivative."""

    def forward(self, g: Tensor, v: Tensor) -> Tensor:
        return g * v / v.norm(dim=1, keepdim=True)


def plain(model: Model) -> Model:
    """The same function in operations that autograd differentiates twice."""
    if is_parametrized(model.net.a):
        model.net.a.parametrizations.weight[0] = WeightNorm()  # type: ignore[index, union-attr]
    return model
