"""One thread for each worker, and a user's own module for the command to find."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
import torch

# a shell starts what runs in its background deaf to Ctrl-C, and tests press it
signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # two workers with two threads each would fight for two cores

MINE = """
import torch
from torch.utils.data import DataLoader, TensorDataset
import spiritlevel as sl

def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))

def noisy():
    return torch.nn.Sequential(net(), torch.nn.Dropout(0.5))

def data():
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(20, 4, generator=g), torch.randint(0, 3, (20,), generator=g)
    return DataLoader(TensorDataset(x, y), batch_size=8)

def objective():
    return sl.Objective(net(), data(), torch.nn.functional.cross_entropy)

def broken():
    raise RuntimeError("this factory does not work")

def nan():
    model = net()
    with torch.no_grad():
        model[0].weight.fill_(float("nan"))
    return model

def empty():
    return []

def wrong_shape():
    return torch.randn(20, 7), torch.randint(0, 3, (20,))

number = 3

def my_loss(model, batch):
    return model(batch[0]).square().sum(), len(batch[0])
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path
