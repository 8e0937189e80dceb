"""What a watch leaves alone, when it looks, what it keeps, and what it refuses."""

from __future__ import annotations

import json
import math
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from looks import data, dense, descend, net, plain_loss
from spiritlevel.training import Watch, watch_checkpoints
from spiritlevel.training import watch as watching
from spiritlevel.training.series import named, numbered


def state_of(model: nn.Module) -> list[Any]:
    held = [t.clone() for t in model.state_dict().values()]
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    modes = [(m.training, *(p.requires_grad for p in m.parameters(False))) for m in model.modules()]
    return [held, grads, modes]


def test_nothing_of_the_users_is_touched() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 2)
    ).double()
    objective = sl.Objective(model, data(), F.cross_entropy)
    x, y = data()
    model.train()
    F.cross_entropy(model(x), y).backward()
    before = state_of(model)
    torch.manual_seed(5), random.seed(5), np.random.seed(5)  # noqa: NPY002
    watch = Watch(objective, ["lambda_max", "gradient_norm"], every=1)
    with torch.no_grad():
        moment = watch.look(model, step=0)
    drawn = torch.rand(3), random.random(), np.random.rand()  # noqa: NPY002
    torch.manual_seed(5), random.seed(5), np.random.seed(5)  # noqa: NPY002
    assert torch.equal(drawn[0], torch.rand(3))
    assert drawn[1:] == (random.random(), np.random.rand())  # noqa: NPY002
    after = state_of(model)
    assert all(torch.equal(a, b) for a, b in zip(before[0], after[0], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(before[1], after[1], strict=True))
    assert before[2] == after[2]
    assert moment is not None
    model.eval()  # with the statistics that the training pass left, not those of the objective
    assert moment.loss == pytest.approx(plain_loss(model), rel=1e-12)
    assert moment.loss != pytest.approx(objective.value(), rel=1e-5)


class Holder(nn.Module):
    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)


@pytest.mark.parametrize("name", ["module", "model", "net"])
def test_weights_are_found_under_a_prefix(name: str) -> None:
    inner = net()
    objective = sl.Objective(inner, data(), F.cross_entropy)
    descend(inner, 3)
    outer = Holder(**{name: inner, "metric": nn.Linear(2, 2)})
    moment = Watch(objective, ["gradient_norm"]).look(outer, step=0)
    assert moment is not None
    assert moment.loss == pytest.approx(plain_loss(inner), rel=1e-12)


def test_a_module_that_does_not_fit_is_refused() -> None:
    objective = sl.Objective(net(), data(), F.cross_entropy)
    with pytest.raises(sl.SpiritlevelError, match=r"several networks .* 'a\.' and 'b\.'"):
        Watch(objective).look(Holder(a=net(), b=net(1)), step=0)
    with pytest.raises(sl.SpiritlevelError, match=r"'0.weight' is \(7, 4\) there, and \(5, 4\)"):
        Watch(objective).look(nn.Sequential(nn.Linear(4, 7)), step=0)
    with pytest.raises(sl.SpiritlevelError, match=r"model is a dict"):
        Watch(objective).look({}, step=0)  # type: ignore[arg-type]


def test_parameters_beside_the_chosen_ones_are_read_too() -> None:
    model = net()
    objective = sl.Objective(model, data(), F.cross_entropy, params="2.*")
    descend(model, 5)
    moment = Watch(objective, ["hessian_spectral"], least=False).look(model, step=0)
    assert moment is not None
    block = dense(model, *data())[-12:, -12:]
    top = moment["hessian_spectral"].estimate
    assert top.value == pytest.approx(float(torch.linalg.matrix_norm(block, 2)), rel=1e-3)


def test_failures_are_notes_and_ctrl_c_passes() -> None:
    model = net()
    objective = sl.Objective(model, data(), F.cross_entropy)
    away: list[str] = []

    def log(numbers: dict[str, float], step: int) -> None:
        away.append(f"{step}: {sorted(numbers)}")
        raise ConnectionError("no network")

    watch = Watch(objective, ["gradient_norm", "frobenius_distance"], every=1, log=log)
    first = watch.look(model, step=0)
    assert first is not None
    assert [r.name for r in first.readings] == ["gradient_norm"]
    assert first.notes[0].startswith("no frobenius_distance: ")
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    second = watch.look(model, step=1)
    assert second is not None
    assert (math.isnan(second.loss), second.readings) == (True, ())
    assert second.notes
    found = watch.history()
    assert "log failed at step 0: ConnectionError: no network" in found.provenance["notes"]
    assert away == ["0: ['gradient_norm', 'loss']", "1: ['loss']"]
    assert sl.results.History.from_dict(json.loads(found.to_json())) == found

    @sl.register("ctrl_c")
    def ctrl_c(objective: sl.Objective) -> float:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            return 1.0  # keeps what it has, as eigenvalues do
        return 0.0

    try:
        again = Watch(objective, ["ctrl_c"])
        with pytest.raises(KeyboardInterrupt):
            again.look(net(), step=0)
        assert again.moments == []
    finally:
        del sl.MEASURES["ctrl_c"]


def test_looks_come_at_multiples_and_stay_within_their_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A clock by hand: a look takes 1 s and ten steps take 5 s."""
    model = net()
    clock = [0.0]
    monkeypatch.setattr(watching.time, "perf_counter", lambda: clock[0])

    def slow(_: Any, step: int) -> None:
        clock[0] += 1.0

    watch = Watch(
        sl.Objective(model, data(), F.cross_entropy),
        ["gradient_norm"],
        every=10,
        share=0.1,
        least=False,
        log=slow,
    )
    for step in range(0, 51, 5):  # called every fifth step
        watch.look(model, step=step)
        clock[0] += 2.5
    # 1 s of 6 s at 10, of 11 s at 20; 2 s of 17 s at 30, of 22 s at 40; 3 s of 28 s at 50
    assert [m.step for m in watch.moments] == [0, 20, 40]
    assert (watch.put_off, watch.watched) == (3, 3.0)
    assert watch.look(model, step=51) is None
    assert watch.look(model, step=51, now=True) is not None
    found = watch.history()
    assert found.provenance.get("put_off") == 3
    assert "3 looks were put off: share=0.1" in found.provenance["notes"]
    assert f"the watch took 4.0 s ({4 / found.provenance['seconds']:.0%})" in " ".join(
        str(found).split()
    )


def test_a_watch_goes_on_from_its_state() -> None:
    """As plain JSON; what it sees next is bit for bit what it would have seen."""
    model = net()
    objective = sl.Objective(model, data(), F.cross_entropy)

    def fresh() -> Watch:
        return Watch(objective, ["hessian_spectral"], every=10)

    one = fresh()
    one.look(model, step=0)
    descend(model, 10)
    other = fresh()
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert other.look(model, step=5) is None
    found = [w.look(model, step=10) for w in (one, other)]
    values = [
        (m["hessian_spectral"].estimate.value, m["hessian_spectral"].least) for m in found if m
    ]
    assert values[0][0] == values[1][0]
    assert values[0][1] is not None
    assert values[1][1] is not None
    assert values[0][1].value == values[1][1].value
    assert len(other.moments) == 2
    with pytest.raises(sl.SpiritlevelError, match="state is not what state_dict"):
        other.load_state_dict({"moments": []})


def test_what_is_logged_has_flat_names() -> None:
    kept: dict[int, dict[str, float]] = {}
    model = net()
    watch = Watch(
        sl.Objective(model, data(), F.cross_entropy),
        ["lambda_max", "keskar(eps=5e-4)"],
        log=lambda numbers, step: kept.update({step: numbers}),
    )
    moment = watch.look(model, step=0, rate=0.5)
    assert moment is not None
    least = moment["lambda_max"].least
    assert least is not None
    assert kept[0]["lambda_max/least"] == least.value
    assert kept[0]["edge"] == 4.0
    assert kept[0]["edge_share"] == pytest.approx(kept[0]["lambda_max"] / 4)
    assert kept[0]["keskar(eps=0.0005)"] == moment["keskar(eps=0.0005)"].estimate.value
    assert moment["keskar(eps=0.0005)"].least is None


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda o: Watch(cast(Any, net())), "give an Objective"),
        (lambda o: Watch(o, ["nothing"]), "unknown measure 'nothing'"),
        (lambda o: Watch(o, every=0), "every=0: give a whole number of at least 1"),
        (lambda o: Watch(o, share=0.0), "share=0.0: give a positive number"),
        (lambda o: Watch(o, log=cast(Any, 3)), "log is a int"),
        (lambda o: Watch(o).look(net(), step=-1), "step=-1"),
        (lambda o: Watch(o).look(net(), step=0, rate=cast(Any, "a")), "rate='a'"),
        (lambda o: watch_checkpoints(o, []), "checkpoints is empty"),
        (lambda o: watch_checkpoints(o, "a.pt"), "checkpoints is a str"),
        (lambda o: watch_checkpoints(o, net().state_dict()), "one state_dict"),
        (lambda o: watch_checkpoints(o, ["nowhere.pt"]), "there is no such file"),
        (lambda o: watch_checkpoints(o, ["a/x.pt", "a/x.pt"]), "the same file twice"),
    ],
)
def test_what_cannot_be_used_is_refused(make: Callable[[Any], Any], match: str) -> None:
    with pytest.raises(sl.SpiritlevelError, match=match):
        make(sl.Objective(net(), data(), F.cross_entropy))


@pytest.mark.parametrize(
    ("files", "steps"),
    [
        (["epoch=3-step=900.ckpt", "epoch=0-step=300.ckpt"], {"epoch=0-step=300": 300}),
        (["run1/checkpoint-50/w.pt", "run1/checkpoint-9/w.pt"], {"checkpoint-9": 9}),
        (["a.pt", "b.pt"], {"a": 0, "b": 1}),
        (["model_7.pt", "best.pt"], {"model_7": 0, "best": 1}),
    ],
)
def test_names_and_steps_come_from_the_files(files: list[str], steps: dict[str, int]) -> None:
    found = {name: step for name, (step, _) in numbered(named(files)).items()}
    assert {name: found[name] for name in steps} == steps
    assert list(found.values()) == sorted(found.values())


def test_a_broken_checkpoint_is_left_out_with_the_reason(tmp_path: Path) -> None:
    model = net()
    objective = sl.Objective(model, data(), F.cross_entropy)
    whole, broken = tmp_path / "w_1.pt", tmp_path / "w_2.pt"
    torch.save(model.state_dict(), whole)
    torch.save({"0.weight": torch.zeros(2, 2)}, broken)
    found = watch_checkpoints(objective, [whole, broken], ["gradient_norm"])
    assert [m.name for m in found] == ["w_1"]
    assert "does not fit the model" in found.provenance["refused"]["w_2"]
