"""The options that commands share, on every command: what they change, and what they say."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from typer.testing import CliRunner

import spiritlevel as sl
from spiritlevel.audits import audit
from spiritlevel.cli import app

MINE = ("--model", "mine:net", "--data", "mine:data")
KINDS = """
import numpy as np
import torch
import mine

def arrays():
    x, y = zip(*mine.data())
    return np.concatenate(x), np.concatenate(y).astype(np.uint8)

def listed():
    return [torch.from_numpy(a) for a in arrays()]

def singles():
    return [(x, int(y)) for x, y in zip(*listed())]

def images():
    return torch.zeros(20, 4, dtype=torch.uint8), listed()[1]
"""


def run(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join((result.stdout + result.stderr).split())


@pytest.fixture(autouse=True)
def without_a_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The figure of an audit takes as long as the audit; test_cli_audit has it drawn."""
    monkeypatch.setattr(audit, "way_along", lambda _: (None, 0.0))


@pytest.fixture
def lightning(mine: Path) -> Path:
    """A checkpoint of Lightning's: a network under a prefix, its average, the optimizer."""
    import mine as user  # type: ignore[import-not-found]

    state = {f"net.{name}": 2 * t for name, t in user.net().state_dict().items()}
    average = {f"ema.{name}": 3 * t for name, t in user.net().state_dict().items()}
    held = {"epoch": 3, "state_dict": {**state, **average}, "hyper_parameters": {"lr": 0.1}}
    torch.save(held, mine / "last.ckpt")
    return mine / "last.ckpt"


def loss_of_twice_the_weights() -> float:
    import mine as user  # type: ignore[import-not-found]

    net = user.net()
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(2)
    x, y = (torch.cat(part) for part in zip(*user.data(), strict=True))
    return F.cross_entropy(net(x), y).item()


def test_the_version_without_torch() -> None:
    assert run("--version") == (0, f"spiritlevel {sl.__version__}")
    code = (
        "import sys; from typer.testing import CliRunner; from spiritlevel.cli import app;"
        "print(CliRunner().invoke(app, ['--version']).stdout.strip(), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"spiritlevel {sl.__version__} False"
    for module in ("spiritlevel", "spiritlevel.cli"):
        done = subprocess.run(
            [sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == f"spiritlevel {sl.__version__}"


@pytest.mark.parametrize("command", ["measure", "audit", "symmetries", "sharpen", "compare"])
def test_where_the_weights_were_is_said_by_every_command(lightning: Path, command: str) -> None:
    said = "the weights of last.ckpt are those under 'state_dict.net.'; left out beside it: ema.0"
    if command == "compare":
        import mine as user  # type: ignore[import-not-found]

        save_file(user.net().state_dict(), lightning.parent / "b.safetensors")
        words = [lightning, "b.safetensors", "--only", "loss"]
    elif command == "sharpen":
        words = [lightning, "--target", "10"]
    else:
        words = ["--weights", lightning, *(["--only", "loss"] if command != "symmetries" else [])]
    path = lightning.parent / "out.json"
    code, text = run(command, *words, *MINE, "--json", path)
    assert code == 0, text
    assert said in text
    assert said in path.read_text().replace('\\"', '"')
    data = json.loads(path.read_text())
    values = {
        "measure": lambda: [data["rows"][0]["estimate"]["value"]],
        "audit": lambda: [data["rows"][0]["values"]["here"]["value"]],
        "compare": lambda: [e["value"] for e in data["pairs"][0]["values"]],
    }
    if command in values:
        assert pytest.approx(loss_of_twice_the_weights(), rel=1e-5) in values[command]()


@pytest.mark.parametrize("kind", ["arrays", "listed", "singles"])
def test_data_of_every_kind(mine: Path, kind: str) -> None:
    (mine / "kinds.py").write_text(KINDS)
    sys.modules.pop("kinds", None)
    for name, data in (("a", f"kinds:{kind}"), ("b", "mine:data")):
        words = ("--model", "mine:net", "--data", data, "--only", "loss")
        code, text = run("measure", *words, "--json", mine / name)
        assert code == 0, text
        assert "20 examples" in text
    one, other = (
        json.loads((mine / name).read_text())["rows"][0]["estimate"]["value"] for name in "ab"
    )
    assert one == pytest.approx(other, rel=1e-6)


def test_images_in_bytes_get_one_line(mine: Path) -> None:
    (mine / "kinds.py").write_text(KINDS)
    sys.modules.pop("kinds", None)
    code, text = run("measure", "--model", "mine:net", "--data", "kinds:images", "--only", "loss")
    assert code == 2
    assert "the model got uint8 inputs: cast them, x.float() / 255" in text


def test_params_dtype_and_mode_reach_an_audit(mine: Path) -> None:
    words = ("--only", "loss", "--json", mine / "a.json")
    code, text = run("audit", *MINE, "--params", "2.*", "--dtype", "float64", *words)
    assert code == 0, text
    provenance = json.loads((mine / "a.json").read_text())["provenance"]
    assert (provenance["parameters"], provenance["dtype"]) == (18, "float64")
    import mine as user  # type: ignore[import-not-found]

    masked = sl.Objective(user.noisy(), user.data(), F.cross_entropy, mode="train", seed=3)
    noisy = ("--model", "mine:noisy", "--data", "mine:data", "--mode", "train", "--seed", "3")
    code, text = run("audit", *noisy, "--only", "loss", "--json", mine / "a.json")
    assert code == 0, text
    here = json.loads((mine / "a.json").read_text())["rows"][0]["values"]["here"]["value"]
    assert here == pytest.approx(masked.value(), rel=1e-6)


def test_tol_rtol_and_budget_reach_every_table(mine: Path) -> None:
    """A finer tolerance gives a smaller error; a budget of four products is not exceeded."""
    import mine as user  # type: ignore[import-not-found]

    objective = user.objective()
    name = "hessian_frobenius"
    fine = sl.audit(objective, [name], rtol=1e-4, budget=2000, way=False)[name].here
    rough = sl.audit(objective, [name], budget=4, way=False)[name].here
    assert fine.error <= 1e-4 * fine.value
    assert rough.error > fine.error
    other = sl.sharpen(objective, target=100).objective
    found = sl.compare({"a": objective, "b": other}, [name], budget=4)
    assert max(e.matvecs for e in found.values[name].values()) <= 20
    for command in ("measure", "audit"):
        path = mine / f"{command}.json"
        words = ("--only", name, "--rtol", "1e-4", "--budget", "2000", "--json", path)
        code, text = run(command, *MINE, *words)
        assert code == 0, text
        row = json.loads(path.read_text())["rows"][0]
        here = row["estimate"] if command == "measure" else row["values"]["here"]
        assert (here["stderr"] or 0.0) <= 1e-4 * here["value"]


def test_files_of_measure_and_compare(mine: Path) -> None:
    out = [mine / f"m.{kind}" for kind in ("html", "json", "csv")]
    words = ("-o", out[0], "--json", out[1], "--csv", out[2])
    code, text = run("measure", *MINE, "--only", "loss,lambda_max", *words)
    assert code == 0, text
    assert text.count("written to") == 3
    rows = json.loads(out[1].read_text())["rows"]
    with out[2].open(newline="") as file:
        assert [float(r["value"]) for r in csv.DictReader(file)] == [
            r["estimate"]["value"] for r in rows
        ]
    assert "<h1>" in out[0].read_text()
    import mine as user  # type: ignore[import-not-found]

    for name, scale in (("a", 1.0), ("b", 2.0)):
        state = {k: scale * t for k, t in user.net().state_dict().items()}
        save_file(state, mine / f"{name}.safetensors")
    words = ("a.safetensors", "b.safetensors", *MINE, "--only", "loss", "-o", mine / "c.html")
    code, text = run("compare", *words)
    assert code == 0, text
    assert "Comparison of a and b" in (mine / "c.html").read_text()


def test_symmetries_and_twins_as_json(mine: Path) -> None:
    path = mine / "s.json"
    code, text = run("symmetries", *MINE, "--params", "0.*", "--json", path)
    assert code == 0, text
    assert json.loads(path.read_text())["group"]["dim"] == 0  # the layer after it is held fast
    code, text = run("symmetries", "--model", "mine:net", "--json", path)
    assert code == 0, text
    found = json.loads(path.read_text())
    assert (found["group"]["dim"], len(found["generators"])) == (5, 5)
    assert found["group"]["kinds"] == {"hidden": 5}
    code, text = run("sharpen", *MINE, "--target", "1e4", "--dtype", "float64", "--json", path)
    assert code == 0, text
    twin = json.loads(path.read_text())
    assert twin["reached"] >= 1e4 > twin["before"]["value"]
    assert twin["certificate"]["verdict"] == "exact"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["measure", "--params", "2.*"], "--params needs --model"),
        (["audit", "--params", "2.*"], "--params needs --model"),
        (["symmetries", "--model", "mine:net", "--params", "2.*"], "--params needs --data"),
        (["symmetries", "--model", "mine:net", "--dtype", "float64"], "--dtype needs --data"),
        (["symmetries", "--model", "mine:net", "--weights", "no.pt"], "no file no.pt"),
        (["symmetries", "--model", "mine:net", "--shape", "0"], "--shape is '0'; sizes are"),
        (["audit", *MINE, "--budget", "0"], "Invalid value for '--budget'"),
        (["compare", "--tol", "-1"], "Invalid value for '--tol'"),
        (["measure", "-o", "out.json"], "writes an HTML page; use --json out.json"),
        (["compare", "-o", "out.csv"], "writes an HTML page; use --csv out.csv"),
        (["measure", "-o", "no/such/a.html"], "there is no folder no/such"),
        (["sharpen", "-o", "no/such/a.safetensors"], "there is no folder no/such"),
        (["measure", *MINE, "--weights", "."], "is a folder; name the file with the weights"),
        (["measure", "--only", "loss", "--device", "foo"], "--device is 'foo'; give cpu, cuda"),
        (["measure", *MINE, "--weights", "mine.py"], "mine.py cannot be read as a checkpoint"),
        (["measure", "--model", "mine.py:net"], "'mine.py:net', a file; write it as mine:net"),
        (["audit", "--model", "a/b.py:net"], "'a/b.py:net', a file; write it as a.b:net"),
        (["measure", "--model", "mine:my_loss"], "mine:my_loss needs arguments (model, batch);"),
        (["measure", *MINE[:2], "--data", "mine:my_loss"], "--data: mine:my_loss needs arguments"),
        (["measure", *MINE, "--only", ","], "no measure is named; there are: loss"),
        (["audit", *MINE, "--only", ","], "no measure is named; there are: loss"),
        (["compare", "--only", ""], "no measure is named; there are: loss"),
    ],
)
def test_mistakes_get_one_clear_line(mine: Path, words: list[str], message: str) -> None:
    code, text = run(*words)
    assert code == 2, text
    assert message in text
    assert "Traceback" not in text


TWO_HEADS = """
import torch
from torch import nn

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 3), nn.Linear(5, 1)

    def forward(self, x):
        h = self.body(x).relu()
        return {"logits": self.a(h), "value": self.b(h)}
"""


def test_one_of_several_heads(mine: Path) -> None:
    (mine / "two.py").write_text(TWO_HEADS)
    words = ("--model", "two:Two", "--data", "mine:data")
    code, text = run("measure", *words, "--only", "loss")
    assert code == 2
    assert "the model returns 2 tensors (logits, value) and the loss takes one: choose it" in text
    path = mine / "out.json"
    code, text = run("measure", *words, "--heads", "logits", "--only", "loss", "--json", path)
    assert code == 0, text
    import mine as user  # type: ignore[import-not-found]
    import two  # type: ignore[import-not-found]

    batches = user.data()
    x, y = (torch.cat([b[i] for b in batches]) for i in (0, 1))
    want = F.cross_entropy(two.Two()(x)["logits"], y)
    assert json.loads(path.read_text())["rows"][0]["estimate"]["value"] == pytest.approx(
        want.item(), rel=1e-5
    )
    code, text = run("measure", *words, "--heads", "no", "--only", "loss")
    assert code == 2
    assert "heads='no' is not among the outputs; there are: logits, value" in text


@pytest.mark.parametrize("name", ["report.pdf", "picture.PNG"])
def test_a_page_is_not_written_under_another_name(name: str, tmp_path: Path) -> None:
    code, text = run("measure", "--only", "loss", "-o", tmp_path / name)
    assert code == 2
    assert "writes an HTML page; name a .html file" in " ".join(text.split())
    assert not list(tmp_path.iterdir())


def test_a_factory_that_raises_is_named(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (mine / "broken.py").write_text("def make():\n    raise KeyError('my own bug')\n")
    monkeypatch.delenv("SPIRITLEVEL_DEBUG", raising=False)
    code, text = run("symmetries", "--model", "broken:make")
    said = " ".join(text.split())
    assert code == 2
    assert "--model: broken:make raised KeyError: 'my own bug' (broken.py, line 2;" in said


def test_help_names_commands_in_the_order_of_the_readme_and_breaks_no_sentence() -> None:
    code, text = run("-h")
    places = [text.index(f" {name} ") for name in ("audit", "compare", "measure", "claims")]
    assert (code, places) == (0, sorted(places))
    lines = (
        CliRunner().invoke(app, ["measure", "--help"], env={"COLUMNS": "80"}).output.splitlines()
    )
    assert ' names, patterns ("orbit_*") and parameters ("keskar' in "\n".join(lines)


def test_sharpen_takes_weights_as_other_commands_do(mine: Path) -> None:
    import mine as user  # type: ignore[import-not-found]
    from safetensors.torch import save_file

    save_file(
        {k: v.contiguous() for k, v in user.net().state_dict().items()}, mine / "a.safetensors"
    )
    named = run("sharpen", *MINE, "--weights", mine / "a.safetensors", "--target", "100")
    assert named[0] == 0, named[1]
    code, text = run("sharpen", *MINE, "a.safetensors", "--weights", "a.safetensors")
    assert (code, "give one of them" in text) == (2, True)


def test_compare_of_two_architectures_says_where_that_is_done(mine: Path) -> None:
    import mine as user  # type: ignore[import-not-found]
    import torch
    from safetensors.torch import save_file

    state = {k: v.contiguous() for k, v in user.net().state_dict().items()}
    save_file(state, mine / "a.safetensors")
    save_file({k: torch.cat([v, v]) for k, v in state.items()}, mine / "b.safetensors")
    code, text = run("compare", mine / "a.safetensors", mine / "b.safetensors", *MINE)
    assert code == 2
    assert "holds a network of another architecture than --model makes" in text
    assert "sl.compare({'a': one" in text
