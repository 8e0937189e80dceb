"""Where the numbers of a tensor come from: made in sight of a recorder, there before, or neither.

What a model computes in numpy, or in a kernel that torch does not know, comes from nowhere: it may
depend on anything. What was there before the recording may be written into after it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from spiritlevel.base.tensors import leaves, storage_address


class Sight:
    """Follows memory by the address of its storage, which is not used again as long as it is known.

    Nobody ever writes into `constant` tensors; those that are `there` are known, but not for ever.
    """

    def __init__(self, constant: Iterable[Tensor], there: Iterable[Tensor]) -> None:
        self._known: dict[int, StorageWeakRef] = {}  # the reference keeps the address taken
        self._lasting: set[int] = set()
        self._strange: set[int] = set()
        for tensor in there:
            self._meet(tensor)
        for tensor in constant:
            self._lasting.add(self._meet(tensor))

    def lasts(self, tensor: Tensor) -> bool:
        """Whether nobody writes into it later: it is constant, or was made here."""
        return storage_address(tensor) in self._lasting

    def strange(self, tensor: Tensor) -> bool:
        """Whether some of its numbers came from nowhere."""
        place = storage_address(tensor)
        return place not in self._known or place in self._strange

    def note(self, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        """One operation: what it makes is as strange as what it is made of."""
        given = list(leaves((args, kwargs)))
        targets = {storage_address(args[i]) for i in _written(func) if isinstance(args[i], Tensor)}
        sources = [t for t in given if storage_address(t) not in targets]
        strange = any(self.strange(t) for t in sources) or _makes_room(func)
        places = {storage_address(t) for t in given}
        for tensor in leaves(made):
            if storage_address(tensor) not in places:
                self._lasting.add(self._meet(tensor, strange))
        for place in targets & self._known.keys():
            (self._strange.add if strange else self._strange.discard)(place)

    def _meet(self, tensor: Tensor, strange: bool = False) -> int:
        place = storage_address(tensor)
        self._known[place] = StorageWeakRef(tensor.untyped_storage())
        (self._strange.add if strange else self._strange.discard)(place)
        return place


@functools.cache
def _written(func: Any) -> tuple[int, ...]:
    """The positions of the arguments that an operation writes into."""
    return tuple(i for i, a in enumerate(func._schema.arguments) if a.is_write and not a.kwarg_only)


@functools.cache
def _makes_room(func: Any) -> bool:
    """Whether it leaves numbers for others to fill in."""
    return "empty" in func._schema.name
