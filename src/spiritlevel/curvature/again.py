"""What is cheap is made again instead of held: a few element-wise operations on what stays held.

A product needs up to ten tensors of the size of an activation where two or three would do: others
are normalized, squashed and masked copies of them. Those are let go, and made anew where they are
used, by the operations that made them first. Each is compared before, to the last bit.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from spiritlevel.base.tensors import leaves
from spiritlevel.curvature.program import Slot, Step, filled, renamed, slots_of

# the same numbers in the same memory
ALIASES = {torch.ops.aten.alias.default, torch.ops.aten.detach.default}
WORTH = 2**16  # numbers: of smaller tensors calls cost more than memory
LONGEST = 12  # passes through memory that make a tensor again
NEAR = 24  # steps: what is used again so soon is kept that long


@dataclass(eq=False)
class Origin:
    """How a tensor came to be: by a cheap operation on others, in `passes` through memory, or not.

    `slot` is where it is held, if it is. `roots` are what it comes from that nothing cheap made;
    they are not kept alive.
    """

    numel: int
    operation: Callable[..., Any] | None = None
    args: Any = ()
    kwargs: Any = None
    passes: int = 0
    slot: int | None = None
    roots: dict[Origin, weakref.ref[Tensor]] = field(default_factory=dict)


class Origins:
    """Of the tensors that are alive and that the vector does not reach."""

    def __init__(self) -> None:
        self._known: Any = WeakTensorKeyDictionary()

    def note(self, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        """One operation and what it made."""
        if func in ALIASES:
            self._known[made] = self.of(args[0])
            return
        passes = _passes(func)
        given = list(leaves((args, kwargs)))
        if passes is None or not given or any(t._is_zerotensor() for t in given):
            return
        passes += sum(self.of(t).passes for t in given)
        if passes > LONGEST:
            return
        roots: dict[Origin, weakref.ref[Tensor]] = {}
        for tensor in given:
            origin = self.of(tensor)
            roots |= origin.roots if origin.operation else {origin: weakref.ref(tensor)}
        parts = _mapped(self.of, args), _mapped(self.of, kwargs)
        self._known[made] = Origin(made.numel(), func, *parts, passes, roots=roots)

    def of(self, tensor: Tensor) -> Origin:
        origin = self._known.get(tensor)
        if origin is None:
            origin = self._known[tensor] = Origin(tensor.numel())
        return origin


@functools.cache
def _passes(func: Any) -> int | None:
    """Through memory, of an operation that is cheap: none for a view."""
    schema = func._schema
    if schema.is_mutable or len(schema.returns) != 1:
        return None
    if torch.Tag.pointwise in func.tags and torch.Tag.nondeterministic_seeded not in func.tags:
        return 1
    is_view = schema.returns[0].alias_info is not None and str(schema.returns[0].type) == "Tensor"
    return 0 if is_view else None


def _mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    if isinstance(tree, (Tensor, Origin)):
        return function(tree)
    if isinstance(tree, (tuple, list)):
        return tuple(_mapped(function, item) for item in tree)
    if isinstance(tree, dict):
        return {key: _mapped(function, item) for key, item in tree.items()}
    return tree


@dataclass(frozen=True)
class Recipe:
    """Steps of one result each that make a tensor of others; the last one makes it."""

    steps: tuple[Step, ...]

    @property
    def made(self) -> int:
        return self.steps[-1].outs[0]  # type: ignore[return-value]

    def remakes(self, slot: int, held: dict[int, Tensor]) -> bool:
        """Whether it makes what is held in a slot, to the last bit."""
        places: dict[int, Tensor] = dict(held)
        with torch.no_grad(), torch.autocast(held[slot].device.type, enabled=False):
            for step in self.steps:
                args, kwargs = filled(step.args, places), filled(step.kwargs, places)
                places[step.outs[0]] = step.operation(*args, **kwargs)  # type: ignore[index]
        found, truth = places[self.made], held[slot]
        alike = found.dtype == truth.dtype and found.stride() == truth.stride()
        return alike and torch.equal(found, truth)


class Recipes:
    """For what is held in slots, from what stays held; `hold` takes in what others come from.

    `roots` are those that are still there. Nothing here may refer to itself: the memory of a
    recording would stay taken until Python looks for such circles.
    """

    def __init__(
        self,
        origins: dict[int, Origin],
        held: dict[int, Tensor],
        roots: dict[Origin, Tensor],
        hold: Callable[[Tensor], int],
        numbers: Iterator[int],
    ) -> None:
        self.held, self.roots, self.hold, self.numbers = held, roots, hold, numbers
        self.known: dict[int, Recipe] = {}
        self.kept = {slot for slot in held if _must_stay(origins.get(slot))}
        wanted = {slot: origins[slot] for slot in held if slot not in self.kept}
        self._take_in(wanted)
        for slot in sorted(wanted, key=lambda slot: (wanted[slot].passes, slot)):
            recipe = self._found(wanted[slot])
            if recipe is not None and recipe.remakes(slot, held):
                self.known[slot] = recipe
            else:
                self.kept.add(slot)

    def _take_in(self, wanted: dict[int, Origin]) -> None:
        """Roots that are not held, where what is made of them takes more memory than they do."""
        groups: dict[frozenset[Origin], list[int]] = {}
        for slot, origin in wanted.items():
            groups.setdefault(self._missing(origin), []).append(slot)
        for group in sorted(groups, key=lambda group: (len(group), groups[group][0])):
            missing = {root for root in group if root.slot not in self.kept}
            new = [root for root in self.roots if root in missing]
            gained = sum(wanted[slot].numel for slot in groups[group])
            if len(new) == len(missing) and gained > sum(root.numel for root in new):
                for root in new:
                    root.slot = self.hold(self.roots[root])
                    self.kept.add(root.slot)

    def _missing(self, origin: Origin) -> frozenset[Origin]:
        """The roots of a tensor that are not held."""
        found, ahead = set[Origin](), [origin]
        while ahead:
            part = ahead.pop()
            if part is origin or part.slot not in self.kept:
                if part.operation is None:
                    found.add(part)
                _mapped(ahead.append, (part.args, part.kwargs))
        return frozenset(found)

    def _found(self, wanted: Origin) -> Recipe | None:
        if self._missing(wanted):
            return None
        steps: list[Step] = []
        self._place(wanted, wanted, {}, steps)
        return Recipe(tuple(steps))

    def _place(
        self, part: Origin, wanted: Origin, places: dict[Origin, Slot], steps: list[Step]
    ) -> Slot:
        """Where a part of what is wanted lies, after the steps that make it."""
        if part is not wanted and part.slot in self.kept:
            return Slot(part.slot)  # type: ignore[arg-type]
        if part not in places:
            assert part.operation is not None
            deeper = functools.partial(self._place, wanted=wanted, places=places, steps=steps)
            args, kwargs = _mapped(deeper, part.args), _mapped(deeper, part.kwargs)
            places[part] = Slot(next(self.numbers))
            steps.append(Step(part.operation, args, kwargs, (places[part].number,), False))
        return places[part]

    def woven_into(self, steps: Sequence[Step]) -> list[Step]:
        """The steps, and before each what it uses of what was let go and is not near by."""
        found: list[Step] = []
        there: dict[int, int] = {}  # what was let go -> what was made again
        near: dict[Any, tuple[int, int]] = {}  # an operation -> what it made, and when

        def make(step: Step, names: dict[int, int], time: int) -> None:
            step = renamed(step, names)
            key = step.operation, repr((step.args, step.kwargs))  # in which 0.0 is not -0.0
            made, then = near.get(key, (0, -NEAR - 1))
            if time - then > NEAR:
                made = next(self.numbers)
                found.append(replace(step, outs=(made,)))
                near[key] = made, time
            names[step.outs[0]] = made  # type: ignore[index]

        for time, step in enumerate(steps):
            for slot in sorted(slots_of(step) & self.known.keys()):
                names: dict[int, int] = {}
                for part in self.known[slot].steps:
                    make(part, names, time)
                there[slot] = names[self.known[slot].made]
            found.append(renamed(step, there))
        return found


def _must_stay(origin: Origin | None) -> bool:
    return origin is None or origin.operation is None or origin.passes == 0 or origin.numel < WORTH
