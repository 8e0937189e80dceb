"""spiritlevel study: a small study from its file to its page, and mistakes in one line."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import spiritlevel as sl
import studied
import tables
from spiritlevel.cli import app
from spiritlevel.results.study import Findings
from spiritlevel.studies import PROTOCOLS, Store
from spiritlevel.studies.directions import Reported, direction

FILE = textwrap.dedent("""
    import torch
    import spiritlevel as sl
    from spiritlevel.studies import Study, Trained

    def train(config, seed):
        if config["width"] == 5 and seed == 1:
            raise RuntimeError("the loss is not finite")
        torch.manual_seed(seed)
        layers = torch.nn.Linear(2, config["width"]), torch.nn.ReLU()
        net = torch.nn.Sequential(*layers, torch.nn.Linear(config["width"], 2))
        x = torch.randn(12, 2, generator=torch.Generator().manual_seed(0))
        objective = sl.Objective(net, (x, (x[:, 0] > 0).long()), torch.nn.functional.cross_entropy)
        norm = float(sum(p.detach().square().sum() for p in net.parameters()))
        return Trained(objective, {"gap": norm + config["shift"], "other": -norm})

    small = Study("small", {"width": [3, 4, 5], "shift": [0.0, 9.0]}, train, ["path_norm"], seeds=2)
    TWO
""")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "grid.py").write_text(FILE.replace("TWO", ""), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def run(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["study", *map(str, words)], env={"COLUMNS": "100"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join((result.stdout + result.stderr).split())


def read(path: Path) -> Findings:
    found = sl.load(path)
    assert isinstance(found, Findings)
    return found


def test_a_study_goes_from_its_file_to_its_page(folder: Path) -> None:
    """Run it, ask for it, draw it from its store and from its table: always the same ranking."""
    code, text = run("run", "grid.py", "--json", "run.json", "-o", "page.html")
    assert code == 0, text
    assert "10 of 12 runs done, 2 failed" in text
    assert "the loss is not finite" in text
    found = read(folder / "run.json")
    assert found.name == "small"
    assert found.axes == {"width": [3, 4, 5], "shift": [0.0, 9.0]}
    assert (len(found.networks), found.provenance["failed"]) == (10, 2)
    assert 'data-name="path_norm"' in (folder / "page.html").read_text(encoding="utf-8")

    code, text = run("status", "grid.py")
    assert code == 0
    assert "10 of 12 runs done, 2 failed" in text

    assert run("export", "grid.py", "--csv", "networks.csv")[0] == 0
    with (folder / "networks.csv").open(encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == 10
    assert run("report", "grid.py", "--csv", "ranked.csv")[0] == 0
    for source in ("grid.py", "networks.csv", "ranked.csv", "run.json", "grid.db"):
        code, text = run("report", source, "--json", "again.json")
        assert code == 0, text
        again = read(folder / "again.json")
        assert [row.tau.value for row in again] == [row.tau.value for row in found]
        assert {n.key: n for n in again.networks} == {n.key: n for n in found.networks}
        if source != "grid.db":  # which knows no order of configurations, and so other resamples
            assert [row.tau for row in again] == [row.tau for row in found]
    assert "largest tau" in text


def test_only_a_study_knows_what_was_planned(folder: Path) -> None:
    """A store that is half done, and a table of it, are not said to be all of it."""
    run("run", "grid.py", "--json", "run.json")
    run("export", "grid.py", "--csv", "networks.csv")
    more = (folder / "grid.py").read_text().replace("[3, 4, 5]", "[3, 4, 5, 6]")
    (folder / "grid.py").write_text(more, encoding="utf-8")
    of_all, pages = "10 of 16 planned networks are here, 2 failed, 4 not yet trained.", {}
    for source in ("grid.py", "grid.db", "networks.csv", "run.json"):
        code, text = run("report", source, "-o", "page.html", "--json", "told.json")
        assert code == 0, text
        page = (folder / "page.html").read_text(encoding="utf-8")
        pages[source] = (page, text)
        assert (of_all in page, "10 of 16 networks, 2 failed" in text) == (
            (source == "grid.py",) * 2
        )
    assert "10 of 12 planned networks are here, 2 failed." in pages["run.json"][0]
    for source, failed in {"grid.db": ", 2 failed", "networks.csv": ""}.items():
        page, text = pages[source]
        assert f"10 networks are here{failed}; how many were planned is not known." in page
        assert f"10 networks{failed} (" in text
        assert "none failed" not in page
        assert " of 1" not in text.partition("10 networks")[2]
    text = run("status", "grid.db")[1]
    assert text.startswith("10 runs done, 2 failed")
    assert "how many were planned is known with the study only" in text
    assert run("status", "grid.py")[1].startswith("10 of 16 runs done, 2 failed")
    other = run("report", "run.json", "--outcome", "other")[1]
    assert "10 of 12 networks, 2 failed" in other, "what was told stays told"


def test_another_outcome_and_controls_are_ranked_from_what_is_there(folder: Path) -> None:
    run("run", "grid.py", "--json", "run.json")
    tau = read(folder / "run.json")["path_norm"].tau.value
    asked = ("--outcome", "other", "--controls", "width")
    for source in ("grid.db", "run.json"):
        code, text = run("report", source, *asked, "--json", "other.json")
        assert code == 0, text
        other = read(folder / "other.json")
        assert (other.outcome, other.controls) == ("other", ("width",))
        assert other["path_norm"].partial is not None
        assert other["path_norm"].tau.value != tau


def test_a_store_of_another_name_and_one_study_of_several(folder: Path) -> None:
    two = 'large = Study("large", {"width": [3, 4], "shift": [0.0, 9.0]}, train, seeds=1)'
    (folder / "two.py").write_text(FILE.replace("TWO", two), encoding="utf-8")
    code, text = run("status", "two.py", "--store", "grid.db")
    assert code == 2
    assert "small" in text
    assert "large" in text
    code, text = run("run", "two.py", "--name", "large", "--store", "mine.db")
    assert "4 of 4 runs done" in text
    assert (folder / "mine.db").exists()
    assert not (folder / "two.db").exists()


def test_the_page_of_findings_is_drawn_from_json_alone(folder: Path) -> None:
    studied.full().to_json(folder / "findings.json")
    code, text = run("report", "findings.json", "-o", "page.html", "--title", "Mine")
    assert code == 0
    assert "of least trace on the orbit" in text
    assert "<title>Mine</title>" in (folder / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--gpus", "0.5", "--memory", "2"), "--gpus needs --engine ray"),
        (("--memory", "2", "--engine", "pool"), "--memory needs --engine ray"),
        (("--ray-address", "auto"), "--ray-address needs --engine ray"),
        (("--workers", "2"), "--workers 2 needs --engine pool or --engine ray"),
    ],
)
def test_what_an_engine_needs_is_told_by_its_option(
    folder: Path, words: tuple[str, ...], message: str
) -> None:
    code, text = run("run", "grid.py", *words)
    assert code == 2
    assert message in text
    assert "=" not in text
    assert not (folder / "grid.db").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--store", "nowhere.db"), "--store is for the file of a study"),
        (("--name", "nosuch"), "--name is for the file of a study"),
        (("--full",), "--full is for the file of a study or a protocol, and"),
        (("--seeds", "3"), "--seeds is for the file of a study"),
    ],
)
def test_no_study_is_chosen_where_networks_are_read(
    folder: Path, words: tuple[str, ...], message: str
) -> None:
    run("run", "grid.py", "--json", "run.json")
    run("export", "grid.py", "--csv", "networks.csv")
    to = ("--csv", "again.csv")
    for command in (
        *(("status", "grid.db"), ("report", "grid.db"), ("export", "grid.db", *to)),
        *(("report", "networks.csv"), ("export", "networks.csv", *to), ("report", "run.json")),
    ):
        code, text = run(*command, *words)
        assert code == 2, command
        assert message in text
        assert f"{command[1]} is " in text
    assert not (folder / "again.csv").exists()


def test_a_table_is_exported_and_never_executed(folder: Path) -> None:
    run("run", "grid.py")
    run("export", "grid.py", "--csv", "networks.csv")
    assert run("export", "networks.csv", "--csv", "again.csv")[0] == 0
    assert (folder / "again.csv").read_text() == (folder / "networks.csv").read_text()
    (folder / "code.csv").write_text("open('executed', 'w')")
    (folder / "code.json").write_text("open('executed', 'w')")
    for command in ("status", "run"):
        for source in ("networks.csv", "code.csv", "code.json"):
            code, text = run(command, source)
            assert code == 2
            assert f"{source} holds networks, and no study: spiritlevel study report ranks" in text
    assert "path='code.csv' holds no networks" in run("export", "code.csv", "--csv", "a.csv")[1]
    assert not (folder / "executed").exists()
    for command in ("status", "run"):
        assert ("CSV" in CliRunner().invoke(app, ["study", command, "--help"]).stdout) is (
            command == "run"  # of --csv
        )
    assert "or a CSV of" in run("export", "--help")[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "nowhere.py"), "'nowhere.py': there is no such file; name one that defines"),
        (("status", "grid.py"), "grid.db"),
        (("report", "nowhere.db"), "there is no such file"),
        (("report", "nowhere.csv"), "cannot be read"),
        (("report", "nowhere.json"), "cannot be read"),
        (("report", "table.json"), "holds a table, not a study: use spiritlevel report"),
        (("export", "grid.py"), "say where to: --csv networks.csv"),
        (("export", "grid.py", "--csv", "no/a.csv"), "there is no folder no"),
        (("run", "grid.py", "-o", "page.json"), "writes an HTML page; use --json page.json"),
        (("run", "broken.py"), "broken.py cannot be imported"),
        (("run", "empty.py"), "has no study: define one at its top level, study = Study(...)"),
        (("run", "grid.py", "--name", "other"), "in a shell --name); there are: 'small'"),
        (("run", "some.db"), "is a store, which cannot train: name the file of its study, and"),
    ],
)
def test_mistakes_are_told_in_one_line(folder: Path, words: tuple[str, ...], message: str) -> None:
    (folder / "table.json").write_text(json.dumps(tables.table()), encoding="utf-8")
    (folder / "broken.py").write_text("import nowhere_to_be_found", encoding="utf-8")
    (folder / "empty.py").write_text("x = 1", encoding="utf-8")
    Store(folder / "some.db", create=True).close()
    code, text = run(*words)
    assert code == 2
    assert message in text
    assert "Traceback" not in text


def test_help_needs_no_torch() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from spiritlevel.cli import app\n"
        "shown = CliRunner().invoke(app, ['study', '--help'])\n"
        "print('torch' in sys.modules, shown.exit_code, 'protocols' in shown.stdout)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "0", "True"]


def test_some_of_the_networks(folder: Path) -> None:
    """--where leaves those that it names, from every source, and says so."""
    run("run", "grid.py", "--json", "run.json", "--csv", "ranked.csv")
    run("export", "grid.py", "--csv", "networks.csv")
    some = [n for n in read(folder / "run.json").networks if n.config["shift"] == 9.0]
    for source in ("grid.py", "networks.csv", "run.json", "grid.db"):
        code, text = run("report", source, "--where", "shift=9.0", "--json", "some.json")
        assert code == 0, text
        found = read(folder / "some.json")
        assert {n.key for n in found.networks} == {n.key for n in some}
        assert "only networks with shift = 9.0: 5 of 10" in text
        assert "of 12" not in text, "of all values"
        assert found.provenance["planned"] is None
    for wrong, message in {
        "shift=1.5": "where['shift']=1.5 is not known; choose one of 0.0, 9.0",
        "height=3": "an axis in where='height' is not known; choose one of 'shift', 'width'",
        "shift": "--where is 'shift'; give an axis and its value",
    }.items():
        code, text = run("report", "grid.db", "--where", wrong)
        assert code == 2
        assert message in text
    code, text = run("report", "grid.db", "--where", "shift=0.0", "--where", "shift=9.0")
    assert code == 2
    assert "--where names shift twice: give one value of each axis" in text


def test_networks_of_two_versions_of_a_training_are_not_mixed(folder: Path) -> None:
    """A store alone cannot tell which of them are meant; the study's file does."""
    run("run", "grid.py")
    file = folder / "grid.py"
    file.write_text(
        file.read_text(encoding="utf-8").replace('{"gap": norm', '{"gap": -norm'), encoding="utf-8"
    )
    code, text = run("run", "grid.py", "--json", "new.json")
    assert code == 0, text
    assert len(read(folder / "new.json").networks) == 10
    for words in (("report", "grid.db"), ("export", "grid.db", "--csv", "mixed.csv")):
        code, text = run(*words)
        assert code == 2
        assert "holds the networks of 2 trainings (10 and 10)" in text
        assert "name the study's file" in text
    assert not (folder / "mixed.csv").exists()
    assert run("export", "grid.py", "--csv", "mine.csv")[0] == 0


def test_protocols_are_listed(folder: Path) -> None:
    code, text = run("protocols")
    assert code == 0
    assert "jiang a grid in small Jiang et al. (2020)" in text
    assert len(PROTOCOLS) == sum(name in text for name in PROTOCOLS)


def test_a_protocol_says_what_came_of_its_source(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the size that was asked for; a study of a file has its own."""
    small = {"width": [2, 6], "examples": 40, "epochs": 3}
    unmeasured = Reported("width", "hessian_trace")
    reported = (unmeasured, *PROTOCOLS["width"].reported)
    one = replace(PROTOCOLS["width"], measures=("path_norm",), small=small, reported=reported)
    monkeypatch.setitem(PROTOCOLS, "width", one)
    code, text = run("run", "width", "--seeds", "2")
    assert code == 0, text
    assert "4 of 4 runs done" in text
    planned = one.study(seeds=2)
    with Store(folder / "width.db") as store:
        found = direction(store.networks(planned), reported[1], planned.axes)
    assert found.text in text
    assert "'hessian_trace' is neither an axis nor a number nor a measure" in text
    assert "no ranking: the networks are of 2 configurations: this needs at least 3" in text
    assert run("run", "width", "--seeds", "2", "--json", "width.json")[0] == 2
    assert "a protocol: leave it out" in run("run", "width", "--name", "small")[1]
    assert "--seeds is for protocols; grid.py" in run("run", "grid.py", "--seeds", "2")[1]
    assert "--full is for protocols; grid.py" in run("run", "grid.py", "--full")[1]
