"""Operations on tensors as data: played in order, or handed to a compiler as a graph."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, fx


@dataclass(frozen=True)
class Slot:
    """A place of a tensor that is known when the tape is played."""

    number: int


@dataclass(frozen=True)
class Step:
    """One operation: tensors among its arguments are slots; `last` are not needed afterwards."""

    operation: Callable[..., Any]
    args: Any
    kwargs: Any
    outs: tuple[int | None, ...]
    several: bool
    last: tuple[int, ...] = ()


@dataclass(frozen=True)
class Program:
    """Slot 0 is the vector, then come the tensors that are held, then those that are made."""

    steps: tuple[Step, ...]
    held: int
    slots: int
    result: int

    def play(self, v: Tensor, held: Sequence[Tensor]) -> Tensor:
        places: list[Any] = [v, *held, *([None] * (self.slots - 1 - len(held)))]
        for step in self.steps:
            args, kwargs = filled(step.args, places), step.kwargs
            made = step.operation(*args, **(filled(kwargs, places) if kwargs else kwargs))
            for number, tensor in zip(step.outs, made if step.several else (made,), strict=True):
                if number is not None:
                    places[number] = tensor
            for number in step.last:
                places[number] = None
        return places[self.result]

    def graph(self) -> fx.GraphModule:
        """The same as a function (v, *held) that a compiler takes."""
        graph = fx.Graph()
        places: list[Any] = [graph.placeholder(f"x{i}") for i in range(1 + self.held)]
        places += [None] * (self.slots - len(places))
        for step in self.steps:
            args, kwargs = filled(step.args, places), filled(step.kwargs, places)
            made = graph.call_function(step.operation, tuple(args), kwargs)
            for i, number in enumerate(step.outs):
                if number is not None:
                    piece = (operator.getitem, (made, i))
                    places[number] = graph.call_function(*piece) if step.several else made
        graph.output(places[self.result])
        return fx.GraphModule({}, graph)


def filled(template: Any, places: Any) -> Any:
    """The template with the tensors of its slots."""
    kind = type(template)
    if kind is Slot:
        return places[template.number]
    if kind is tuple or kind is list:
        return [filled(item, places) for item in template]
    if kind is dict:
        return {key: filled(item, places) for key, item in template.items()}
    return template


def slots_of(template: Any) -> set[int]:
    """What a step or a template uses."""
    if isinstance(template, Slot):
        return {template.number}
    if isinstance(template, Step):
        template = (template.args, template.kwargs)
    if isinstance(template, dict):
        template = tuple(template.values())
    if isinstance(template, tuple):
        return set().union(*map(slots_of, template))
    return set()


def renamed(template: Any, names: Mapping[int, int]) -> Any:
    """A step or a template with other numbers for some slots."""
    if isinstance(template, Slot):
        return Slot(names.get(template.number, template.number))
    if isinstance(template, Step):
        parts = {part: renamed(getattr(template, part), names) for part in ("args", "kwargs")}
        outs = tuple(None if out is None else names.get(out, out) for out in template.outs)
        return replace(template, **parts, outs=outs)
    if isinstance(template, dict):
        return {key: renamed(item, names) for key, item in template.items()}
    return tuple(renamed(i, names) for i in template) if isinstance(template, tuple) else template


def needed(steps: Sequence[Step], result: int) -> tuple[list[Step], set[int]]:
    """The steps that the result needs, and all slots that they use."""
    wanted, kept = {result}, []
    for step in reversed(steps):
        if wanted.intersection(step.outs):
            kept.append(step)
            wanted |= slots_of(step)
    return kept[::-1], wanted


def assembled(
    steps: Sequence[Step], held: Iterable[int], result: int
) -> tuple[Program, tuple[int, ...]]:
    """The program of what the result needs, and the slots that it wants held, in its order."""
    kept, wanted = needed(steps, result)
    given = tuple(slot for slot in held if slot in wanted)
    order = [0, *given, *(out for step in kept for out in step.outs if out is not None)]
    places = {slot: place for place, slot in enumerate(order)}
    return Program(_renumbered(kept, places, result), len(given), len(order), places[result]), given


def _renumbered(steps: Sequence[Step], places: dict[int, int], result: int) -> tuple[Step, ...]:
    """In new numbers, with the last use of everything that is made."""
    done, alive = [], {result}
    made = {out for step in steps for out in step.outs}
    for step in reversed(steps):
        used = (slots_of(step) | set(step.outs)) & made
        last = tuple(places[slot] for slot in used - alive if slot is not None)
        alive |= used
        done.append(replace(renamed(step, places), last=last))
    return tuple(done[::-1])
