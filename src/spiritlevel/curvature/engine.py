"""Products over all the data: recorded once, played after that, compiled when it pays."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from spiritlevel.base.errors import first_line
from spiritlevel.base.memory import HOLDERS, free_bytes, holders, ran_out, relieved
from spiritlevel.base.tensors import columns, gaussian, generator, leaves
from spiritlevel.curvature.merging import Merging
from spiritlevel.curvature.tape import Tape, Unrecordable, record
from spiritlevel.objective import Objective
from spiritlevel.objective.batches import Batch, examples
from spiritlevel.objective.microbatch import CPU_BYTES
from spiritlevel.objective.module import tensors_of

CompileChoice = Literal["auto"] | bool
Product = Callable[[Objective, Batch, int, Tensor], Tensor]  # the batch's number, and a vector
Fast = Callable[..., Tensor]
# Rent or buy: the work ahead is unknown, so "auto" compiles when the products made so far have
# cost what compiling costs; the total is then at most about twice the best possible. What is played
# takes 0.75 to 0.85 of its time when it is compiled on a GPU, and 0.8 to 1.6 on a CPU: there it
# pays later, here never.
COMPILE_SECONDS, COMPILE_PLAYED_SECONDS = 30.0, 120.0
COMPILED_FASTER = {"cuda"}
# Of the memory that is free, what the tapes of one operator may take; and how often a tape has to
# fit into it, since the product that is recorded needs as much again and more. A first tape is as
# large as a product, for which microbatches were cut; what that is on a CPU is known beforehand.
TAPES_SHARE = {"cuda": 0.4, "cpu": 0.25}
FITS = 3
PAYS = 4  # products: for fewer a recording takes longer than it saves
ELSEWHERE = 1_703_049_331  # a seed that nobody multiplies with
SAME = 1e-5  # relative: tapes make the same operations, so that only the order of sums may differ


class Engine:
    """Sums the products of the batches of an objective.

    The second product is recorded, batch by batch, as far as memory goes, or the first where more
    are ahead; later ones are played.
    `whole` says that a compiler can take the product of a batch for which there is no tape.
    `merging` is what the model may be taken for, batch by batch, where it predicts the same.
    """

    def __init__(
        self,
        objective: Objective,
        product: Product,
        *,
        merging: Merging | None = None,
        compile: CompileChoice = False,
        rounding: float = 0.0,
        record: bool = True,
        whole: bool = False,
    ) -> None:
        self.objective = objective
        self.product = product
        self.merging = merging or Merging()
        self.merged = self.merging.of(objective)
        self.taken_for: dict[int, Objective] = {}  # by the number of the batch
        self.choice: CompileChoice = compile
        self.rounding = rounding
        self.recording = record
        self.whole = whole
        self.tapes: dict[int, Tape] = {}
        self.sizes: dict[int, float] = {}  # of tapes, in bytes per example
        self.made = 0
        self.many = False  # whether more are ahead than recording costs
        self.bare = False  # whether only tapes were to be played in this product
        self.first: tuple[Tensor, Tensor] | None = None  # a vector and its product, of batch 0
        self.spent = 0.0
        self.fast: dict[int | str, Fast] = {}  # by program
        self.note = ""
        forms = Counter(self._form(batch) for batch in objective.batches)
        self.common_form = forms.most_common(1)[0][0]

    def matvec(self, v: Tensor) -> Tensor:
        objective = self.objective
        start = time.perf_counter()
        self.bare = self._plays()
        with self._surroundings():
            vectors = [c.to(objective.dtype) for c in columns(v.detach())]
            if not vectors:
                return torch.zeros_like(v)
            numbers = {id(batch): number for number, batch in enumerate(objective.batches)}

            def products(batch: Batch) -> Tensor:
                made = [
                    relieved(partial(self._product, batch, numbers[id(batch)], c, i), self)
                    for i, c in enumerate(vectors)
                ]
                return torch.stack(made, dim=1)

            found = objective.mean(products).to(v.dtype)
        self.made += len(vectors)
        if self.choice == "auto" and v.is_cuda:
            torch.cuda.synchronize(v.device)
        self.spent += time.perf_counter() - start
        return found[:, 0] if v.ndim == 1 else found

    def expect(self, products: int) -> None:
        self.many = self.many or products >= PAYS

    def _plays(self) -> bool:
        return len(self.tapes) == len(self.objective.batches) and not self._time_to_compile(
            played=True
        )

    def _surroundings(self) -> AbstractContextManager[Any]:
        """Where nothing but tapes is played, neither the model nor a compiler can do any harm."""
        return torch.inference_mode(False) if self.bare else self.objective.smooth()

    def _product(self, batch: Batch, number: int, v: Tensor, place: int) -> Tensor:
        """Played, else recorded, else made from the beginning."""
        common = self._form(batch) == self.common_form  # the only one that is worth a compiler
        if tape := self.tapes.get(number):
            args = (v, *tape.held)
            key = id(tape.program)
            fast = self._compiled(key, tape.program.graph, args, tape, v) if common else None
            found = None if fast is None else self._played(fast, args)
            return tape(v) if found is None else found
        if self.recording and (self.made + place > 0 or self.many) and not self.bare:
            return self._recorded(batch, number, v)
        if self.whole and common and not self.recording:
            taken_for = self._taken_for(batch, number)

            def single(batch: Batch, vector: Tensor) -> Tensor:
                return self.product(taken_for, batch, 0, vector)

            eager = partial(single, batch)
            key = f"whole, {'merged' if taken_for is self.merged else 'as it is'}"
            fast = self._compiled(key, lambda: single, (batch, v), eager, v)
            found = None if fast is None else self._played(fast, (batch, v))
            if found is not None:
                return found
        with self.objective.smooth() if self.bare else nullcontext():  # a tape was let go
            made = self._made(batch, number, v)
        if self.made + place + number == 0:
            self.first = v.clone(), made
        return made

    def _made(self, batch: Batch, number: int, v: Tensor) -> Tensor:
        """From the beginning."""
        return self.product(self._taken_for(batch, number), batch, number, v)

    def _taken_for(self, batch: Batch, number: int) -> Objective:
        """The objective, or the merged one where it is seen to be the same."""
        if number not in self.taken_for:
            same = self.merging.fits(self.objective, self.merged, batch)
            self.taken_for[number] = self.merged if same else self.objective
        return self.taken_for[number]

    @staticmethod
    def _form(batch: Batch) -> tuple[torch.Size, ...]:
        return tuple(t.shape for t in leaves(batch))

    @property
    def holds(self) -> bool:
        return bool(self.tapes)

    def let_go(self) -> None:
        """Of all tapes, which can be made again: memory is needed for what cannot wait."""
        self.tapes.clear()
        self.fast.clear()

    # Recording ---------------------------------------------------------------------------------

    def _recorded(self, batch: Batch, number: int, v: Tensor) -> Tensor:
        """The product, and its tape if there is room for one."""
        if not self._fits(batch):
            return self._made(batch, number, v)
        try:
            model = self._taken_for(batch, number)
            own = [*self.objective.params.values(), *leaves(batch)]
            own += model.wiring.tensors if model.wiring else ()
            there = tensors_of(model.module)
            found, tape = record(lambda x: self.product(model, batch, number, x), v, own, there)
            tape = self._shared(tape, batch, number, v)
        except Exception as error:  # whatever it meets, the product itself is right or says why
            if ran_out(error) and holders(apart_from=self):
                raise  # they let go, and it is tried again
            self._stop("memory for no more" if ran_out(error) else first_line(error, 160))
        else:
            self.sizes[number] = tape.nbytes(own) / examples(batch)
            self.tapes[number], self.first = tape, None
            HOLDERS.add(self)
            return found
        return self._made(batch, number, v)

    def _shared(self, tape: Tape, batch: Batch, number: int, v: Tensor) -> Tape:
        """One program for all batches of a form; a new one has to be right for another vector.

        For the one it was recorded with it always is, also where a model computes in numpy, out of
        sight, and the tape holds what belongs to that vector: such tapes are all looked at.
        """
        for known in self.tapes.values():
            if known.program == tape.program:
                tape = tape.sharing(known)
                if not tape.strange:
                    return tape
                break
        other, truth = self._elsewhere(batch, number, v)
        if not bool((tape(other) - truth).norm() <= SAME * truth.norm()):
            raise Unrecordable("it is wrong for another vector")
        return tape

    def _elsewhere(self, batch: Batch, number: int, v: Tensor) -> tuple[Tensor, Tensor]:
        """A vector of another direction and its product: the first of all, or a random one.

        A vector that is zero somewhere does not see all that there is.
        """
        if number == 0 and self.first is not None:
            other, truth = self.first
            apart = (other @ v).abs() < 0.9 * other.norm() * v.norm()
            if bool(apart & other.all() & (truth.norm() > 0)):
                return other, truth
        other = gaussian(len(v), generator(ELSEWHERE), v)
        return other, self._made(batch, number, other)

    def _fits(self, batch: Batch) -> bool:
        """Whether one more tape leaves room."""
        device = self.objective.device
        free = free_bytes(device)
        if not self.tapes and (device.type == "cuda" or free >= FITS * CPU_BYTES):
            return True
        count = {number: examples(self.objective.batches[number]) for number in self.tapes}
        total = sum(self.sizes[number] * count[number] for number in self.tapes)
        need = max(self.sizes.values(), default=math.inf) * examples(batch)
        share = TAPES_SHARE.get(device.type, min(TAPES_SHARE.values()))
        if FITS * need <= free and total + need <= share * (free + total):
            return True
        self._stop("memory for no more")
        return False

    def _stop(self, reason: str) -> None:
        self.recording = False
        count = len(self.objective.batches)
        self.note = f"products of {len(self.tapes)} of {count} batches recorded: {reason}"

    # Compiling ---------------------------------------------------------------------------------

    def _time_to_compile(self, *, played: bool) -> bool:
        if self.choice == "auto":
            gains = not played or self.objective.device.type in COMPILED_FASTER
            return gains and self.spent > (COMPILE_PLAYED_SECONDS if played else COMPILE_SECONDS)
        return self.choice

    def _compiled(
        self, key: int | str, make: Callable[[], Any], args: Any, eager: Fast, v: Tensor
    ) -> Fast | None:
        """The compiled function, or None while and if the eager one is to be used."""
        if key in self.fast or not self._time_to_compile(played=not isinstance(key, str)):
            return self.fast.get(key)
        try:
            fast = torch.compile(make(), dynamic=False, fullgraph=True)  # no silent eager parts
            found, truth = fast(*args), eager(v)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # compilers fail in many ways; the eager product is right
            return self._stay_eager(f"compiling failed ({type(error).__name__})")
        error = float((found - truth).norm() / truth.norm().clamp(min=1e-30))
        if error > max(20 * self.rounding, 1e-4):
            return self._stay_eager(f"the compiled product differed by {error:.1e}")
        self.fast[key] = fast
        self.note = f"compiled (agrees with eager to {error:.0e})"
        return fast

    def _played(self, fast: Fast, args: Any) -> Tensor | None:
        try:
            return fast(*args)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # compiled anew once too often, for one
            self.fast.clear()
            return self._stay_eager(f"the compiled product failed ({type(error).__name__})")

    def _stay_eager(self, reason: str) -> None:
        self.note = f"{reason}; products stayed eager"
        self.choice = False
