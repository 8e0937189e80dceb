"""What of a product depends on the vector: recorded once, then played for every other vector.

H v runs through the network forth and back, and most of that (activations, gradients at the
point) is the same for every v. The recorder sits below autograd, where everything is a plain
operation on plain tensors, keeps the operations that v reaches and holds what else they need.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from spiritlevel.base.tensors import leaves, storage_address
from spiritlevel.curvature.again import ALIASES, Origin, Origins, Recipes
from spiritlevel.curvature.program import Program, Slot, Step, assembled, needed
from spiritlevel.curvature.sight import Sight

# what makes a tensor anew with the numbers of one of its arguments, and which
COPIES = {
    torch.ops.aten._to_copy.default: 0,
    torch.ops.aten.clone.default: 0,
    torch.ops.aten.expand.default: 0,
    torch.ops.aten.view.default: 0,
    torch.ops.aten.copy.default: 1,
}
ZEROS = {
    torch.ops.aten.zeros_like.default,
    torch.ops.aten._new_zeros_with_same_feature_meta.default,
}
ADD = torch.ops.aten.add.Tensor
READS_ZEROS = {torch.ops.aten.mul.Scalar, torch.ops.aten.add.Scalar}
# what cannot be played again: numbers read off a vector, shapes that depend on it, chance
UNREPEATABLE = {
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.nondeterministic_seeded,
}


class Unrecordable(Exception):
    """A product that has to be made from the beginning each time."""


@dataclass(frozen=True)
class Tape:
    """A program and what it holds of one batch.

    `copies` are the places of copies: of tensors that were there before, such as buffers. `strange`
    says that some of it was computed out of sight, and may be wrong for another vector.
    """

    program: Program
    held: tuple[Tensor, ...]
    copies: tuple[int, ...] = ()
    strange: bool = False

    def __call__(self, v: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast(v.device.type, enabled=False):
            return self.program.play(v, self.held)

    def sharing(self, known: Tape) -> Tape:
        """The same with the copies of another tape of the program, where they are equal."""
        held = list(self.held)
        for i in self.copies:
            if held[i].shape == known.held[i].shape and torch.equal(held[i], known.held[i]):
                held[i] = known.held[i]
        return replace(self, program=known.program, held=tuple(held))

    def nbytes(self, apart_from: Sequence[Tensor] = ()) -> int:
        """The memory that is held, each storage once."""
        stores = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in self.held}
        known = {t.untyped_storage().data_ptr() for t in apart_from}
        return sum(store.nbytes() for place, store in stores.items() if place not in known)


def record(
    product: Callable[[Tensor], Tensor],
    v: Tensor,
    constant: Iterable[Tensor] = (),
    there: Iterable[Tensor] = (),
) -> tuple[Tensor, Tape]:
    """product(v), and the tape that gives it for other vectors of the same kind.

    Nobody writes into `constant` tensors; what is `there`, such as buffers, is copied.
    """
    recorder = Recorder(v, Sight(constant, there))
    with recorder:
        found = product(v)
    return found, recorder.finished(found)


class Recorder(TorchDispatchMode):
    """Follows a vector through a computation.

    Tensors are known by identity, as long as they live. Operations in place are recorded as the
    functions that they are short for; a tensor that shares memory with one that was written into
    would have to be followed too, and is refused instead.
    """

    def __init__(self, v: Tensor, sight: Sight) -> None:
        super().__init__()
        self.refused = ""
        self.steps: list[Step] = []
        self.slots = 1
        self.moving: set[int] = {0}
        self.zeros: set[int | None] = set()  # slots that hold nothing else
        self.held: dict[int, Tensor] = {}  # by slot
        self.seen: dict[int, tuple[Any, int, int]] = {}  # id -> its tensor, slot, time
        self.read: dict[int, list[int]] = {}  # address -> slots of what is held there
        self.written: dict[int, tuple[Any, int]] = {}  # address -> storage, time
        self.sight = sight
        self.origins = Origins()
        self.cheap: dict[int, Origin] = {}  # by slot
        self.roots: dict[Origin, Tensor] = {}  # of these
        self.copies: set[int] = set()  # slots
        self.strange: set[int] = set()
        self._see(v, 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operation, always: an error in here would unwind autograd half way."""
        kwargs = kwargs or {}
        plan = self._try(lambda: self._planned(func, args, kwargs))
        made = func(*_solid(func, args), **kwargs)
        if plan is not None:
            self._noted(func, args, made, *plan)
        else:
            self._try(lambda: self._unmoved(func, args, kwargs, made))
        return made

    def _unmoved(self, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        """An operation that the vector does not reach."""
        self.sight.note(func, args, kwargs, made)
        if isinstance(made, Tensor) and not self.sight.strange(made):
            self.origins.note(func, args, kwargs, made)

    def _try(self, action: Callable[[], Any]) -> Any:
        """What cannot be followed is refused, later."""
        if self.refused:
            return None
        try:
            return action()
        except Unrecordable as reason:
            self.refused = str(reason)
        except NotImplementedError:
            self.refused = "a tensor without a storage"
        return None

    def _planned(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any] | None:
        """What is to be recorded, seen before anything is written: nothing, or a step."""
        if not self._reached(args) and not (kwargs and self._reached(tuple(kwargs.values()))):
            if _writes(func):
                self._rescue(leaves((args, kwargs)))
            return None
        operation = _repeatable(func)
        if operation is not func:
            self._save(args[0])
        return operation, self._template(args), self._template(kwargs)

    def _noted(
        self, func: Any, args: Any, made: Any, operation: Any, template: Any, named: Any
    ) -> None:
        same = template[0] if func in ALIASES else None
        # what is written in place is seen from elsewhere too, and a scaled sum is none of the two
        if same is None and operation is func and not (operation is ADD and named):
            same = self._the_same(operation, args, made, template)
        if same is not None:
            self._see(made, same.number)
            return
        outs = made if isinstance(made, (tuple, list)) else (made,)
        if not any(isinstance(out, Tensor) for out in outs):
            return  # a question about shapes
        numbers = tuple(self._made(out) if isinstance(out, Tensor) else None for out in outs)
        self.steps.append(Step(operation, template, named, numbers, made is not outs[0]))
        if operation in ZEROS:
            self.zeros.update(numbers)
        if operation is not func:
            self.written[_address(args[0])] = args[0].untyped_storage(), len(self.steps)
            self._see(args[0], numbers[0])  # type: ignore[arg-type]
            self._see(made, numbers[0])  # type: ignore[arg-type]

    def _the_same(self, operation: Any, args: Any, made: Any, template: Any) -> Slot | None:
        """The argument that an operation only copies, or adds nothing to."""
        if operation in COPIES:
            places = [COPIES[operation]]
        elif operation is ADD and all(isinstance(part, Slot) for part in template):
            places = [1 - i for i in (0, 1) if template[i].number in self.zeros]
        else:
            return None
        alike = (i for i in places if isinstance(template[i], Slot) and _alike(args[i], made))
        return next((template[i] for i in alike if template[i].number in self.moving), None)

    def _see(self, tensor: Tensor, slot: int) -> None:
        self.seen[id(tensor)] = weakref.ref(tensor), slot, len(self.steps)

    def _number(self) -> int:
        self.slots += 1
        return self.slots - 1

    def _made(self, tensor: Tensor) -> int:
        slot = self._number()
        self.moving.add(slot)
        self._see(tensor, slot)
        return slot

    def _hold(self, tensor: Tensor, own: Tensor) -> int:
        slot = self._number()
        self.held[slot] = own
        self._see(tensor, slot)
        return slot

    def _held(self, item: Tensor) -> int:
        """What was made here is held as it is, without the graph behind it; the rest as a copy."""
        lasts, origin = self.sight.lasts(item), self.origins.of(item)
        if lasts and origin.slot is not None and _same_memory(self.held[origin.slot], item):
            self._see(item, origin.slot)
            return origin.slot
        origin.slot = slot = self._hold(item, item.detach() if lasts else item.detach().clone())
        self.read.setdefault(_address(item), []).append(slot)
        if not lasts:
            self.copies.add(slot)
        if self.sight.strange(item):
            self.strange.add(slot)
        elif lasts:
            self.cheap[slot] = origin
            alive = ((root, known()) for root, known in origin.roots.items())
            self.roots |= {root: tensor for root, tensor in alive if tensor is not None}
        return slot

    def _save(self, tensor: Tensor) -> None:
        """Hold what is about to be overwritten by something that the vector reaches."""
        if self._known(tensor) not in self.moving:
            self._rescue([tensor])
            self._hold(tensor, tensor.detach().clone())

    def _rescue(self, tensors: Iterable[Tensor]) -> None:
        """Copy what is held, if these tensors, which are about to be written into, share it."""
        for address in {_address(tensor) for tensor in tensors} & self.read.keys():
            slots = self.read.pop(address)
            self.held |= {slot: self.held[slot].clone() for slot in slots}
            self.seen = {key: entry for key, entry in self.seen.items() if entry[1] not in slots}

    def _known(self, tensor: Tensor) -> int | None:
        """The slot of a tensor that has one."""
        entry = self.seen.get(id(tensor))
        known = entry is not None and entry[0]() is tensor
        if self.written and tensor.numel():
            change = self.written.get(_address(tensor))
            if change is not None and not (known and entry[2] >= change[1]):  # type: ignore[index]
                raise Unrecordable("memory that is written into is seen from elsewhere")
        return entry[1] if known else None  # type: ignore[index]

    def _reached(self, items: Sequence[Any]) -> bool:
        """Whether the vector reaches one of the arguments."""
        for item in items:
            if isinstance(item, Tensor):
                if self._known(item) in self.moving:
                    return True
            elif isinstance(item, (tuple, list)) and self._reached(item):
                return True
        return False

    def _template(self, item: Any) -> Any:
        if isinstance(item, Tensor):
            slot = self._known(item)
            if slot is None:
                slot = self._held(item)
            return Slot(slot)
        if isinstance(item, (tuple, list)):
            return tuple(self._template(part) for part in item)
        if isinstance(item, dict):
            return {key: self._template(part) for key, part in item.items()}
        return item

    def finished(self, found: Tensor) -> Tape:
        """What the result needs, renumbered."""
        if self.refused:
            raise Unrecordable(self.refused)
        result = self._known(found)
        if result not in self.moving:
            raise Unrecordable("the product does not depend on the vector")
        assert result is not None
        program, held = assembled(self._thinned(result), self.held, result)
        copies = tuple(i for i, slot in enumerate(held) if slot in self.copies)
        strange = not self.strange.isdisjoint(held)
        return Tape(program, tuple(self.held[slot] for slot in held), copies, strange)

    def _thinned(self, result: int) -> list[Step]:
        """The steps, with what is cheap made again instead of held."""
        steps, wanted = needed(self.steps, result)
        held = {slot: tensor for slot, tensor in self.held.items() if slot in wanted}
        origins = {slot: self.cheap[slot] for slot in held.keys() & self.cheap.keys()}

        def hold(tensor: Tensor) -> int:
            slot = self._held(tensor)
            held[slot] = self.held[slot]
            return slot

        return Recipes(origins, held, self.roots, hold, iter(self._number, None)).woven_into(steps)


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether the numbers of two tensors lie in memory in the same way."""
    kinds = ((t.shape, t.stride(), t.dtype, t.device) for t in (one, other))
    return next(kinds) == next(kinds)


def _same_memory(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are one under two names, and not a copy that was made in between."""
    places = ((t.data_ptr(), t.shape, t.stride(), t.dtype) for t in (one, other))
    return next(places) == next(places)


def _solid(func: Any, args: Any) -> Any:
    """Zeros in memory where torch would read those of a tensor that has none, and crash.

    So it does with symbolic zeros, which forward mode makes of constants, times or plus a number.
    """
    if func not in READS_ZEROS or not args[0]._is_zerotensor():
        return args
    zero = args[0]
    return torch.zeros(zero.shape, dtype=zero.dtype, device=zero.device), *args[1:]


@functools.cache
def _writes(func: Any) -> bool:
    return func._schema.is_mutable


@functools.cache
def _repeatable(func: Any) -> Any:
    """The operation itself, or the function that one in place is short for."""
    if UNREPEATABLE & set(func.tags):
        raise Unrecordable(f"{func} depends on the vector")
    schema = func._schema
    if not schema.is_mutable:
        return func
    writes = [argument.is_write for argument in schema.arguments]
    space, name = schema.name.split("::")
    plain = getattr(getattr(torch.ops, space), name.removesuffix("_"), None)
    function = getattr(plain, func._overloadname, None)
    if writes != [True] + [False] * (len(writes) - 1) or function in (None, func):
        raise Unrecordable(f"{func} writes into its arguments")
    return function


def _address(tensor: Tensor) -> int:
    try:
        return storage_address(tensor)
    except NotImplementedError as error:
        raise Unrecordable(f"a tensor of {tensor.layout}") from error
