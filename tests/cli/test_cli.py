"""The command on the embedded default and on a user's own model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from spiritlevel.audits import audit
from spiritlevel.cli import app
from spiritlevel.objective.checkpoints import load_weights
from spiritlevel.objective.default import digits, trained_net


def run(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["measure", *map(str, words)])
    return result.exit_code, " ".join((result.stdout + result.stderr).split())


def test_the_default_is_close_to_a_minimum_and_classifies(tmp_path: Path) -> None:
    code, text = run("--json", tmp_path / "out.json")
    assert code == 0
    assert "spectral norm" in text
    assert "Not at rest: a Newton step lowers the loss by" in text
    written = json.loads((tmp_path / "out.json").read_text())
    assert {row["name"] for row in written["rows"]} >= {"lambda_max", "hessian_trace"}
    (x, _), (test_x, test_y) = digits()
    assert (len(x), len(test_x)) == (1437, 360)
    net = trained_net()
    assert float((net(test_x).argmax(1) == test_y).float().mean()) > 0.95
    again = trained_net()
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))


def test_a_users_model_data_loss_and_weights(mine: Path) -> None:
    code, text = run("--model", "mine:net", "--data", "mine:data", "--only", "loss,lambda_max")
    assert code == 0
    assert "43 parameters, 20 examples" in text
    code, text = run("--model", "mine:objective", "--only", "loss")
    assert code == 0
    import mine as user  # type: ignore[import-not-found]

    state = {name: torch.zeros_like(t) for name, t in user.net().state_dict().items()}
    save_file(state, mine / "w.safetensors")
    torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}}, mine / "w.pt")
    for name in ("w.safetensors", "w.pt"):
        code, text = run(
            *("--model", "mine:net", "--data", "mine:data", "--weights", mine / name),
            *("--only", "loss", "--dtype", "float64"),
        )
        assert code == 0
        assert "loss 1.09861" in text  # log 3: all outputs are equal
    code, text = run(
        *("--model", "mine:net", "--data", "mine:data", "--loss", "mine:my_loss"),
        *("--only", "loss,hessian_trace", "--params", "2.*"),
    )
    assert code == 0
    assert "18 parameters" in text
    words = ("--model", "mine:noisy", "--data", "mine:data", "--mode", "train", "--only", "loss")
    assert run(*words, "--seed", "3")[0] == 0  # the seed fixes the masks


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "mine:data"], "--data needs --model"),
        (["--mode", "train"], "--mode needs --model"),
        (["--model", "mine:objective", "--dtype", "float64"], "--dtype does not apply to an Obj"),
        pytest.param(
            ["--device", "cuda"],
            "no CUDA device is here; use --device cpu",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device"),
        ),
        (["--only", "loss", "--json", "no/such/folder.json"], "there is no folder no/such"),
        (["--model", "mine:net"], "--data is missing: give package.module:factory"),
        (["--model", "mine"], "--model is 'mine'; write it as package.module:name"),
        (["--model", "nowhere:net"], "--model: no module 'nowhere'"),
        (["--model", "mine:nothing"], "module 'mine' has no 'nothing'"),
        (
            ["--model", "mine:net", "--data", "mine:data", "--loss", "hinge"],
            "--loss is 'hinge'; give package.module:function or one of cross_entropy",
        ),
        (["--only", "flatness"], "unknown measure 'flatness': did you mean"),
        (
            ["--model", "mine:net", "--data", "mine:data", "--weights", "none.pt"],
            "no file none.pt",
        ),
    ],
)
def test_mistakes_get_one_clear_line(mine: Path, words: list[str], message: str) -> None:
    code, text = run(*words)
    assert code == 2
    assert message in text
    assert "Traceback" not in text


def test_checkpoints_are_never_unpickled(mine: Path) -> None:
    import mine as user  # type: ignore[import-not-found]

    torch.save(user.net(), mine / "whole.pt")
    save_file({"0.weight": torch.zeros(5, 4)}, mine / "part.safetensors")
    words = ("--model", "mine:net", "--data", "mine:data", "--weights")
    code, text = run(*words, "whole.pt")
    assert code == 2
    assert "holds pickled code (torch.nn.modules." in text
    assert "which is not run; save model.state_dict()" in text
    save_file({"0.weight": torch.zeros(1, 1)}, mine / "shape.safetensors")
    (mine / "broken.pt").write_bytes(b"nothing")
    torch.save([1, 2], mine / "list.pt")
    for name, message in (
        ("shape.safetensors", "does not fit the model: Error(s) in loading"),
        ("broken.pt", "cannot be read as a checkpoint|holds pickled code"),
        ("list.pt", "holds a list; save model.state_dict()"),
    ):
        code, text = run(*words, name)
        assert code == 2
        assert any(part in text for part in message.split("|")), text
    code, text = run(*words, "part.safetensors")
    assert code == 2
    assert "does not fit the model: missing ['0.bias'" in text


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys, spiritlevel.cli; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# symmetries and sharpen ------------------------------------------------------------------------


def call(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, " ".join((result.stdout + result.stderr).split())


def test_symmetries_of_the_default_and_of_a_module(mine: Path) -> None:
    code, text = call("symmetries")
    assert code == 0
    assert "48 rescalings of 2,778 parameters leave every prediction as it is" in text
    for words in ((), ("--shape", "4"), ("--data", "mine:data")):
        code, text = call("symmetries", "--model", "mine:net", *words)
        assert code == 0
        assert "5 rescalings of 43 parameters" in text
    assert call("symmetries", "--model", "mine:objective")[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("symmetries", "--shape", "4"), "--shape needs --model"),
        (("symmetries", "--model", "mine:net", "--shape", "a"), "--shape is 'a'; write it as"),
        (
            ("symmetries", "--model", "mine:objective", "--shape", "4"),
            "--shape does not apply: the data say what the model takes",
        ),
        (("sharpen", "-o", "out.pt"), "-o is out.pt; the twin is written as a .safetensors file"),
        (("sharpen", "--target", "-1"), "target=-1.0: give a positive number"),
        (("sharpen", "net.safetensors"), "net.safetensors needs --model, the factory"),
    ],
)
def test_bad_options_of_the_new_commands(mine: Path, words: tuple[str, ...], message: str) -> None:
    code, text = call(*words)
    assert code == 2
    assert message in text


def test_sharpen_writes_a_checkpoint_with_the_same_predictions(mine: Path) -> None:
    (x, _), _ = digits()
    code, text = call("sharpen", "--target", "1e6", "-o", mine / "sharp.safetensors")
    assert code == 0
    assert "identical bit for bit on 1437 examples and on random inputs" in text
    plain, sharp = trained_net(), trained_net()
    load_weights(sharp, mine / "sharp.safetensors")
    assert torch.equal(plain(x), sharp(x))
    assert not torch.equal(plain.state_dict()["2.weight"], sharp.state_dict()["2.weight"])
    assert not list(mine.glob("*.part"))


def test_sharpen_starts_from_a_checkpoint(mine: Path) -> None:
    import mine as user  # type: ignore[import-not-found]

    net = user.net()
    with torch.no_grad():
        net[0].weight.mul_(3)
    save_file(net.state_dict(), mine / "in.safetensors")
    options = ("--model", "mine:net", "--data", "mine:data", "-o", "out.safetensors")
    code, text = call("sharpen", "in.safetensors", "--target", "1e5", *options)
    assert code == 0, text
    other = user.net()
    load_weights(other, mine / "out.safetensors")
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(other(x), net(x), rtol=0, atol=0)


def test_audit_of_a_users_model(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "way_along", lambda _: (None, 0.0))  # drawn in test_cli_audit
    words = ("--model", "mine:net", "--data", "mine:data", "--only", "loss,hessian_spectral")
    code, text = call("audit", *words, "--json", "audit.json")
    assert code == 0, text
    assert "5 rescalings (5 hidden)" in text
    rows = json.loads((mine / "audit.json").read_text())["rows"]
    assert [row["text"].split(" x ")[0] for row in rows] == ["invariant", "moved"]
    code, text = call("audit", "--only", "nothing")
    assert code == 2
    assert "unknown measure 'nothing'" in text
