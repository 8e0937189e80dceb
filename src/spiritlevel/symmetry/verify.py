"""The proof that two points are one network: predictions and losses compared in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.memory import relieved
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensor_doors import seeded
from spiritlevel.base.tensors import leaves
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.objective.batches import Batch
from spiritlevel.results.certificate import Certificate
from spiritlevel.symmetry.drawn import Drawn, drawn
from spiritlevel.symmetry.gaps import NOTHING, SINGLE, Gap, Jitter, compared
from spiritlevel.symmetry.group import EpsScale, Group, only_groups

Predicted = tuple[list[dict[str, Tensor]], list[Tensor]]  # by name and objective; summed losses
SMALL = 2**27  # bytes of predictions that are remembered
# What is known of an objective from other comparisons, as long as it lives
SEEN: WeakKeyDictionary[Objective, dict[int, list[Predicted]]] = WeakKeyDictionary()


@set_apart()
def verify(
    objective: Objective, twin: Objective, *, group: Group | None = None, seed: int = 0
) -> Certificate:
    """Compare two objectives on all the data and on random inputs, in float64.

    All that the model returns is compared, output by output, and the loss. Where the model does not
    run on random inputs, columns of the data are shuffled instead, and `inputs` says so. With the
    `group` that made the twin, an element of it is told from its rounding to float32, and what the
    eps of norms does from other differences.
    """
    only_objectives(objective, twin)
    seeded(seed)
    only_groups(group)
    if objective.shapes != twin.shapes:
        raise SpiritlevelError("the two objectives have other parameters: they cannot be compared")
    one, other = exactly(objective), exactly(twin)
    if not _runs(one):
        return _verified_as_it_is(objective, twin, seed)
    random = drawn(one, seed)
    memory = SEEN.setdefault(objective, {}).setdefault(seed, [])
    single = torch.float64 not in (objective.dtype, twin.dtype)
    on_orbit = _element(one, other, group) if single and group is not None else None
    others = [other] if on_orbit is None else [other, on_orbit]
    found, *exact = _certified(one, others, random, memory=memory)
    if found.holds:
        return found
    if on_orbit is not None:
        if exact[0].holds:
            return replace(exact[0], stored=found.relative, reason=_stored(found.relative))
        other = on_orbit
    inside, source = _rounds_inside(one)
    if inside or (single and group is None):
        (rough,) = _certified(one, [other], random, SINGLE)
        reason = f"{source} rounds to float32 inside" if inside else "the parameters are float32"
        if rough.holds:
            return replace(rough, verdict="rounding", reason=reason)
    if group is not None and group.norms:
        return _with_eps(one, other, group, random, found, inside)
    return found


def _stored(relative: float) -> str:
    return f"the twin as stored, rounded to float32, differs by {relative:.1e}"


@torch.no_grad()
def _certified(
    one: Objective,
    others: Sequence[Objective],
    random: Drawn,
    jitter: Jitter | None = None,
    memory: list[Predicted] | None = None,
) -> list[Certificate]:
    """Exact or refuted: outputs of all batches against what a little noise on `one` does.

    `memory` is what is known of `one` from other comparisons.
    """
    jitter = jitter or Jitter()
    base, scored, count = [one, *jitter.moved(one)], _scores(one), len(others)
    sums = torch.zeros(len(base) + count, dtype=torch.float64)
    data, chance = [NOTHING] * count, [NOTHING] * count
    batches = [(batch, scored) for batch in one.batches] + [(random.batch, False)]
    known = _remembered(base, batches, [] if memory is None else memory)
    for number, ((batch, score), ((here, *near), parts)) in enumerate(
        zip(batches, known, strict=True)
    ):
        there, more = _predicted(others, batch, score)
        sums += torch.stack([*parts, *more])
        seen = data if number < len(one.batches) else chance
        seen[:] = [g | compared(here, t, near, jitter) for g, t in zip(seen, there, strict=True)]
    value, *values = (sums / one.count).tolist()
    noises, values = values[: len(base) - 1], values[len(base) - 1 :]
    # a sum over the data rounds too; a loss may be far smaller than its terms
    noise = max(abs(n - value) for n in noises)
    slack = jitter.slack * noise + jitter.floor * (1 + abs(value))
    return [
        _certificate(one, data[i], chance[i], value, values[i], slack, random.inputs)
        for i in range(count)
    ]


def _predicted(objectives: Sequence[Objective], batch: Batch, score: bool) -> Predicted:
    """All that some networks return, and their losses, unless those of equals are equal."""
    nothing = torch.zeros((), dtype=torch.float64)
    if not score:
        outs = [relieved(lambda o=o: o.returned(o.params, batch)) for o in objectives]
        return outs, [nothing] * len(objectives)
    found = [relieved(lambda o=o: o.together(o.params, batch)) for o in objectives]
    return [out for out, _ in found], [total.detach().double().cpu() for _, (total, _) in found]


def _remembered(
    base: Sequence[Objective], batches: Sequence[tuple[Batch, bool]], memory: list[Predicted]
) -> Iterator[Predicted]:
    """Batch by batch, from memory where that is; held if all of it is small."""
    if memory:
        yield from memory
        return
    held: list[Predicted] = []
    room = SMALL
    for batch, score in batches:
        found = _predicted(base, batch, score)
        room -= sum(t.nbytes for t in leaves(found))
        if room > 0:
            held.append(found)
        yield found
    if room > 0:
        memory += held


def _certificate(
    one: Objective,
    data: Gap,
    chance: Gap,
    base: float,
    value: float,
    slack: float,
    inputs: str,
) -> Certificate:
    same_loss = abs(value - base) <= slack or base == value
    both = data | chance
    return Certificate(
        verdict="exact" if both.within and same_loss else "refuted",
        absolute=both.absolute,
        relative=max(data.relative, chance.relative),
        on_data=data.relative,
        on_random_inputs=chance.relative,
        examples=one.examples,
        loss=abs(value - base) / max(abs(base), slack) if value != base else 0.0,
        inputs=inputs,
        reason="" if same_loss or not both.within else "the loss is no function of the predictions",
    )


def _scores(objective: Objective) -> bool:
    """Whether the loss runs in this precision; a function of the predictions need not."""
    if objective.loss.on_outputs is None:
        return True
    try:
        objective.together(objective.params, objective.few(2))
    except RuntimeError:  # tensors of one precision inside the loss
        return False
    return True


def _element(one: Objective, other: Objective, group: Group) -> Objective | None:
    """The element of the group whose rounding to float32 the other point is, if it is one."""
    state = {**one.buffers, **one.params}
    t = group.locate(state, {**other.buffers, **other.params})
    found = group.act({n: state[n] for n in group.shapes}, t)
    held = {**other.buffers, **other.params}
    for name, tensor in found.items():
        gap = (tensor - held[name].to(tensor)).abs()
        if bool((gap > 8 * torch.finfo(torch.float32).eps * tensor.abs()).any()):
            return None
    buffers = {name: found.pop(name) for name in list(found) if name in group.buffers}
    return one.at(found, buffers=buffers)


def _with_eps(
    one: Objective,
    other: Objective,
    group: Group,
    random: Drawn,
    found: Certificate,
    inside: bool,
) -> Certificate:
    """Whether the difference is gone when eps moves along, or from both where it cannot."""
    start, end, how = one, _with_eps_moved(one, other, group), "with eps moved along"
    if end is None:
        start, end = _without_eps(one, group), _without_eps(other, group)
        how = "without eps"
    (rest,) = _certified(start, [end], random)
    if not rest.holds and inside:
        (rest,) = _certified(start, [end], random, SINGLE)
    if not rest.holds:
        return found
    names = ", ".join(dict.fromkeys(n.module or n.operation for n in group.norms[:3]))
    more = f" and {len(group.norms) - 3} more" if len(group.norms) > 3 else ""
    reason = f"the eps of {names}{more} makes the difference: {how} it is {rest.relative:.1e}"
    return replace(found, verdict="approximate", reason=reason)


def exactly(objective: Objective) -> Objective:
    """The objective in float64: itself, where it is, for a copy of it would be no other."""
    held = {b.dtype for b in objective.buffers.values() if b.is_floating_point()}
    if objective.dtype == torch.float64 and held <= {torch.float64}:
        return objective
    return objective.to(torch.float64)


@torch.no_grad()
def _runs(exact: Objective) -> bool:
    try:
        exact.returned(exact.params, exact.few(2))
    except RuntimeError:  # kernels that know one precision only
        return False
    return True


def _verified_as_it_is(objective: Objective, twin: Objective, seed: int) -> Certificate:
    """The comparison in the objective's own precision, where the model has no other."""
    (found,) = _certified(objective, [twin], drawn(objective, seed), SINGLE)
    if not found.holds:
        return found
    reason = f"compared in {objective.dtype}: the model does not run in float64"
    return replace(found, verdict="rounding", reason=reason)


class _Precision(TorchDispatchMode):
    """Notes whether an operation makes single or half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.low = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        takes_float = any(t.is_floating_point() for t in leaves(args))
        if takes_float and any(
            t.is_floating_point() and t.dtype != torch.float64 for t in leaves(result)
        ):
            self.low = True
        return result


def _rounds_inside(exact: Objective) -> tuple[bool, str]:
    """Whether the model leaves float64 by itself, as norms of Hugging Face do."""
    watch = _Precision()
    with torch.no_grad(), watch:
        exact.returned(exact.params, exact.few(2))
    return watch.low, type(exact.module).__name__


def _with_eps_moved(one: Objective, other: Objective, group: Group) -> Objective | None:
    """The twin with eps -> e^2s eps in every norm, or None where one number cannot do it."""
    state = {**one.buffers, **one.params}
    t = group.locate(state, {**other.buffers, **other.params})
    table = group.evaluate(t)
    buffers, edits = {}, []
    for norm in group.norms:
        scale = table[norm.forms.reshape(-1)]
        variance = f"{norm.module}.running_var"
        if norm.operation == "batch_norm" and variance in group.buffers:
            factor = scale.exp().to(one.buffers[variance])
            buffers[variance] = factor * (one.buffers[variance] + norm.eps) - norm.eps
        elif float(scale.max() - scale.min()) < 1e-9:
            edits.append((norm, norm.eps * math.exp(2 * float(scale[0]))))
        else:
            return None

    def edit(model: nn.Module) -> None:
        for norm, value in edits:
            _set_eps(model, norm, value)

    return other.at({}, buffers=buffers).edited(edit)


def _without_eps(objective: Objective, group: Group) -> Objective:
    def edit(model: nn.Module) -> None:
        for norm in group.norms:
            _set_eps(model, norm, 0.0)

    return objective.edited(edit)


def _set_eps(model: nn.Module, norm: EpsScale, value: float) -> None:
    module = model.get_submodule(norm.module)
    for name, held in vars(module).items():
        if isinstance(held, float) and math.isclose(held, norm.eps, rel_tol=1e-6):
            setattr(module, name, value)
