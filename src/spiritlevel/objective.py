"""The loss of a model on its data, as a function of the parameters."""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from spiritlevel import batches as frozen
from spiritlevel import premises
from spiritlevel.batches import Batch
from spiritlevel.errors import SpiritlevelError
from spiritlevel.loss import Heads, Loss, Total, adapt, moved
from spiritlevel.microbatch import affordable, cannot_cut, cut
from spiritlevel.module import (
    Scope,
    cast,
    channels_last,
    choose,
    free_bytes,
    private_copy,
    unwrap,
    working_dtype,
)
from spiritlevel.scope import differentiable, fixed_rng, kept_rng, twice_differentiable
from spiritlevel.tensors import flatten, map_tensors, same_tree, spans, unflatten

Mode = Literal["eval", "train"]
Params = Mapping[str, Tensor]


class Coordinates(Protocol):
    """A bijection eta -> theta of the flat parameters; see `spiritlevel.reparam`."""

    def forward(self, eta: Tensor, /) -> Tensor: ...

    def inverse(self, theta: Tensor, /) -> Tensor: ...


def only_objectives(*given: Any) -> None:
    """Refuse what is no Objective, a module for instance."""
    for value in given:
        if not isinstance(value, Objective):
            raise SpiritlevelError(
                f"give an Objective, not a {type(value).__name__}: Objective(model, data, loss)"
            )


class Objective:
    """A model, its data and its loss, frozen at one point: L(theta) = sum of losses / count.

    The model is copied and never touched; the data are read at once and must be the same when
    read again. Every mean is over examples (tokens, for labels), whatever the batches.

    - `data`: tensors (x, y), a Dataset, a DataLoader or an iterable of batches. A batch is
      (x, y), (x, y, weight), or a mapping that the model takes by name.
    - `loss`: a mean loss(outputs, y) of all that the model returns, or loss(model, batch) ->
      (sum, count) (its first parameter is called `model`). Without one the model's own `.loss`.
    - `heads`: which of several outputs count ("logits", 0, ["a", "b"]); all of them if None.
    - `params`: name patterns such as "layer1.*"; all trainable parameters if None.
    - `mode`: "train" uses batch statistics and dropout; `seed` then fixes the dropout masks.
    - `microbatch`: examples that are processed together; chosen by memory if None.
    """

    @torch.inference_mode(False)
    def __init__(
        self,
        model: nn.Module,
        data: Any,
        loss: Callable[..., Any] | None = None,
        *,
        params: str | Sequence[str] | None = None,
        mode: Mode = "eval",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        microbatch: int | None = None,
        seed: int | None = None,
        heads: Heads | None = None,
    ) -> None:
        if mode not in ("eval", "train"):
            raise SpiritlevelError(f'mode is {mode!r}; choose "eval" or "train"')
        if microbatch is not None and microbatch < 1:
            raise SpiritlevelError(f"microbatch is {microbatch}; give a number of examples >= 1")
        module, notes = unwrap(model)
        chosen = choose(module, params)
        self.mode: Mode = mode
        self.seed = seed
        self.dtype, note = working_dtype(module, dtype)
        if note:
            warnings.warn(note, stacklevel=2)
            notes.append(note)
        first = next(iter(chosen.values()))
        self.device = torch.device(device) if device is not None else first.device
        self._model = cast(private_copy(module), self.dtype, self.device)
        self._model.train(mode == "train").requires_grad_(False)
        self._scope = Scope(self._model)
        own = dict(self._model.named_parameters())
        self._params: dict[str, Tensor] = {name: own[name].detach() for name in chosen}
        self._buffers: dict[str, Tensor] = {}  # those that differ from the model's own
        self.coordinates: tuple[Coordinates, ...] = ()  # the last is nearest to the point
        self._batches = frozen.freeze(data, self.place)
        self._recurrent = any(isinstance(m, nn.RNNBase) for m in self._model.modules())
        self._writes_buffers = mode == "train"
        with kept_rng(), frozen.explained(self._batches):
            with self._kept_buffers():
                adapted = adapt(loss, self._model, self._batches, heads)
            self._loss = moved(adapted, self.dtype, self.device)
            self._lay_out()
            first = self.few(2)
            notes += premises.refuse_strangers(
                module, loss, lambda: self.total(self._params, first)
            )
            self.separable = self._check_examples()
            given, self._batches = self._batches, self._cut(microbatch)
            notes += self._survey(given, microbatch)
            if not self.separable and mode == "eval" and len(self._batches) > 1:
                notes.append("the loss is no sum over examples: its mean depends on the batches")
        self.notes = tuple(notes)

    # What it is ------------------------------------------------------------------------------

    @property
    def params(self) -> dict[str, Tensor]:
        """The point: the chosen parameters by name (do not write into them)."""
        return dict(self._params)

    @property
    def buffers(self) -> dict[str, Tensor]:
        """The model's buffers (running statistics, tables) by name."""
        return {**dict(self._model.named_buffers()), **self._buffers}

    @property
    def module(self) -> nn.Module:
        """The private copy of the model (do not write into it); its values may be older ones."""
        if self.coordinates:  # whoever reads the model's parameters would take them for the point
            raise SpiritlevelError(
                "this objective is in other coordinates, where its model and the symmetries of "
                "its model are not at home: use the objective from before reparametrize()"
            )
        return self._model

    @functools.cached_property
    def shapes(self) -> dict[str, torch.Size]:
        return {name: tensor.shape for name, tensor in self._params.items()}

    @functools.cached_property
    def spans(self) -> dict[str, slice]:
        """Where each parameter lies in a flat vector."""
        return spans(self.shapes)

    @property
    def size(self) -> int:
        """The number of parameters."""
        return sum(shape.numel() for shape in self.shapes.values())

    @property
    def vector(self) -> Tensor:
        """The point as one flat vector."""
        return flatten(self._params)

    @property
    def batches(self) -> tuple[Batch, ...]:
        return tuple(self._batches)

    @property
    def loss(self) -> Loss:
        return self._loss

    @property
    def theta(self) -> Tensor:
        """The model's own parameters as one flat vector, whatever the coordinates."""
        return self._through_coordinates(self._params)

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """The pieces of a flat vector by parameter name."""
        return unflatten(vector, self.shapes)

    def __repr__(self) -> str:
        return (
            f"Objective({type(self._model).__name__}, {self.size} parameters, "
            f"{self.examples} examples, {self.mode} mode, {self.dtype}, {self.device})"
        )

    # The function ----------------------------------------------------------------------------

    def total(self, params: Params, batch: Batch) -> Total:
        """Sum and count of the losses of one batch at `params`; differentiable."""
        return self._run(self._loss.total, params, batch)

    def outputs(self, params: Params, batch: Batch) -> Tensor:
        """What the loss is a function of on one batch at `params`, one tensor; differentiable."""
        return self._run(self._loss.outputs, params, batch)

    def returned(self, params: Params, batch: Batch) -> dict[str, Tensor]:
        """All predictions of one batch by name."""
        return self._run(self._loss.returned, params, batch)

    def together(self, params: Params, batch: Batch) -> tuple[dict[str, Tensor], Total]:
        """All predictions of one batch by name, and the sum and count of its losses."""
        return self._run(self._loss.together, params, batch)

    def value(self) -> float:
        """L(theta), the mean loss over all examples."""
        if self._value is None:
            self._value = self._sum_and_count()[0] / self.count
        return self._value

    def gradient(self) -> Tensor:
        """grad L(theta), a flat vector."""
        with differentiable(recurrent=self._recurrent):
            total = sum(self.gradient_sum(batch) for batch in self._batches)
        return torch.as_tensor(total) / self.count

    @torch.inference_mode(False)
    def gradient_sum(self, batch: Batch) -> Tensor:
        """The gradient of the summed loss of one batch."""
        point = {k: v.clone().requires_grad_() for k, v in self._params.items()}
        total = self.total(point, batch)[0]
        if not total.requires_grad:  # a loss that no chosen parameter reaches
            return torch.zeros(self.size, dtype=self.dtype, device=self.device)
        pieces = torch.autograd.grad(total, list(point.values()), materialize_grads=True)
        return torch.cat([piece.reshape(-1) for piece in pieces])

    def per_example_gradients(self) -> Tensor:
        """One row per example, (examples, size), whose mean is the gradient.

        By vmap where the model allows it, else one example after another.
        """
        if not self.separable:
            raise SpiritlevelError(
                "per-example gradients do not exist here: the loss of a batch is no sum over its "
                'examples (BatchNorm in train mode, or a loss of pairs); use mode="eval"'
            )

        def loss_of(params: Params, example: Batch) -> Tensor:
            return self.total(params, map_tensors(lambda t: t.unsqueeze(0), example))[0]

        every = vmap(lambda p, e: flatten(grad(loss_of)(p, e)), in_dims=(None, 0))
        with self.smooth():
            try:
                rows = torch.cat([every(self._params, batch) for batch in self._batches])
            except (RuntimeError, ValueError, IndexError):  # no batching rule, or control flow
                ones = [one for batch in self._batches for one in frozen.singles(batch)]
                rows = torch.stack([self.gradient_sum(one) for one in ones])
        return rows * (self.examples / self.count)

    def predictions(self) -> Tensor:
        """The outputs on all the data, in order, one row per example.

        Batches of unequal lengths (padded text) are laid out as rows of logits.
        """
        with torch.no_grad(), kept_rng():
            found = [self.outputs(self._params, batch) for batch in self._batches]
        if any(out.shape[1:] != found[0].shape[1:] for out in found):
            found = [out.reshape(-1, out.shape[-1]) for out in found]
        return torch.cat(found)

    def here(self, batch: Batch) -> Batch:
        """The batch on the device; data too large to live there travel batch by batch."""
        return map_tensors(lambda t: t.to(self.device, non_blocking=True), batch)

    # Other points, other data ----------------------------------------------------------------

    @torch.inference_mode(False)
    def at(self, params: Params | Tensor, *, buffers: Params | None = None) -> Objective:
        """The same objective at another point: named tensors (the rest stay) or a flat vector.

        `buffers` replaces some of the model's buffers too.
        """
        if isinstance(params, Tensor):
            if params.shape != (self.size,):
                raise SpiritlevelError(
                    f"at() needs a vector of {self.size} numbers; got shape {tuple(params.shape)}"
                )
            params = self.named(params)
        for name, tensor in params.items():
            if name not in self._params:
                raise SpiritlevelError(
                    f"at() got the unknown parameter {name!r}; there are: {', '.join(self._params)}"
                )
            if tensor.shape != self.shapes[name]:
                raise SpiritlevelError(
                    f"at() got {name!r} of shape {tuple(tensor.shape)}; "
                    f"it is {tuple(self.shapes[name])}"
                )
        moved = {k: v.detach().to(self._params[k]).clone() for k, v in params.items()}
        given = {k: v.detach().clone() for k, v in (buffers or {}).items()}
        return self._replaced(
            _params={**self._params, **moved}, _buffers={**self._buffers, **given}
        )

    @torch.inference_mode(False)
    def reparametrize(self, coordinates: Coordinates) -> Objective:
        """The same function in other coordinates: L_eta = L o g at eta = g^-1(theta).

        `coordinates` is a bijection g of `spiritlevel.reparam`; everything that takes an Objective
        then measures in eta (Dinh et al., 2017, section 5).
        """
        theta = self.vector
        eta = coordinates.inverse(theta)
        back = coordinates.forward(eta) if eta.shape == theta.shape else eta
        rounding = 1e3 * torch.finfo(self.dtype).eps * float(1 + theta.abs().max())
        if back.shape != theta.shape or not float((back - theta).abs().max()) <= rounding:
            raise SpiritlevelError(
                "reparametrize() needs a bijection of the flat parameters: forward(inverse(theta)) "
                f"is not theta at this point ({type(coordinates).__name__}, {self.size} parameters)"
            )
        point = self.named(eta.detach().to(theta))
        return self._replaced(coordinates=(*self.coordinates, coordinates), _params=point)

    @torch.inference_mode(False)
    def edited(self, edit: Callable[[nn.Module], None]) -> Objective:
        """The same objective with another private copy of the model, changed by `edit`."""
        changed = private_copy(self._model)
        edit(changed)
        return self._replaced(_model=changed, _scope=Scope(changed))

    @torch.inference_mode(False)
    def on(self, batches: Sequence[Batch], *, keep_count: bool = False) -> Objective:
        """The same point on other frozen batches; `keep_count` divides sums by the old count."""
        other = self._replaced(_batches=list(batches))
        other._measure_data()
        if keep_count:
            other.count = self.count
            other._value = None
        return other

    def few(self, n: int) -> Batch:
        """The first batch, cut to n examples where that is possible; for checks."""
        first = self._batches[0]
        return frozen.rows(first, slice(0, n)) if frozen.divisible(first) else first

    @torch.inference_mode(False)
    def to(self, dtype: torch.dtype) -> Objective:
        """The same objective in another precision."""
        other = self._replaced(dtype=dtype)
        other._model = cast(private_copy(self._model), dtype, self.device)
        other._loss = moved(self._loss, dtype, self.device)
        other._scope = Scope(other._model)
        other._params = {k: v.to(dtype) for k, v in self._params.items()}
        other._buffers = {
            k: v.to(dtype) if v.is_floating_point() else v for k, v in self._buffers.items()
        }
        other._batches = [map_tensors(other.place, batch) for batch in self._batches]
        return other

    def smooth(self) -> AbstractContextManager[None]:
        """The context in which this model has second derivatives."""
        return twice_differentiable(recurrent=self._recurrent)

    # Inside ----------------------------------------------------------------------------------

    def _run(self, action: Callable[[nn.Module, Batch], Any], params: Params, batch: Batch) -> Any:
        if self.coordinates:
            params = self.named(self._through_coordinates(params))
        state = {f"model.{name}": tensor for name, tensor in params.items()}
        state |= {f"model.{name}": tensor for name, tensor in self._buffers.items()}
        if self._writes_buffers:  # BatchNorm in train mode does: give it copies
            state |= {f"model.{k}": b.clone() for k, b in self.buffers.items()}
        batch = self.here(batch)
        if self.seed is None and not torch.is_autocast_enabled(self.device.type):
            return functional_call(self._scope, state, (action, batch))
        with fixed_rng(self.seed), torch.autocast(self.device.type, enabled=False):
            return functional_call(self._scope, state, (action, batch))

    def _through_coordinates(self, params: Params) -> Tensor:
        theta = flatten({name: params[name] for name in self.shapes})
        for g in reversed(self.coordinates):
            theta = g.forward(theta)
        return theta

    def _replaced(self, **changes: Any) -> Objective:
        other = copy.copy(self)
        other.__dict__.update(changes, _value=None)
        return other

    def place(self, tensor: Tensor) -> Tensor:
        """A tensor of the data in the precision and on the device of this objective."""
        if tensor.is_floating_point():
            tensor = tensor.to(self.dtype)
        if self.device.type == "cuda" and tensor.nbytes > 0.1 * free_bytes(self.device):
            return tensor.cpu()
        return tensor.to(self.device)

    @torch.no_grad()
    def _sum_and_count(self) -> tuple[float, float]:
        with kept_rng():
            sums, counts = zip(*(self._total_of(batch) for batch in self._batches), strict=True)
        return sum(sums), sum(counts)

    def _measure_data(self) -> None:
        """Fix the counts, and meet a loss that is not finite at the door."""
        self.examples = sum(frozen.examples(batch) for batch in self._batches)
        total, self.count = self._sum_and_count()
        premises.refuse_no_mean(total, self.count)
        self._value: float | None = total / self.count

    def _lay_out(self) -> None:
        """Store images channels-last on a GPU: products of a ResNet-20 take 0.6 of the time.

        A model that calls .view on its activations cannot run so and stays as it is.
        """
        if self.device.type != "cuda" or not any(
            isinstance(m, nn.Conv2d) for m in self._model.modules()
        ):
            return
        try:
            self._model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self._batches = [map_tensors(channels_last, batch) for batch in self._batches]
            self.gradient_sum(self.few(2))
        except RuntimeError:
            self._model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
            self._batches = [map_tensors(Tensor.contiguous, batch) for batch in self._batches]
        own = dict(self._model.named_parameters())
        self._params = {name: own[name].detach() for name in self._params}

    @contextmanager
    def _kept_buffers(self) -> Iterator[None]:
        """Give the model's buffers back as they were, and note if it writes into them."""
        before = {name: b.clone() for name, b in self._model.named_buffers()}
        yield
        for name, b in self._model.named_buffers():
            if not same_tree(b, before[name]):
                self._writes_buffers = True
                b.copy_(before[name])

    @torch.no_grad()
    def _check_examples(self) -> bool:
        """Refuse chance; tell whether the loss of a batch is the sum over its examples."""
        with self._kept_buffers():  # a model that writes into its own state is run on copies of it
            self._total_of(self.few(2))
        exact, (total, count) = self._exact_sample()
        some = exact._batches[0]
        premises.refuse_chance(total, exact._total_of(some)[0])
        if not frozen.divisible(some):
            return all(frozen.examples(batch) == 1 for batch in self._batches)
        return premises.adds_up(exact._total_of, some, total, count)

    def _survey(self, given: list[Batch], microbatch: int | None) -> list[str]:
        """Fix value and counts in one pass over all the data, and check there what they rest on."""
        found = premises.survey(
            self._total_of,
            lambda batch: self.outputs(self._params, batch),
            self._loss.on_outputs,
            map(self.here, self._batches),
            self.separable,
        )
        self.examples = sum(frozen.examples(batch) for batch in self._batches)
        premises.refuse_no_mean(found.total, found.count)
        self.count, self._value = found.count, found.total / found.count
        cut = self.separable and self._batches is not given
        whole = self._replaced(_batches=given)
        if cut and self._loss.on_outputs is None:  # then only the sums themselves can tell
            total = whole._sum_and_count()[0]
            found = replace(found, adds_up=math.isclose(total, found.total, rel_tol=1e-4))
        if self.separable and not found.adds_up:
            if microbatch is not None:
                raise cannot_cut(microbatch)
            self.separable, self._batches = False, given
            self._measure_data()
        return self._fixed_chance() if found.drew and self.seed is None else []

    def _fixed_chance(self) -> list[str]:
        """Random numbers that a model draws are fixed where they do not matter, else refused."""
        for seed in (1, 2, 3):
            with fixed_rng(seed):
                premises.refuse_chance(self.value() * self.count, self._sum_and_count()[0])
        self.seed = 0
        return ["the model draws random numbers though the loss did not change: fixed by seed=0"]

    def _total_of(self, batch: Batch) -> tuple[float, float]:
        total, count = self.total(self._params, batch)
        return float(total), float(count)

    def _exact_sample(self) -> tuple[Objective, tuple[float, float]]:
        """Some examples in float64 (tf32 would blur the checks), if the model can run so."""
        small = self._replaced(_batches=[premises.sample(self._batches)])
        try:
            raised = small.to(torch.float64)
            return raised, raised._total_of(raised._batches[0])
        except RuntimeError:  # tensors of a fixed precision inside the model
            return small, small._total_of(small._batches[0])

    def _cut(self, microbatch: int | None) -> list[Batch]:
        if self.separable and microbatch is None and not self._loss.joins_examples:
            with differentiable(recurrent=self._recurrent):
                point = {k: v.clone().requires_grad_() for k, v in self._params.items()}
                microbatch = affordable(lambda b: self.total(point, b)[0], self.few(4), self.device)
        return cut(self._batches, microbatch, separable=self.separable)
