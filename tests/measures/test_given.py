"""What measures need beside an objective: weights from before training, losses of its steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

import spiritlevel as sl
import zoo
from spiritlevel.cli import app
from spiritlevel.objective.default import training

KNOWN = zoo.trained("mlp")
NAMES = ["frobenius_distance", "steps_to_loss"]


def distance() -> float:
    """Of weight matrices only."""
    pairs = [(p, KNOWN.init[n]) for n, p in KNOWN.net.named_parameters() if p.ndim > 1]
    return sum(float((p.detach() - q).square().sum()) for p, q in pairs)


def before() -> nn.Module:
    """The network before training, as a module."""
    net = zoo.SHAPES["mlp"][0]().double()
    net.load_state_dict(KNOWN.init)
    return net


def test_weights_in_any_form() -> None:
    point = KNOWN.objective()
    state = dict(KNOWN.init)
    ways: list[Any] = [
        state,
        before(),
        before().state_dict(),
        point.at(state),
        torch.cat([t.reshape(-1) for t in state.values()]),
        {**state, "another": torch.zeros(3)},
    ]
    for init in ways:
        found = sl.MEASURES["frobenius_distance"](point, init=init)
        assert found.value == pytest.approx(distance(), rel=1e-12)


def test_losses_of_steps() -> None:
    found = sl.measure(KNOWN.objective(), NAMES, init=KNOWN.init, losses=zoo.LOSSES)
    first = next(i for i, loss in enumerate(zoo.LOSSES, 1) if loss <= 0.1)
    assert found["steps_to_loss"].value == first
    assert [row.name for row in found] == NAMES


def test_what_is_missing_is_left_out_with_the_reason() -> None:
    found = sl.measure(KNOWN.objective(), ["loss", *NAMES])
    assert [row.name for row in found] == ["loss"]
    assert set(found.provenance["refused"]) == set(NAMES)
    assert "give init=" in found.provenance["refused"]["frobenius_distance"]
    assert "no steps_to_loss: " in str(found)
    with pytest.raises(sl.SpiritlevelError, match="compares with the weights before training"):
        sl.measure(KNOWN.objective(), NAMES)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"init": {"0.weight": torch.zeros(7, 5)}}, r"init has no '0\.bias'"),
        ({"init": {**KNOWN.init, "0.bias": torch.zeros(3)}}, r"'0\.bias' of shape \(3,\)"),
        ({"init": torch.zeros(3)}, r"init has the shape \(3,\)"),
        ({"init": {**KNOWN.init, "0.bias": torch.full((7,), torch.nan)}}, "init is not finite"),
        ({"losses": []}, "losses holds none"),
        ({"losses": [1.0, float("nan")]}, "a loss of losses"),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(sl.SpiritlevelError, match=message):
        sl.measure(KNOWN.objective(), ["loss"], **given)


def test_audits_and_comparisons_take_them() -> None:
    point = KNOWN.objective()
    row = sl.audit(point, ["frobenius_distance"], way=False, init=KNOWN.init)["frobenius_distance"]
    assert row.values["here"].value == pytest.approx(distance(), rel=1e-12)
    assert row.text.startswith("moved x ")
    twin = point.at(2 * point.vector)
    both = {"a": point, "b": twin}
    found = sl.compare(both, ["frobenius_distance"], init={"a": KNOWN.init, "b": point})
    values = found.values["frobenius_distance"]
    assert values["a"].value == pytest.approx(distance(), rel=1e-12)
    norm = sum(float(t.square().sum()) for t in point.params.values() if t.ndim > 1)
    assert values["b"].value == pytest.approx(norm, rel=1e-12)
    with pytest.raises(sl.SpiritlevelError, match="the network of init='c' is not known"):
        sl.compare(both, ["loss"], init={"c": KNOWN.init})


def run(*words: str) -> str:
    return " ".join(CliRunner().invoke(app, ["measure", *words], terminal_width=200).output.split())


def test_the_command_knows_how_the_default_was_trained() -> None:
    known = training()
    params = dict(known.net.named_parameters())
    moved = sum(
        float((params[n].detach() - p).double().square().sum())
        for n, p in known.init.items()
        if p.ndim > 1
    )
    assert f"Frobenius distance {moved:.3f}"[:-1] in run("--only", ",".join(NAMES))
    first = next(i for i, loss in enumerate(known.losses, 1) if loss <= 0.1)
    assert f"steps to a loss {first}" in run("--only", ",".join(NAMES))
    assert "--init needs --model" in run("--init", "x.safetensors")


def test_the_command_reads_files(mine: Path) -> None:
    torch.manual_seed(1)
    start = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    save_file(start.state_dict(), mine / "start.safetensors")
    (mine / "losses.txt").write_text("[1.0, 0.5,\n0.05]")
    network = ["--model", "mine:net", "--data", "mine:data"]
    files = ["--init", str(mine / "start.safetensors")]
    losses = ["--losses", str(mine / "losses.txt")]
    said = run(*network, *files, *losses, "--only", ",".join(NAMES))
    torch.manual_seed(0)
    end = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    pairs = zip(end.parameters(), start.parameters(), strict=True)
    moved = sum(float((a - b).detach().square().sum()) for a, b in pairs if a.ndim > 1)
    assert f"Frobenius distance {moved:.4f}" in said
    assert "steps to a loss 3.0" in said
    (mine / "losses.txt").write_text("much less")
    assert "holds something else than numbers" in run(*network, *losses)
    assert "no file" in run(*network, "--losses", str(mine / "none.txt"))
