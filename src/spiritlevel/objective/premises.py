"""What must hold of a loss before anything is computed of it: means, sums, chance, strangers."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.overrides import TorchFunctionMode

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.tensors import leaves, map_tensors
from spiritlevel.objective import batches as frozen
from spiritlevel.objective.batches import Batch

SumAndCount = tuple[float, float]
Divisible = Callable[[Batch], bool]
SAMPLED = 16  # examples that are looked at one by one
PIECES = 5  # into which the outputs of a batch are cut
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4}


def refuse_no_mean(total: float, count: float) -> None:
    """Meet a mean that does not exist at the door."""
    if count <= 0:
        raise SpiritlevelError("data is empty: no label counts (all are ignored or weigh 0)")
    if not math.isfinite(total):
        raise SpiritlevelError(
            f"the loss is {total}: an input, a target or a prediction is not finite; look for "
            "NaN in the data, log(0) or overflow, or try dtype=torch.float64"
        )


# Chance -----------------------------------------------------------------------------------------


def refuse_chance(once: float, again: float) -> None:
    """Two evaluations of one batch must agree."""
    if math.isfinite(once) and not math.isclose(once, again, rel_tol=1e-7):
        raise SpiritlevelError(
            f"the loss differs between two evaluations ({once} and {again}): "
            'dropout or other randomness in train mode; use mode="eval", or fix the masks '
            "with seed=0"
        )


def random_states() -> tuple[Any, ...]:
    """Of every global generator: drawing a number changes one of them."""
    numpy: Any = np.random.get_state()  # noqa: NPY002
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    states = [torch.get_rng_state(), *cuda]
    return (
        tuple(bytes(s.numpy()) for s in states),
        random.getstate(),
        (numpy[1].tobytes(), *numpy[2:]),
    )


# Sums -------------------------------------------------------------------------------------------


def sample(
    batches: Sequence[Batch], seed: int = 0, *, divisible: Divisible = frozen.divisible
) -> Batch:
    """Some examples from all over the data, where batches can be cut; else the first batch."""
    draws = torch.Generator().manual_seed(seed)
    usable = [b for b in batches if divisible(b)]
    if not usable:
        return batches[0]
    found: list[Batch] = []
    for i in torch.randperm(len(usable), generator=draws)[:4].tolist():
        batch, share = usable[i], max(SAMPLED // len(usable), SAMPLED // 4)
        places = torch.randperm(frozen.examples(batch), generator=draws)[:share]
        found.append(taken(batch, places))
    return frozen.join(found) if frozen.alike(found) else found[0]


def taken(batch: Batch, places: Tensor) -> Batch:
    """Some examples of a batch by their places."""
    return map_tensors(lambda t: t[places.to(t.device)], batch)


def adds_up(
    total_of: Callable[[Batch], SumAndCount], batch: Batch, total: float, count: float
) -> bool:
    """Whether the sum and the count of a batch are those of its two unequal parts, added."""
    third = -(-frozen.examples(batch) // 3)
    parts = (frozen.rows(batch, slice(0, third)), frozen.rows(batch, slice(third, None)))
    try:
        sums, counts = zip(*(total_of(part) for part in parts), strict=True)
    except ValueError:  # batch statistics of one example do not exist
        return False
    return not math.isfinite(total) or (
        math.isclose(total, sum(sums), rel_tol=1e-4, abs_tol=1e-9)
        and math.isclose(count, sum(counts), rel_tol=1e-6)
    )


def adds_up_in_pieces(
    on_outputs: Callable[[Tensor, Batch], Any], out: Tensor, batch: Batch, number: int
) -> bool:
    """Whether the loss of these outputs is the sum over random pieces of them, some of one example.

    Class weights, ignored labels and losses of pairs show only where the pieces differ.
    """
    n = frozen.examples(batch)
    if n < 2 or out.ndim == 0 or len(out) != n:
        return True  # a table of tokens: nothing to cut
    draws = torch.Generator().manual_seed(number)
    order = torch.randperm(n, generator=draws)
    edges = sorted({0, 1, 2, n, *torch.randint(1, n, (PIECES,), generator=draws).tolist()})
    total, count = (float(v) for v in on_outputs(out, batch))
    sums, counts = [], []
    for a, b in itertools.pairwise(edges):
        some = order[a:b]
        piece = on_outputs(out[some.to(out.device)], taken(batch, some))
        if float(piece[1]):  # a mean over ignored labels alone is 0 / 0
            sums.append(float(piece[0]))
            counts.append(float(piece[1]))
    size = sum(abs(s) for s in sums) + abs(total)
    near = abs(total - sum(sums)) <= ROUNDING[out.dtype] * size
    return (near or not math.isfinite(total)) and math.isclose(count, sum(counts), rel_tol=1e-6)


@dataclass(frozen=True)
class Survey:
    """What one pass over all the data says of a loss."""

    total: float
    count: float
    adds_up: bool  # over the examples, as far as outputs can be cut
    drew: bool  # random numbers


@torch.no_grad()
def survey(
    total_of: Callable[[Batch], SumAndCount],
    outputs_of: Callable[[Batch], Tensor],
    on_outputs: Callable[[Tensor, Batch], Any] | None,
    batches: Iterable[Batch],
    separable: bool,
) -> Survey:
    """`separable` says whether it adds up as far as is known, and is worth a closer look."""
    before, adds, sums = random_states(), separable, [0.0, 0.0]
    for number, batch in enumerate(batches):
        if on_outputs is None:
            total, count = total_of(batch)
        else:
            out = outputs_of(batch)
            total, count = (float(v) for v in on_outputs(out, batch))
            adds = adds and adds_up_in_pieces(on_outputs, out, batch, number)
        sums = [sums[0] + total, sums[1] + count]
    return Survey(sums[0], sums[1], adds, random_states() != before)


# Strangers --------------------------------------------------------------------------------------


ASKED = {"__get__", "size", "dim", "numel", "stride", "__len__", "is_floating_point", "is_complex"}


class _Strangers(TorchFunctionMode):
    """Notes tensors that take part though they are no function of the point or of the data.

    Asking for a shape is no part.
    """

    def __init__(self, places: dict[int, str]) -> None:
        super().__init__()
        self.places, self.own, self.others = places, list[str](), list[torch.Size]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        asked = getattr(func, "__name__", "") in ASKED
        for t in () if asked else leaves((args, kwargs or {})):
            name = self.places.get(_place(t))
            if name is not None:
                self.own.append(name)
            elif t.requires_grad and not is_functorch_wrapped_tensor(
                t
            ):  # of torch.func.grad inside
                self.others.append(t.shape)
        return func(*args, **(kwargs or {}))


def _place(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # sparse and other tensors without one storage
        return -1


@torch.no_grad()
def refuse_strangers(model: nn.Module, loss: Any, evaluate: Callable[[], Any]) -> list[str]:
    """A loss that closes over the user's model sees parameters that never move: refuse it.

    Parameters of a loss that is itself a module are held fixed: a note says so.
    """
    places = {_place(p): name for name, p in model.named_parameters() if p.numel()}
    held = dict(loss.named_parameters()) if isinstance(loss, nn.Module) else {}
    watch = _Strangers(places)
    with watch:
        evaluate()
    if watch.own:
        raise SpiritlevelError(
            f"the loss uses the parameter {watch.own[0]!r} of the model that it closes over, which "
            "does not move with the point: take parameters from the argument instead, "
            "loss(model, batch) -> (sum, count)"
        )
    own_shapes = {p.shape for p in held.values()}
    unknown = [shape for shape in watch.others if shape not in own_shapes]
    if unknown:
        raise SpiritlevelError(
            f"the loss uses a tensor of shape {tuple(unknown[0])} that requires gradients but is "
            "no function of the given parameters (an activation kept from an earlier pass?): "
            "compute it from the model that the loss is given, or detach() it if it is a constant"
        )
    moving = [name for name, p in held.items() if p.requires_grad]
    return [f"the loss has parameters of its own ({moving[0]}): held fixed"] if moving else []
