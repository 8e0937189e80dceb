"""How an Objective is made: what it is, whether it is a function, and how its data are cut."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from spiritlevel.base import doors, tensor_doors
from spiritlevel.base.errors import SpiritlevelError, in_one_line
from spiritlevel.base.scope import differentiable, fixed_rng, kept_rng
from spiritlevel.base.tensors import leaves, map_tensors, same_tree
from spiritlevel.objective import batches as frozen
from spiritlevel.objective import premises
from spiritlevel.objective.batches import Batch
from spiritlevel.objective.loss import Loss, adapt, moved
from spiritlevel.objective.microbatch import affordable, cannot_cut, cut
from spiritlevel.objective.module import (
    Scope,
    cast,
    channels_last,
    choose,
    private_copy,
    unwrap,
    working_dtype,
)

if TYPE_CHECKING:
    from spiritlevel.objective.objective import Objective

Fields = dict[str, Any]
DIVIDED = (
    "the loss adds up its examples: it is divided by their number (of labels that count, where "
    "there are labels), so that batches do not matter"
)
JOINED = (
    "the loss of a batch is neither the mean nor the sum of those of its examples: the numbers "
    "depend on how the data are batched; if it is a mean with another divisor, give "
    "loss(model, batch) -> (sum, count)"
)
UNCUT = (
    "batches that cannot be cut into examples are taken as they are: whether the numbers depend on "
    "how the data are batched is not known"
)


def refuse_options(loss: Any, heads: Any, microbatch: Any) -> None:
    """What can be seen to be wrong before the model runs."""
    if loss is not None:
        doors.function("loss", loss, "(outputs, y) or of (model, batch)")
    if isinstance(loss, type) and issubclass(loss, nn.Module):
        raise SpiritlevelError(f"loss is the class {loss.__name__}; give one: {loss.__name__}()")
    if microbatch is not None:
        doors.number("microbatch", microbatch, 1, whole=True)
    chosen = heads if isinstance(heads, (list, tuple)) else [heads]
    known = heads is None or all(isinstance(h, (str, int)) for h in chosen)
    if not (known and chosen):
        raise SpiritlevelError(f"heads={heads!r}: give the name or the place of an output, or some")


def drafted(
    model: nn.Module,
    *,
    params: str | Sequence[str] | None,
    mode: str,
    dtype: torch.dtype | None,
    device: torch.device | str | None,
    seed: int | None,
) -> Fields:
    """The model, its point and where it lives; nothing is run yet."""
    doors.one_of("mode", mode, ("eval", "train"))
    if seed is not None:
        tensor_doors.seeded(seed)
    place = None if device is None else tensor_doors.device(device)
    module, notes = unwrap(model)
    chosen = choose(module, params)
    precision, note = working_dtype(module, dtype)
    if note:
        warnings.warn(note, stacklevel=4)
        notes.append(note)
    place = place or next(iter(chosen.values())).device
    own = cast(private_copy(module), precision, place)
    own.train(mode == "train").requires_grad_(False)
    named = dict(own.named_parameters())
    return {
        "mode": mode,
        "whole": False,
        "seed": None if seed is None else int(seed),
        "dtype": precision,
        "device": place,
        "notes": tuple(notes),
        "coordinates": (),
        "recurrent": any(isinstance(m, nn.RNNBase) for m in own.modules()),
        "writes_buffers": mode == "train",
        "_model": own,
        "_scope": Scope(own),
        "_params": {name: named[name].detach() for name in chosen},
        "_buffers": {},
    }


def unwrapped(model: nn.Module) -> nn.Module:
    return unwrap(model)[0]


def examined(draft: Objective, given: nn.Module, microbatch: int | None) -> Fields:
    """What the loss is, whether it adds up over examples, how much is done at once, and counts."""
    with kept_rng():
        try:
            return vars(_examined(draft, given, microbatch))
        except (SpiritlevelError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # models and losses fail on half a batch in any way
            alone = f"model or loss run on whole batches only (on a part: {in_one_line(error)})"
            together = draft.replaced(whole=True, notes=(*draft.notes, alone))
        with frozen.explained(list(draft.batches)):
            return vars(_examined(together, given, microbatch))


def _examined(draft: Objective, given: nn.Module, microbatch: int | None) -> Objective:
    loss, wrote = understood(draft)
    draft = draft.replaced(_loss=loss, writes_buffers=draft.writes_buffers or wrote)
    draft = _laid_out(draft)
    first = draft.few(2)
    strange = premises.refuse_strangers(
        given, draft.given_loss, lambda: draft.total(draft.params, first)
    )
    draft = _told_apart(draft.replaced(notes=(*draft.notes, *strange)))
    draft = _surveyed(draft, microbatch)
    return draft.replaced(notes=(*draft.notes, *_of_batches(draft)))


def _of_batches(draft: Objective) -> list[str]:
    """What has to be said of how the loss takes its examples together."""
    if draft.loss.sums:
        return [DIVIDED]
    if draft.separable or draft.mode != "eval":
        return []
    whole = [b for b in draft.batches if not (frozen.divisible(b) or frozen.examples(b) == 1)]
    if whole:
        return [UNCUT] if len(draft.batches) > 1 else []
    return [JOINED]


def understood(draft: Objective) -> tuple[Loss, bool]:
    """The loss as (sum, count), in place; and whether the model wrote into its buffers."""
    model = vars(draft)["_model"]
    with kept_rng(), _kept_buffers(model) as wrote:
        found = adapt(draft.given_loss, model, list(draft.batches), draft.few(2), draft.heads)
    return moved(found, draft.dtype, draft.device), bool(wrote)


def listed(batches: Any) -> list[Batch]:
    doors.a("batches", batches, (list, tuple), "a list of batches, such as objective.batches")
    if not batches or not all(next(leaves(batch), None) is not None for batch in batches):
        raise SpiritlevelError("batches has to be one batch or more, of tensors")
    return list(batches)


def point_of(
    objective: Objective,
    params: Mapping[str, Tensor] | Tensor,
    buffers: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Named tensors of the right shapes, from such or from a flat vector."""
    if buffers is not None:
        tensor_doors.tensors("buffers", buffers, {n: b.shape for n, b in objective.buffers.items()})
    if isinstance(params, Tensor):
        if params.shape != (objective.size,):
            raise SpiritlevelError(
                f"at() needs a vector of {objective.size} numbers; got shape {tuple(params.shape)}"
            )
        return objective.named(params)
    tensor_doors.tensors("params", params, objective.shapes)
    for name in params:
        if name not in objective.shapes:
            raise SpiritlevelError(
                f"at() got the unknown parameter {name!r}; there are: {', '.join(objective.shapes)}"
            )
    return dict(params)


def measured(objective: Objective) -> Fields:
    """Counts and value; meets a loss that is not finite at the door."""
    with torch.no_grad(), kept_rng():
        totals = [objective.total_of(batch) for batch in objective.batches]
    total, count = (sum(column) for column in zip(*totals, strict=True))
    premises.refuse_no_mean(total, count)
    examples = sum(frozen.examples(batch) for batch in objective.batches)
    return {"examples": examples, "count": count, "_value": total / count}


def _laid_out(draft: Objective) -> Objective:
    """Images are channels-last on a GPU: products of a ResNet-20 take 0.6 of the time.

    A model that calls .view on its activations cannot run so and stays as it is.
    """
    model = draft.module
    if draft.device.type != "cuda" or not any(isinstance(m, nn.Conv2d) for m in model.modules()):
        return draft
    try:
        other = _stored(draft, torch.channels_last, channels_last)
        other.gradient_sum(other.few(2))
    except RuntimeError:
        return _stored(draft, torch.contiguous_format, Tensor.contiguous)
    return other


def _stored(
    draft: Objective, layout: torch.memory_format, of: Callable[[Tensor], Tensor]
) -> Objective:
    draft.module.to(memory_format=layout)  # type: ignore[call-overload]
    own = dict(draft.module.named_parameters())
    return draft.replaced(
        _batches=[map_tensors(of, batch) for batch in draft.batches],
        _params={name: own[name].detach() for name in draft.params},
    )


@contextmanager
def _kept_buffers(model: nn.Module) -> Iterator[list[str]]:
    """Give the model's buffers back as they were; afterwards, the names of those it wrote into."""
    before = {name: b.clone() for name, b in model.named_buffers()}
    wrote: list[str] = []
    yield wrote
    for name, b in model.named_buffers():
        if not same_tree(b, before[name]):
            wrote.append(name)
            b.copy_(before[name])


@torch.no_grad()
def _told_apart(draft: Objective) -> Objective:
    """Refuse chance; tell whether the loss of a batch is the sum over its examples."""
    with _kept_buffers(draft.module) as wrote:  # who writes into its own state is run on copies
        draft.total_of(draft.few(2))
    draft = draft.replaced(writes_buffers=draft.writes_buffers or bool(wrote))
    exact, (total, count) = _exact_sample(draft)
    some = exact.batches[0]
    premises.refuse_chance(total, exact.total_of(some)[0])
    if draft.divisible(some):
        return draft.replaced(separable=premises.adds_up(exact.total_of, some, total, count))
    return draft.replaced(separable=all(frozen.examples(batch) == 1 for batch in draft.batches))


def _exact_sample(draft: Objective) -> tuple[Objective, tuple[float, float]]:
    """Some examples in float64 (tf32 would blur the checks), if the model can run so."""
    some = premises.sample(draft.batches, divisible=draft.divisible)
    small = draft.replaced(_batches=[some])
    try:
        raised = small.to(torch.float64)
        return raised, raised.total_of(raised.batches[0])
    except RuntimeError:  # tensors of a fixed precision inside the model
        return small, small.total_of(small.batches[0])


def _surveyed(whole: Objective, microbatch: int | None) -> Objective:
    """Cut; then value and counts from one pass over all the data, and what they rest on."""
    draft = whole.replaced(_batches=_pieces(whole, microbatch))
    found = premises.survey(
        draft.total_of,
        lambda batch: draft.outputs(draft.params, batch),
        draft.loss.on_outputs,
        map(draft.here, draft.batches),
        draft.separable,
    )
    premises.refuse_no_mean(found.total, found.count)
    # other examples together, be they as many batches as before
    regrouped = [*map(id, draft.batches)] != [*map(id, whole.batches)]
    if draft.separable and draft.loss.on_outputs is None and regrouped:
        # then only the sums themselves can tell
        as_given = measured(whole)
        total = as_given["_value"] * as_given["count"]
        found = replace(found, adds_up=math.isclose(total, found.total, rel_tol=1e-4))
    if draft.separable and not found.adds_up:
        if microbatch is not None:
            raise cannot_cut(microbatch)
        draft = whole.replaced(separable=False)
        draft = draft.replaced(**measured(draft))
    else:
        examples = sum(frozen.examples(batch) for batch in draft.batches)
        value = found.total / found.count
        draft = draft.replaced(examples=examples, count=found.count, _value=value)
    return _with_fixed_chance(draft) if found.drew and draft.seed is None else draft


def _with_fixed_chance(draft: Objective) -> Objective:
    """Random numbers that a model draws are fixed where they do not matter, else refused."""
    total = draft.value() * draft.count
    for seed in (1, 2, 3):
        with fixed_rng(seed):
            found = measured(draft)
            premises.refuse_chance(total, found["_value"] * found["count"])
    note = "the model draws random numbers though the loss did not change: fixed by seed=0"
    return draft.replaced(seed=0, notes=(*draft.notes, note), _value=draft.value())


def _pieces(draft: Objective, microbatch: int | None) -> list[Batch]:
    if draft.separable and microbatch is None and not draft.loss.joins_examples:
        with differentiable(recurrent=draft.recurrent):
            point = {k: v.clone().requires_grad_() for k, v in draft.params.items()}
            microbatch = affordable(lambda b: draft.total(point, b)[0], draft.few(4), draft.device)
    return cut(list(draft.batches), microbatch, separable=draft.separable)
