"""What is killed goes on where it was, bit for bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from cases import labels, randn
from spiritlevel.landscape import lines, planes
from spiritlevel.landscape.points import evaluate

KILLED = """
import json, os, random, signal, sys, time
from pathlib import Path
import torch, torch.nn.functional as F
import spiritlevel as sl
from spiritlevel.landscape import points

torch.set_num_threads(1)
torch.manual_seed(0)
points.MOST = 4  # many small groups: many places to be killed at
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 5))
data = torch.randn(50, 8), torch.randint(0, 5, (50,))
objective = sl.Objective(net, data, F.cross_entropy)
group = sl.symmetries(objective)

def draw(file):
    return sl.landscape.plane(objective, steps=13, orbit=1, refine=1, group=group, journal=file)

file = Path(sys.argv[1])
truth = draw(sys.argv[1] + ".whole")
lines = Path(sys.argv[1] + ".whole").read_bytes().count(b"\\n")
draws = random.Random(int(sys.argv[2]))
kills = 0
for target in sorted(draws.sample(range(1, lines - 2), 20)):
    child = os.fork()
    if not child:
        draw(file)
        os._exit(0)
    while not (file.exists() and file.read_bytes().count(b"\\n") >= target):
        time.sleep(0.0005)
    time.sleep(draws.uniform(0, 0.001))  # also in the middle of a line
    os.kill(child, signal.SIGKILL)
    kills += os.WIFSIGNALED(os.waitpid(child, 0)[1])
found = draw(file)
print(json.dumps([kills >= 15, found.sheets == truth.sheets, found.x == truth.x]))
"""


def objective() -> sl.Objective:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3))
    return sl.Objective(layers, (randn(30, 6).float(), labels(30)), F.cross_entropy)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_plane_that_is_killed_twenty_times_is_the_same(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "plane.jsonl"), "7"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert json.loads(ran.stdout.splitlines()[-1]) == [True, True, True]


def test_what_a_kill_tore_off_is_made_again(tmp_path: Path) -> None:
    file = tmp_path / "plane.jsonl"
    truth = sl.landscape.plane(objective(), steps=5, journal=file)
    whole = file.read_bytes()
    for cut in (len(whole) - 1, len(whole) // 2, whole.index(b"\n") + 3, 10, 0):
        file.write_bytes(whole[:cut])
        found = sl.landscape.plane(objective(), steps=5, journal=file)
        assert found.sheets == truth.sheets
        assert file.read_bytes() == whole


def test_a_whole_journal_is_read_and_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "line.jsonl"
    truth = sl.landscape.line(objective(), steps=5, count=2, refine=1, journal=file)
    monkeypatch.setattr("spiritlevel.landscape.points._made", lambda *_: pytest.fail("made again"))
    found = sl.landscape.line(objective(), steps=5, count=2, refine=1, journal=file)
    assert found.curves == truth.curves


def test_a_journal_of_something_else_is_refused(tmp_path: Path) -> None:
    file, here = tmp_path / "plane.jsonl", objective()
    sl.landscape.plane(here, steps=3, journal=file)
    held = file.read_bytes()
    moved = here.at(here.vector * 1.01)
    fewer = here.on([tuple(t[:20] for t in here.batches[0])])
    asked: list[tuple[sl.Objective, dict[str, Any]]] = [
        (here, {"steps": 5}),
        (here, {"steps": 3, "seed": 1}),
        (here, {"steps": 3, "kind": "layer"}),
        (here, {"steps": 3, "span": 0.5}),
        (moved, {"steps": 3}),
        (fewer, {"steps": 3}),
    ]
    for other, question in asked:
        with pytest.raises(sl.SpiritlevelError, match="another network, other data, another quest"):
            sl.landscape.plane(other, journal=file, **question)
    foreign = tmp_path / "notes.txt"
    foreign.write_text("these are my notes\n")
    with pytest.raises(sl.SpiritlevelError, match="is no journal; name a file that does not exist"):
        sl.landscape.plane(here, steps=3, journal=foreign)
    assert foreign.read_text() == "these are my notes\n"
    assert file.read_bytes() == held
    with pytest.raises(sl.SpiritlevelError, match="give a file in a folder that there is"):
        sl.landscape.plane(here, steps=3, journal=tmp_path / "nowhere" / "a.jsonl")


@pytest.mark.parametrize("room", [planes, lines])
def test_an_interrupt_keeps_what_is_done(room: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from spiritlevel.landscape import points

    made, count = points._made, 0
    monkeypatch.setitem(points.SMALL, "cpu", 0)

    def interrupted(*args: Any) -> Any:
        nonlocal count
        count += 1
        if count == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return made(*args)

    monkeypatch.setattr(points, "_made", interrupted)
    draw: Any = sl.landscape.plane if room is planes else sl.landscape.line
    found = draw(objective(), steps=3)
    first = found.sheets[0].values if room is planes else [found.curves[0].losses]
    flat = [value for row in first for value in row]
    done = sum(value is not None for value in flat)
    assert done == (3 if room is planes else len(flat))
    if room is planes:
        assert found.provenance["interrupted"] == "3 of 9 points were done"
        assert sl.Surface.from_dict(found.to_dict()) == found
        assert "interrupted: 3 of 9" in str(found)


def test_no_places_are_no_work() -> None:
    from spiritlevel.landscape.passes import passes

    here = objective()
    assert evaluate(passes(here, [here.vector]), []).scores == []
