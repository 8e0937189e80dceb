"""The loss of a model on its data, as a function of the parameters."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NoReturn, Protocol

import torch
from torch import Tensor, nn

from spiritlevel.base import doors, tensor_doors
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.memory import free_bytes, relieved
from spiritlevel.base.scope import differentiable, fixed_rng, kept_rng, twice_differentiable
from spiritlevel.base.tensors import flatten, map_tensors, spans, unflatten
from spiritlevel.objective import batches as frozen
from spiritlevel.objective import builder, singles, slopes
from spiritlevel.objective.batches import Batch
from spiritlevel.objective.loss import Heads, Loss, Total, moved
from spiritlevel.objective.module import Scope, Wiring, cast, private_copy

Mode = Literal["eval", "train"]
Params = Mapping[str, Tensor]


class Coordinates(Protocol):
    """A bijection eta -> theta of the flat parameters; see `spiritlevel.coordinates`."""

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
        builder.refuse_options(loss, heads, microbatch)
        draft = builder.drafted(
            model, params=params, mode=mode, dtype=dtype, device=device, seed=seed
        )
        vars(self).update(draft, given_loss=loss, heads=heads)
        vars(self).update(_batches=frozen.freeze(data, self.place))
        vars(self).update(builder.examined(self, builder.unwrapped(model), microbatch))

    # What it is ------------------------------------------------------------------------------

    mode: Mode
    seed: int | None
    dtype: torch.dtype
    device: torch.device
    heads: Heads | None
    given_loss: Callable[..., Any] | None  # as the user wrote it
    whole: bool  # whether model or loss run on whole batches only, as on all nodes of a graph
    separable: bool  # whether the loss of a batch is the sum over its examples
    examples: int
    count: float  # of what the loss is averaged over: examples, tokens, weights
    notes: tuple[str, ...]
    coordinates: tuple[Coordinates, ...]  # the last is nearest to the point
    wiring: Wiring | None = None  # where the model was changed
    recurrent: bool
    writes_buffers: bool
    _model: nn.Module
    _scope: Scope
    _loss: Loss
    _params: dict[str, Tensor]
    _buffers: dict[str, Tensor]  # those that differ from the model's own
    _batches: list[Batch]

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise SpiritlevelError(
            f"an Objective is frozen, {name} cannot be set: make another one with at(), on(), to() "
            "or Objective(...)"
        )

    def __copy__(self) -> Objective:
        return self.replaced()

    def __deepcopy__(self, memo: dict[int, Any]) -> Objective:
        return self.replaced()  # nothing in it changes

    def __getstate__(self) -> dict[str, Any]:
        """All but what is made of the loss and the model again where it arrives."""
        try:
            pickle.dumps(self.given_loss)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise SpiritlevelError(
                f"this objective cannot be sent to another process, because of its loss: {error}. "
                "Define the loss as a function at the top level of a module"
            ) from error
        return {k: v for k, v in vars(self).items() if k not in ("_loss", "_scope")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _scope=Scope(state["_model"]))
        vars(self).update(_loss=builder.understood(self)[0])

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
        tensor_doors.tensor("vector", vector, self.size, finite=False)
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

    def mean(self, of: Callable[[Batch], Any]) -> Any:
        """sum over the batches of `of(batch)`, over the count: the one sum over the data."""
        doors.function("of", of, "a batch")
        return sum(relieved(lambda b=batch: of(b)) for batch in self._batches) / self.count

    def value(self) -> float:
        """L(theta), the mean loss over all examples."""
        if "_value" not in vars(self):
            with torch.no_grad(), kept_rng():
                vars(self)["_value"] = self.mean(lambda batch: self.total_of(batch)[0])
        return vars(self)["_value"]

    def gradient(self) -> Tensor:
        """grad L(theta), a flat vector."""
        with differentiable(recurrent=self.recurrent):
            return self.mean(self.gradient_sum)

    def value_and_gradient(self) -> tuple[float, Tensor]:
        """L(theta) and grad L(theta) from one pass over the data."""
        with differentiable(recurrent=self.recurrent):
            return slopes.mean(self)

    def gradient_sum(self, batch: Batch) -> Tensor:
        """The gradient of the summed loss of one batch."""
        return slopes.summed(self, batch)[1]

    def per_example_gradients(self) -> Tensor:
        """One row per example, (examples, size), whose mean is the gradient.

        By vmap where the model allows it, else one example after another.
        """
        return torch.cat(list(singles.gradients(self)))

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
        point = builder.point_of(self, params, buffers)
        moved = {k: v.detach().to(self._params[k]).clone() for k, v in point.items()}
        given = {k: v.detach().clone() for k, v in (buffers or {}).items()}
        return self.replaced(_params={**self._params, **moved}, _buffers={**self._buffers, **given})

    @torch.inference_mode(False)
    def reparametrize(self, coordinates: Coordinates) -> Objective:
        """The same function in other coordinates: L_eta = L o g at eta = g^-1(theta).

        `coordinates` is a bijection g of `spiritlevel.coordinates`; everything that takes an
        Objective then measures in eta (Dinh et al., 2017, section 5).
        """
        tensor_doors.bijection("coordinates", coordinates)
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
        return self.replaced(coordinates=(*self.coordinates, coordinates), _params=point)

    @torch.inference_mode(False)
    def edited(self, edit: Callable[[nn.Module], None], wiring: Wiring | None = None) -> Objective:
        """The same objective with another private copy of the model, changed by `edit`."""
        doors.function("edit", edit, "a module, which it changes")
        doors.a("wiring", wiring, (Wiring, type(None)), "a Wiring")
        changed = private_copy(self._model)
        edit(changed)
        known = dict(changed.named_buffers())
        kept = {name: buffer for name, buffer in self._buffers.items() if name in known}
        other = self.replaced(_model=changed, _scope=Scope(changed), _buffers=kept)
        return other if wiring is None else other.replaced(wiring=wiring)

    @torch.inference_mode(False)
    def on(self, batches: Sequence[Batch], *, keep_count: bool = False) -> Objective:
        """The same point on other frozen batches; `keep_count` divides sums by the old count."""
        other = self.replaced(_batches=builder.listed(batches))
        fields = builder.measured(other)
        if keep_count:
            del fields["_value"]
            fields["count"] = self.count
        return other.replaced(**fields)

    def few(self, n: int) -> Batch:
        """The first batch, cut to n examples where that is possible; for checks."""
        doors.number("n", n, 1, whole=True)
        return self.part(self._batches[0], n)

    def part(self, batch: Batch, n: int) -> Batch:
        """The first n examples of a batch; all of them where it does not run in parts."""
        return frozen.rows(batch, slice(0, n)) if self.divisible(batch) else batch

    def divisible(self, batch: Batch) -> bool:
        """Whether some examples of a batch can be run without the others."""
        return not self.whole and frozen.divisible(batch)

    @torch.inference_mode(False)
    def to(self, dtype: torch.dtype) -> Objective:
        """The same objective in another precision."""
        doors.one_of("dtype", dtype, (torch.float32, torch.float64))
        model = cast(private_copy(self._model), dtype, self.device)
        other = self.replaced(dtype=dtype)
        return other.replaced(
            _model=model,
            _scope=Scope(model),
            _loss=moved(self._loss, dtype, self.device),
            _params={k: v.to(dtype) for k, v in self._params.items()},
            _buffers={
                k: v.to(dtype) if v.is_floating_point() else v for k, v in self._buffers.items()
            },
            _batches=[map_tensors(other.place, batch) for batch in self._batches],
        )

    def smooth(self) -> AbstractContextManager[None]:
        """The context in which this model has second derivatives."""
        return twice_differentiable(recurrent=self.recurrent)

    # Inside ----------------------------------------------------------------------------------

    def _run(self, action: Callable[[nn.Module, Batch], Any], params: Params, batch: Batch) -> Any:
        if self.coordinates:
            params = self.named(self._through_coordinates(params))
        params = self.wiring(params) if self.wiring else params
        state = {f"model.{name}": tensor for name, tensor in params.items()}
        state |= {f"model.{name}": tensor for name, tensor in self._buffers.items()}
        if self.writes_buffers:  # BatchNorm in train mode does: give it copies
            state |= {f"model.{k}": b.clone() for k, b in self.buffers.items()}
        batch = self.here(batch)
        if self.seed is None and not torch.is_autocast_enabled(self.device.type):
            return self._scope.at(state, action, batch)
        with fixed_rng(self.seed), torch.autocast(self.device.type, enabled=False):
            return self._scope.at(state, action, batch)

    def _through_coordinates(self, params: Params) -> Tensor:
        theta = flatten({name: params[name] for name in self.shapes})
        for g in reversed(self.coordinates):
            theta = g.forward(theta)
        return theta

    def replaced(self, **fields: Any) -> Objective:
        """A copy with other fields; its value is kept where only words about it change."""
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        if set(fields) - {"notes"}:
            vars(other).pop("_value", None)
        vars(other).update(fields)
        return other

    def total_of(self, batch: Batch) -> tuple[float, float]:
        """Sum and count of one batch at the point, as numbers."""
        total, count = self.total(self._params, batch)
        return float(total), float(count)

    def place(self, tensor: Tensor) -> Tensor:
        """A tensor of the data in the precision and on the device of this objective."""
        if tensor.is_floating_point():
            tensor = tensor.to(self.dtype)
        if self.device.type == "cuda" and tensor.nbytes > 0.1 * free_bytes(self.device):
            return tensor.cpu()
        return tensor.to(self.device)
