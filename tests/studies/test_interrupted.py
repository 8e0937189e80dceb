"""Ctrl-C in the middle of a training that keeps what it has: no run is half a network."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from spiritlevel.base.interrupts import heard_interrupts, patient_interrupts
from spiritlevel.studies import Store, Study, recipes
from spiritlevel.training import rules

GRID = recipes.grid(width=[2, 3], epochs=5, examples=40, batch=8, depth=1)
STEPS = 5 * 5


def study(*, stacked: bool) -> Study:
    more: dict[str, Any] = {"together": recipes.together, "train_many": recipes.train_many}
    return Study(
        *("small", GRID, recipes.train, ["path_norm"]),
        **{"seeds": 1, "outcome": "test_error", **(more if stacked else {})},
    )


def found(path: Path, planned: Study) -> dict[str, Any]:
    with Store(path) as store:
        return {n.key: (n.config["width"], n.numbers, n.values) for n in store.networks(planned)}


def interrupting(step: Any, at: int) -> Any:
    """The step, in the middle of which Ctrl-C comes at this one."""
    made = []

    def stepped(*given: Any, **named: Any) -> Any:
        made.append(1)
        if len(made) == at:
            os.kill(os.getpid(), signal.SIGINT)
        return step(*given, **named)

    return stepped


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("at", [1, 7, STEPS, STEPS + 7])
def test_what_was_interrupted_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stacked: bool, at: int
) -> None:
    planned = study(stacked=stacked)
    home, name = (rules.SGD, "descend") if stacked else (torch.optim.SGD, "step")
    monkeypatch.setattr(home, name, interrupting(getattr(home, name), at))
    with pytest.raises(KeyboardInterrupt, match=r"of 2 runs are done, and kept in .*run again"):
        planned.run(tmp_path / "cut.db")
    monkeypatch.undo()
    before = found(tmp_path / "cut.db", planned)
    assert len(before) == (at > STEPS)
    assert all(numbers["epochs"] == 5 for _, numbers, _ in before.values())
    planned.run(tmp_path / "cut.db").close()
    planned.run(tmp_path / "whole.db").close()
    whole = found(tmp_path / "whole.db", planned)
    assert len(whole) == 2
    assert found(tmp_path / "cut.db", planned) == whole


def test_what_has_to_be_whole_is_whole_and_the_outer_one_hears_at_once() -> None:
    """Also where the handler outside ends the process."""

    def leaving(*_: Any) -> None:
        raise SystemExit(3)

    done: list[list[bool]] = []

    def step() -> None:
        with heard_interrupts() as heard, patient_interrupts() as patience, patience.whole():
            os.kill(os.getpid(), signal.SIGINT)
            done.append(heard)

    own = signal.signal(signal.SIGINT, leaving)
    try:
        with pytest.raises(KeyboardInterrupt):
            step()
    finally:
        signal.signal(signal.SIGINT, own)
    assert done == [[True]]
