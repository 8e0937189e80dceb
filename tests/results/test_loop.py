"""What a loop keeps of what failed."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor

from spiritlevel.results.loop import one_by_one


@pytest.mark.parametrize("chained", [False, True])
def test_a_refusal_does_not_keep_what_the_failed_attempt_held(chained: bool) -> None:
    """Else one measure that ran out of memory would leave none for those that follow."""
    held: list[weakref.ref[Tensor]] = []

    def fails() -> None:
        large = torch.zeros(3)
        held.append(weakref.ref(large))
        raise RuntimeError(f"out of memory with {large.numel()} numbers")

    def make(name: str) -> str:
        if name != "large":
            assert held[0]() is None
            return name
        if not chained:
            fails()
        try:
            fails()
        except RuntimeError as error:
            raise ValueError("no large one") from error
        return name

    gc.disable()
    try:
        done = one_by_one(["large", "small"], make, label="test", refuses=(Exception,))
    finally:
        gc.enable()
    assert list(done.found) == ["small"]
    assert done.first is not None
    assert done.first.__traceback__ is not None
    assert list(done.refused) == ["large"]
