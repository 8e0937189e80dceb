"""That two points are one network: how far their predictions and losses are apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.spoken import at_most

Verdict = Literal["exact", "rounding", "approximate", "refuted"]
VERDICTS: tuple[Verdict, ...] = ("exact", "rounding", "approximate", "refuted")  # best first


@dataclass(frozen=True)
class Certificate:
    """How far the predictions and the losses of two objectives are apart.

    "exact": on all the data and on random inputs, no output differs by more than relative changes
    of 1e-11 of the parameters would make it differ, in float64. "approximate": the eps of a norm
    makes a difference that vanishes when eps moves along. "rounding": no more than float32 does,
    where parameters or the inside of the model know no better; smaller differences could hide.
    "refuted": none of these. `relative` is the largest difference over the largest prediction
    (masked ones left out), `loss` the change of the mean loss over the loss (or over what rounding
    may change, where that is more), `stored` what rounding the twin to float32 adds. `inputs` are
    those beside the data: shuffled columns of it, where the model does not run on random ones.
    """

    verdict: Verdict
    absolute: float
    relative: float
    on_data: float
    on_random_inputs: float
    examples: int
    loss: float = 0.0
    stored: float = 0.0
    reason: str = ""
    inputs: str = "random inputs"

    @property
    def holds(self) -> bool:
        return self.verdict != "refuted"

    def require(self) -> Certificate:
        """Itself, or an error if it is refuted."""
        if not self.holds:
            raise SpiritlevelError(f"the predictions are not the same: {self}")
        return self

    def __str__(self) -> str:
        if self.verdict == "exact" and self.absolute == self.loss == self.stored == 0:
            return f"exact: identical bit for bit on {self.examples} examples and on {self.inputs}"
        text = (
            f"{self.verdict}: predictions differ by at most {at_most(self.relative, 2)} of the "
            f"largest ({self.absolute:.1e} absolute), on {self.examples} examples "
            f"({self.on_data:.1e}) and on {self.inputs} ({self.on_random_inputs:.1e}); the loss "
            f"by {self.loss:.1e}"
        )
        return f"{text}; {self.reason}" if self.reason else text
