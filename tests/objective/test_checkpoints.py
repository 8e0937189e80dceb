"""Checkpoints of every make: the part that fits is found, said, and never run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import spiritlevel as sl
from cases import randn
from spiritlevel.objective.checkpoints import load_weights, save_weights

State = dict[str, Tensor]


def net(width: int = 5) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3)
    ).double()


def trained() -> nn.Sequential:
    """Parameters and statistics that no fresh network has."""
    model = net()
    with torch.no_grad():
        for i, tensor in enumerate(model.state_dict().values()):
            tensor.copy_(randn(tensor.numel(), seed=i).abs().reshape(tensor.shape) + 1)
    return model


def under(prefix: str, state: Any) -> State:
    return {prefix + name: value for name, value in state.items()}


def other(scale: float = 2.0) -> State:
    return {n: t * scale if t.is_floating_point() else t for n, t in trained().state_dict().items()}


S = trained().state_dict()
OPTIMIZER = {"state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.zeros(5, 4)}}}
LAYOUTS: dict[str, tuple[Any, str]] = {
    "plain": (S, ""),
    "data parallel": (under("module.", S), "module."),
    "compiled": (under("_orig_mod.", S), ""),
    "compiled inside": (
        {("0._orig_mod." + n[2:] if n[0] == "0" else n): t for n, t in S.items()},
        "",
    ),
    "Lightning": (
        {
            "epoch": 3,
            "pytorch-lightning_version": "2.5.0",
            "state_dict": under("model.", S),
            "optimizer_states": [OPTIMIZER],
            "hyper_parameters": {"lr": 0.1},
        },
        "state_dict.model.",
    ),
    "Lightning, another name": ({"state_dict": under("net.", S)}, "state_dict.net."),
    "Lightning, compiled": (
        {"state_dict": under("net._orig_mod.module.", S)},
        "state_dict.net.module.",
    ),
    "Lightning with class weights": (
        {"state_dict": {**under("model.", S), "criterion.weight": torch.ones(3)}},
        "state_dict.model.",
    ),
    "Lightning with an average": (
        {"state_dict": {**under("model.", S), **under("ema_model.module.", other())}},
        "state_dict.model.",
    ),
    "model": ({"model": S, "optimizer": OPTIMIZER, "epoch": 1}, "model."),
    "model_state_dict": (
        {"model_state_dict": S, "optimizer_state_dict": OPTIMIZER, "loss": torch.tensor(0.5)},
        "model_state_dict.",
    ),
    "weights": ({"weights": S}, "weights."),
    "deep": ({"checkpoint": {"model": {"state_dict": S}}}, "checkpoint.model.state_dict."),
    "an average beside": ({"model": S, "model_ema": other(), "ema": other(3)}, "model."),
    "a callback's average": (
        {"state_dict": under("model.", S), "callbacks": {"EMACallback": {"weights": other()}}},
        "state_dict.model.",
    ),
    "another network beside": ({"generator": S, "critic": net(9).state_dict()}, "generator."),
    "without BatchNorm's counter": (
        {n: t for n, t in S.items() if "num_batches" not in n},
        "",
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_network_is_found_and_where_it_was_is_said(name: str, tmp_path: Path) -> None:
    held, where = LAYOUTS[name]
    path = tmp_path / "last.ckpt"
    torch.save(held, path)
    model = net().eval()
    notes = load_weights(model, path)
    x = randn(6, 4)
    torch.testing.assert_close(model(x), trained().eval()(x), rtol=0, atol=0)
    assert [note.split(" are those under ")[1].split(";")[0] for note in notes] == (
        [repr(where)] if where else []
    )


def test_what_is_left_out_is_named(tmp_path: Path) -> None:
    torch.save({"state_dict": {**under("net.", S), "loss.weight": torch.ones(3)}}, tmp_path / "a")
    assert load_weights(net(), tmp_path / "a") == [
        "the weights of a are those under 'state_dict.net.'; left out beside it: loss.weight"
    ]


REFUSED: dict[str, tuple[Any, str]] = {
    "two networks": (
        {"student": S, "teacher": other()},
        "several networks that fit, under 'student.' and 'teacher.'; save the state_dict that",
    ),
    "two networks in one state_dict": (
        {"state_dict": {**under("actor.", S), **under("target.", other())}},
        r"under 'state_dict.actor.' and 'state_dict.target.'; save the state_dict",
    ),
    "only an average": (
        {"model": net(9).state_dict(), "ema": S},
        "fits under 'ema.' alone, an average of weights",
    ),
    "another width": (
        {"state_dict": under("model.", net(9).state_dict())},
        "does not fit the model: .*size mismatch for 0.weight",
    ),
    "a missing layer": (
        {"state_dict": {n: t for n, t in S.items() if not n.startswith("3")}},
        r"does not fit the model: missing \['3.weight', '3.bias'\]",
    ),
    "one entry more": ({**S, "4.weight": torch.ones(2)}, r"unexpected \['4.weight'\]"),
    "a layer of a larger network": (
        under("head.", S) | {"body.weight": torch.zeros(500, 4)},
        "fits under 'head.' alone, the smaller part of a state_dict; save",
    ),
    "nothing": ({}, "holds no tensors; save model.state_dict"),
    "no tensors": ({"epoch": 3, "config": {"a": 1}}, "holds no tensors"),
    "a list": ([1, 2], "holds a list; save model.state_dict"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_meant_is_refused(name: str, tmp_path: Path) -> None:
    held, message = REFUSED[name]
    torch.save(held, tmp_path / "a.pt")
    with pytest.raises(sl.SpiritlevelError, match=f"(?s){message}"):
        load_weights(net(), tmp_path / "a.pt")


def test_hyper_parameters_that_are_code_are_named_and_never_run(tmp_path: Path) -> None:
    held = {"state_dict": under("model.", S), "hyper_parameters": argparse.Namespace(lr=0.1)}
    torch.save(held, tmp_path / "a.ckpt")
    with pytest.raises(sl.SpiritlevelError, match=r"pickled code \(argparse.Namespace\), which is"):
        load_weights(net(), tmp_path / "a.ckpt")
    # the way out that the message names
    torch.save(torch.load(tmp_path / "a.ckpt", weights_only=False)["state_dict"], tmp_path / "b.pt")
    model = net().eval()
    load_weights(model, tmp_path / "b.pt")
    torch.testing.assert_close(model(randn(2, 4)), trained().eval()(randn(2, 4)), rtol=0, atol=0)
    with pytest.raises(sl.SpiritlevelError, match="is a folder; name the file with the weights"):
        load_weights(net(), tmp_path)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embed(x))


def test_tied_weights_go_around_under_a_prefix(tmp_path: Path) -> None:
    source, target = Tied(), Tied()
    save_weights(source, dict(source.named_parameters()), tmp_path / "a.safetensors")
    load_weights(target, tmp_path / "a.safetensors")
    assert torch.equal(source.embed.weight, target.embed.weight)
    save_file({"model.embed.weight": source.embed.weight * 2}, tmp_path / "b.safetensors")
    assert "'model.'" in load_weights(target, tmp_path / "b.safetensors")[0]
    assert torch.equal(target.head.weight, source.embed.weight * 2)


def test_a_compiled_model_takes_a_plain_checkpoint(tmp_path: Path) -> None:
    torch.save(S, tmp_path / "a.pt")
    model = net()
    load_weights(torch.compile(model), tmp_path / "a.pt")  # type: ignore[arg-type]
    assert torch.equal(model.state_dict()["0.weight"], S["0.weight"])
    model[0] = torch.compile(nn.Linear(4, 5).double())  # type: ignore[assignment]
    load_weights(model, tmp_path / "a.pt")
    assert torch.equal(model.state_dict()["0._orig_mod.weight"], S["0.weight"])
