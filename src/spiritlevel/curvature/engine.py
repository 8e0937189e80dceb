"""Hessian products over all the data, compiled when the work ahead pays for it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from spiritlevel.base.tensors import columns, leaves
from spiritlevel.curvature.ladder import Rung, jvp_of_gradient
from spiritlevel.objective import Objective
from spiritlevel.objective.batches import Batch

CompileChoice = Literal["auto"] | bool
# Rent or buy: the work ahead is unknown, so "auto" compiles when the products made so far have
# cost what compiling costs; the total is then at most about twice the best possible.
COMPILE_SECONDS = 30.0


class Engine:
    """Sums one rung's products over the batches of an objective."""

    def __init__(self, objective: Objective, rung: Rung, compile: CompileChoice) -> None:
        self.objective = objective
        self.rung = rung
        if rung.name == "difference of gradients" and rung.checked_in == torch.float64:
            self.objective = objective.to(torch.float64)  # differences need the digits
        can_compile = rung.product is jvp_of_gradient and objective.seed is None
        self.choice: CompileChoice = compile if can_compile else False
        self.spent = 0.0
        self.fast: Callable[..., Tensor] | None = None
        self.note = ""
        forms = Counter(self._form(batch) for batch in objective.batches)
        self.common_form = forms.most_common(1)[0][0]

    def matvec(self, v: Tensor) -> Tensor:
        objective = self.objective
        start = time.perf_counter()
        with objective.smooth():
            vectors = [c.to(objective.dtype) for c in columns(v)]
            if self.fast is None and self._time_to_compile():
                self._compile(vectors[0])
            found = objective.mean(lambda batch: torch.stack(self._products(batch, vectors), dim=1))
        products = found.to(v.dtype)
        if self.choice == "auto" and v.is_cuda:
            torch.cuda.synchronize(v.device)
        self.spent += time.perf_counter() - start
        return products[:, 0] if v.ndim == 1 else products

    def _products(self, batch: Batch, vectors: Sequence[Tensor]) -> list[Tensor]:
        if self.fast is not None and self._form(batch) == self.common_form:
            return [self.fast(batch, v) for v in vectors]
        return self.rung.product(self.objective, batch, vectors)

    @staticmethod
    def _form(batch: Batch) -> tuple[torch.Size, ...]:
        return tuple(t.shape for t in leaves(batch))

    def _time_to_compile(self) -> bool:
        return self.choice is True or (self.choice == "auto" and self.spent > COMPILE_SECONDS)

    def _compile(self, v: Tensor) -> None:
        """Compile for the most common batch shape; keep the eager product if that fails."""
        objective = self.objective

        def single(batch: Batch, vector: Tensor) -> Tensor:
            return jvp_of_gradient(objective, batch, [vector])[0]

        batch = next(b for b in objective.batches if self._form(b) == self.common_form)
        try:
            fast = torch.compile(single, dynamic=False, fullgraph=True)  # no silent eager parts
            found, truth = fast(batch, v), single(batch, v)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # compilers fail in many ways; the eager product is right
            self.note = f"compiling failed ({type(error).__name__}); products stayed eager"
            self.choice = False
            return
        error = float((found - truth).norm() / truth.norm().clamp(min=1e-30))
        if error > max(20 * self.rung.rounding, 1e-4):
            self.note = f"the compiled product differed by {error:.1e}; products stayed eager"
            self.choice = False
            return
        self.fast = fast
        self.note = f"compiled (agrees with eager to {error:.0e})"
