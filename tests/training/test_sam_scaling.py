"""Sharpness-aware minimization in mixed precision, and in two processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from cases import labels, randn
from spiritlevel.training.sam import SAM

X, Y = randn(12, 4), labels(12)
HALF = torch.bfloat16


def net(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)


def flat(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def by_hand(model: nn.Module, loss: Callable[[], Tensor], rho: float, rate: float) -> Tensor:
    """Where one step of SAM ends, by autograd alone."""
    params = list(model.parameters())
    home = flat(model)
    g = torch.cat([s.reshape(-1) for s in torch.autograd.grad(loss(), params)])
    nn.utils.vector_to_parameters(home + rho * g / g.norm(), params)
    top = torch.cat([s.reshape(-1) for s in torch.autograd.grad(loss(), params)])
    nn.utils.vector_to_parameters(home, params)
    return home - rate * top


# Mixed precision ----------------------------------------------------------------------------------


@pytest.mark.parametrize("outside", [False, True])
def test_the_second_pass_of_autocast_sees_the_weights_uphill(outside: bool) -> None:
    """Within one autocast torch keeps the weights of the first pass in half precision."""
    model, x = net(torch.float32), X.float()
    optimizer = SAM(model.parameters(), rho=2.0, lr=0.5)

    def loss() -> Tensor:
        with torch.autocast("cpu", dtype=HALF):
            return F.cross_entropy(model(x), Y)

    expected = by_hand(model, loss, 2.0, 0.5)
    stale = flat(model) - 0.5 * torch.cat(
        [g.reshape(-1) for g in torch.autograd.grad(loss(), list(model.parameters()))]
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(model(x), Y) if outside else loss()
        value.backward()
        return value

    with torch.autocast("cpu", dtype=HALF, enabled=outside):
        optimizer.step(closure)
    torch.testing.assert_close(flat(model), expected, rtol=1e-6, atol=1e-6)
    assert (expected - stale).abs().max() > 1e-2


def scaled_step(model: nn.Module, optimizer: SAM, scaler: torch.amp.GradScaler, way: str) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(X.float()), Y)
        scaler.scale(loss).backward()
        return loss

    if way == "closure":
        optimizer.step(closure, scaler=scaler)
    else:
        closure()
        optimizer.ascend()
        closure()
        if way == "unscaled":  # as who clips gradients does
            scaler.unscale_(optimizer)
        optimizer.descend(scaler)
    scaler.update()


@pytest.mark.parametrize("base", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("way", ["closure", "two calls", "unscaled"])
@pytest.mark.parametrize("adaptive", [False, "element"])
def test_the_scale_of_the_loss_does_not_matter(
    base: type[torch.optim.Optimizer], way: str, adaptive: bool
) -> None:
    model, plain = net(torch.float32), net(torch.float32)
    options = {"rho": 0.1, "adaptive": adaptive, "lr": 0.01}
    optimizer = SAM(model.parameters(), base, **options)
    reference = SAM(plain.parameters(), base, **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**13)
    none = torch.amp.GradScaler("cpu", enabled=False)
    for _ in range(3):
        scaled_step(model, optimizer, scaler, way)
        scaled_step(plain, reference, none, way)
    torch.testing.assert_close(flat(model), flat(plain), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("place", [0, 1])
def test_a_step_that_the_scaler_skips_leaves_the_weights(place: int) -> None:
    """The gradient overflows in the first pass, or in the second one only."""
    model = net(torch.float32)
    optimizer = SAM(model.parameters(), rho=0.1, lr=0.5, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = flat(model)
    for number, go in enumerate((optimizer.ascend, lambda: optimizer.descend(scaler))):
        scaler.scale(F.cross_entropy(model(X.float()), Y)).backward()
        if number == place:
            model[0].weight.grad[0, 0] = torch.inf  # type: ignore[index, union-attr]
        go()
        if number == 0:
            assert torch.equal(flat(model), before) == (place == 0)
    scaler.update()
    assert (scaler.get_scale() == 512.0) == (place == 1)  # else the second pass was sound: a step
    assert torch.equal(flat(model), before) == (place == 1)
    skipped = flat(model)
    optimizer.zero_grad()
    scaled_step(model, optimizer, scaler, "two calls")
    assert torch.isfinite(flat(model)).all()
    assert not torch.equal(flat(model), skipped)


def test_a_loss_that_overflows_everywhere_moves_nothing() -> None:
    model = net(torch.float32)
    optimizer = SAM(model.parameters(), torch.optim.Adam, rho=0.1, lr=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
    before = flat(model)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = 1e6 * F.cross_entropy(model(X.float()), Y)
        scaler.scale(loss).backward()
        return loss

    optimizer.step(closure, scaler=scaler)
    scaler.update()
    assert torch.equal(flat(model), before)
    assert not optimizer.base.state
    assert scaler.get_scale() == 2.0**125


def test_a_scaler_at_the_wrong_door_is_found_out() -> None:
    model = net(torch.float32)
    optimizer = SAM(model.parameters(), rho=0.1, lr=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    F.cross_entropy(model(X.float()), Y).backward()
    optimizer.ascend()
    scaler.scale(torch.inf * model(X.float()).sum()).backward()
    scaler.step(optimizer)  # skips what would have gone back
    with pytest.raises(sl.SpiritlevelError, match=r"a GradScaler is given to descend\(scaler\)"):
        optimizer.ascend()


# Two processes ------------------------------------------------------------------------------------

SCRIPT = """
import json, os, sys
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from spiritlevel.training.sam import SAM

rank, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
X, Y, weights = torch.load(f"{folder}/given.pt", weights_only=True)
x, y, found = X[rank::2], Y[rank::2], {}

def net():
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    model.double().load_state_dict(weights)
    return model

def flat(model):
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()

def gone(sync, way):
    model = net()
    whole = DDP(model)
    optimizer = SAM(whole.parameters(), rho=0.3, lr=0.5, model=whole, sync=sync)
    tops = []

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(whole(x), y)
        loss.backward()
        tops.append(flat(model))
        return loss

    if way == "closure":
        optimizer.step(closure)
    elif way == "parts":
        optimizer.step([closure, closure])
    else:
        if sync:
            closure()
        else:
            with whole.no_sync():
                closure()
        optimizer.ascend()
        closure()
        optimizer.descend()
    return {"top": tops[1].tolist(), "end": flat(model).tolist()}

for sync in (True, False):
    for way in ("closure", "two calls", "parts"):
        found[f"{sync} {way}"] = gone(sync, way)
with open(f"{folder}/{rank}.json", "w") as file:
    json.dump(found, file)
dist.barrier()
os._exit(0)  # threads of gloo abort now and then while they are torn down
"""


def slope(model: nn.Module, at: Tensor, x: Tensor, y: Tensor) -> Tensor:
    nn.utils.vector_to_parameters(at, model.parameters())
    found = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
    return torch.cat([g.reshape(-1) for g in found])


def test_two_processes_climb_together_or_each_on_its_own(tmp_path: Path) -> None:
    torch.save((X, Y, net().state_dict()), tmp_path / "given.pt")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rank), str(tmp_path)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [run.communicate(timeout=120)[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], said
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    model = net()
    begin = flat(model)
    shares = [(X[rank::2], Y[rank::2]) for rank in range(2)]
    each = [slope(model, begin, x, y) for x, y in shares]
    mean = (each[0] + each[1]) / 2
    for sync in (True, False):
        ups = [mean / mean.norm() if sync else g / g.norm() for g in each]
        tops = [begin + 0.3 * up for up in ups]
        uphill = [slope(model, top, x, y) for top, (x, y) in zip(tops, shares, strict=True)]
        end = begin - 0.5 * (uphill[0] + uphill[1]) / 2
        for way in ("closure", "two calls", "parts"):
            for rank in range(2):
                here = found[rank][f"{sync} {way}"]
                for name, expected in (("top", tops[rank]), ("end", end)):
                    value = torch.tensor(here[name], dtype=torch.float64)
                    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-13)
    assert (each[0] / each[0].norm() - each[1] / each[1].norm()).norm() > 0.1  # not the same climb
