"""The proof that two points are one network: predictions compared in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from spiritlevel.batches import Batch
from spiritlevel.errors import SpiritlevelError
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.scope import set_apart, without_tf32
from spiritlevel.tensors import gaussian, generator, leaves, map_tensors

if TYPE_CHECKING:
    from spiritlevel.symmetry.group import EpsScale, Group

Verdict = Literal["exact", "approximate", "refuted"]
EXACT = 1e-10  # relative, float64
ROUNDING = 10  # times what float32 costs this model is still rounding, where float32 is met
ONE_PRECISION = 1e-4  # relative, for models that run in float32 only
RANDOM_EXAMPLES = 64


@dataclass(frozen=True)
class Certificate:
    """How far the predictions of two objectives are apart, on the data and on random inputs.

    `relative` is the largest difference over the largest prediction. "exact" is equality up to
    rounding; "approximate" is a difference that the eps of a norm makes and that vanishes when eps
    moves along; "refuted" is neither.
    """

    verdict: Verdict
    absolute: float
    relative: float
    on_data: float
    on_random_inputs: float
    examples: int
    tolerance: float
    reason: str = ""

    @property
    def holds(self) -> bool:
        return self.verdict != "refuted"

    def require(self) -> Certificate:
        """Itself, or an error if it is refuted."""
        if not self.holds:
            raise SpiritlevelError(f"the predictions are not the same: {self}")
        return self

    def __str__(self) -> str:
        if self.absolute == 0:
            return f"exact: identical bit for bit on {self.examples} examples and on random inputs"
        text = (
            f"{self.verdict}: predictions differ by at most {self.relative:.1e} of the largest "
            f"({self.absolute:.1e} absolute), on {self.examples} examples ({self.on_data:.1e}) and "
            f"on random inputs ({self.on_random_inputs:.1e})"
        )
        return f"{text}; {self.reason}" if self.reason else text


@set_apart()
def verify(
    objective: Objective, twin: Objective, *, group: Group | None = None, seed: int = 0
) -> Certificate:
    """Compare the predictions of two objectives on all the data and on random inputs, in float64.

    With the `group` that made the twin, what the eps of norms does is told from other differences.
    """
    only_objectives(objective, twin)
    if objective.shapes != twin.shapes:
        raise SpiritlevelError("the two objectives have other parameters: they cannot be compared")
    if not _runs_in_float64(objective):
        return _verified_as_it_is(objective, twin, seed)
    rough, sources = _rounds_inside(objective)
    single = objective.dtype != torch.float64 or twin.dtype != torch.float64
    tolerance = max(EXACT, ROUNDING * _single_precision(objective)) if rough or single else EXACT
    one, other = objective.to(torch.float64), twin.to(torch.float64)
    random = random_batch(one, seed)
    absolute, on_data, on_random = _differences(one, other, random)
    worst = max(on_data, on_random)
    verdict: Verdict = "exact" if worst <= tolerance else "refuted"
    reason = ""
    if EXACT < worst <= tolerance:
        reason = f"{sources} rounds to float32 inside" if rough else "the parameters are float32"
    if verdict == "refuted" and group is not None and group.norms:
        with_eps = _with_eps_moved(one, other, group)
        if with_eps is not None:
            _, data, chance = _differences(one, with_eps, random)
            if max(data, chance) <= tolerance:
                verdict = "approximate"
                names = ", ".join(dict.fromkeys(n.module or n.operation for n in group.norms[:3]))
                more = f" and {len(group.norms) - 3} more" if len(group.norms) > 3 else ""
                reason = (
                    f"the eps of {names}{more} makes the difference: with eps moved along it is "
                    f"{max(data, chance):.1e}"
                )
    return Certificate(
        verdict, absolute, worst, on_data, on_random, objective.examples, tolerance, reason
    )


@torch.no_grad()
def _runs_in_float64(objective: Objective) -> bool:
    exact = objective.to(torch.float64)
    try:
        exact.outputs(exact.params, exact.few(2))
    except RuntimeError:  # kernels that know one precision only
        return False
    return True


def _verified_as_it_is(objective: Objective, twin: Objective, seed: int) -> Certificate:
    """The comparison in the objective's own precision, where the model has no other."""
    absolute, on_data, on_random = _differences(objective, twin, random_batch(objective, seed))
    worst = max(on_data, on_random)
    return Certificate(
        "exact" if worst <= ONE_PRECISION else "refuted",
        absolute,
        worst,
        on_data,
        on_random,
        objective.examples,
        ONE_PRECISION,
        f"compared in {objective.dtype}: the model does not run in float64",
    )


def random_batch(objective: Objective, seed: int = 0) -> Batch:
    """A batch like the data, with other inputs: normal numbers, tokens of the same range."""
    draws = generator(seed)
    batch = objective.few(RANDOM_EXAMPLES)

    def redraw(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            spread = float(tensor.std()) if tensor.numel() > 1 else 1.0
            return gaussian(tuple(tensor.shape), draws, tensor) * spread + tensor.mean()
        if tensor.dtype == torch.bool:
            return tensor
        low, high = int(tensor.min()), int(tensor.max()) + 1
        shape = tuple(tensor.shape)
        fresh = torch.randint(low, high, shape, generator=draws, dtype=torch.int64, device="cpu")
        return fresh.to(tensor)

    if isinstance(batch, Mapping):
        kept = ("mask", "label", "type", "position")
        return {
            k: v if any(w in k for w in kept) else map_tensors(redraw, v) for k, v in batch.items()
        }
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(map_tensors(redraw, batch[0]), *batch[1:])
    if isinstance(batch, (tuple, list)):
        return type(batch)([map_tensors(redraw, batch[0]), *batch[1:]])
    return map_tensors(redraw, batch)


@torch.no_grad()
def _differences(one: Objective, other: Objective, random: Batch) -> tuple[float, float, float]:
    """Largest absolute difference; largest relative ones on the data and on random inputs."""
    gaps = [_gap(one, other, batch) for batch in one.batches]
    chance = _gap(one, other, random)
    scale = max(*(size for _, size in gaps), 1e-300)
    on_data = max(gap for gap, _ in gaps)
    absolute = max(on_data, chance[0])
    if not math.isfinite(absolute):
        return absolute, math.inf, math.inf
    return absolute, on_data / scale, chance[0] / max(chance[1], 1e-300)


def _gap(one: Objective, other: Objective, batch: Batch) -> tuple[float, float]:
    a, b = one.outputs(one.params, batch), other.outputs(other.params, batch)
    gap, size = float((a - b).abs().max()), float(a.abs().max())
    return (gap, size) if math.isfinite(gap) else (math.inf, size)


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


def _rounds_inside(objective: Objective) -> tuple[bool, str]:
    """Whether the model leaves float64 by itself, as norms of Hugging Face do."""
    exact = objective.to(torch.float64)
    batch = exact.few(2)
    watch = _Precision()
    with torch.no_grad(), watch:
        exact.outputs(exact.params, batch)
    return watch.low, type(objective.module).__name__


@torch.no_grad()
def _single_precision(objective: Objective) -> float:
    """How far float32 takes the predictions of this model."""
    batch = objective.few(RANDOM_EXAMPLES)
    exact, rough = objective.to(torch.float64), objective.to(torch.float32)
    with without_tf32():
        a = exact.outputs(exact.params, map_tensors(exact.place, batch))
        b = rough.outputs(rough.params, map_tensors(rough.place, batch))
    return min(float((a - b).abs().max() / a.abs().max().clamp(min=1e-300)), 1e-5)


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


def _set_eps(model: nn.Module, norm: EpsScale, value: float) -> None:
    module = model.get_submodule(norm.module)
    for name, held in vars(module).items():
        if isinstance(held, float) and math.isclose(held, norm.eps, rel_tol=1e-6):
            setattr(module, name, value)
