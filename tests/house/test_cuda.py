"""The same numbers on a GPU; skipped, with the reason, where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
import zoo
from architectures import ResNet, randomized
from cases import CASES, TOLERANCE, Case, labels, randn
from spiritlevel.symmetry import head_maps, permutations

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_gpu_and_cpu_agree(case: Case) -> None:
    here, there = case.objective(), case.objective(device="cuda")
    v = randn(here.size)
    tolerance = TOLERANCE.get(case.name, 1e-9)
    for make in (sl.hessian, sl.ggn):
        on_cpu, on_gpu = make(here), make(there)
        assert on_gpu.device.type == "cuda"
        product = on_gpu @ v
        assert product.is_cuda
        scale = float((on_cpu @ v).norm())
        torch.testing.assert_close(product.cpu(), on_cpu @ v, rtol=0, atol=tolerance * scale)


def test_probes_are_the_same_on_both() -> None:
    case = CASES[0]
    found = [
        sl.trace(sl.hessian(case.objective(device=d)), seed=3, budget=30) for d in ("cpu", "cuda")
    ]
    assert found[0].value == pytest.approx(found[1].value, rel=1e-9)


def test_compiled_products_agree_and_images_lie_channels_last() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    x, y = torch.randn(64, 3, 16, 16), torch.randint(0, 8, (64,))
    objective = sl.Objective(net, (x, y), F.cross_entropy, device="cuda", dtype=torch.float64)
    assert objective.batches[0][0].is_contiguous(memory_format=torch.channels_last)
    v = torch.randn(objective.size, dtype=torch.float64)
    eager, fast = sl.hessian(objective, compile=False), sl.hessian(objective, compile=True)
    torch.testing.assert_close(fast @ v, eager @ v, rtol=1e-9, atol=1e-12)

    class Views(nn.Sequential):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return self[0](input).view(len(input), -1)  # impossible for channels-last activations

    kept = sl.Objective(Views(nn.Conv2d(3, 2, 3)), (x, y), F.cross_entropy, device="cuda")
    assert kept.batches[0][0].is_contiguous()
    assert kept.value() > 0


def test_symmetries_act_and_are_proved_on_the_gpu() -> None:
    data = (randn(8, 3, 8, 8), labels(8, classes=10))
    model = randomized(ResNet((4, 8), 1, "B"))
    objective = sl.Objective(model, data, F.cross_entropy, device="cuda")
    for options, dim, verdict in (
        ({}, 24, "exact"),
        ({"statistics": "free", "eps": "approximate"}, 96, "approximate"),
    ):
        group = sl.symmetries(objective, **options)  # type: ignore[arg-type]
        twin = group.apply(objective, group.random(0))
        assert group.dim == dim
        assert all(p.is_cuda for p in twin.params.values())
        assert group.verify(objective, twin).verdict == verdict
    found = sl.sharpen(objective, target=1e5)
    assert found.reached >= 1e5
    assert found.certificate.relative <= 1e-10
    for units in permutations(objective):
        assert sl.verify(objective, units.apply(objective, units.random(2))).relative <= 1e-10


def test_heads_move_on_the_gpu() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 6, batch_first=True)
    model = randomized(nn.Sequential(layer, nn.Flatten(), nn.Linear(24, 3)))
    objective = sl.Objective(model, (randn(6, 3, 8), labels(6)), F.cross_entropy, device="cuda")
    maps = head_maps(objective)
    assert len(maps) == 4
    for head in maps:
        assert sl.verify(objective, head.apply(objective, head.random(1))).relative <= 1e-10


def test_an_audit_is_the_same_on_both_devices(tmp_path: Path) -> None:
    data = (randn(40, 1, 6, 6), labels(40))
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)
    )
    model = randomized(net)
    names = [name for name, entry in sl.MEASURES.items() if not entry.parts]
    cpu, gpu = (
        sl.audit(sl.Objective(model, data, F.cross_entropy, device=device), names, way=False)
        for device in ("cpu", "cuda")
    )
    assert list(cpu.provenance["refused"]) == list(gpu.provenance["refused"])  # has no heads, ...
    for name in (row.name for row in cpu.rows):
        a, b = cpu[name], gpu[name]
        assert a.text.split(" x ")[0] == b.text.split(" x ")[0], name
        gap = abs(a.here.value - b.here.value)
        assert gap <= 3 * (a.here.error + b.here.error) + 1e-5 * abs(a.here.value), name
    sl.write_report(gpu, tmp_path / "report.html")
    objective = sl.Objective(model, data, F.cross_entropy, device="cuda")
    frobenius = [
        sl.orbit.minimum(o, norm="frobenius").value
        for o in (objective, sl.Objective(model, data, F.cross_entropy))
    ]
    assert frobenius[0] == pytest.approx(frobenius[1], rel=1e-6)
    twin = sl.sharpen(objective, target=1e4).objective
    found = sl.compare({"net": objective, "twin": twin}, ["hessian_trace", "orbit_trace"])
    assert found["hessian_trace"].text == "twin is sharper only in these coordinates"


@pytest.mark.parametrize("kind", ["filter", "orbit"])
def test_planes_are_the_same_on_both(kind: str) -> None:
    """Stacked and one by one, with BatchNorm, in float64."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    whole = nn.Sequential(*net, nn.Linear(4 * 16, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    data = randn(30, 1, 6, 6), labels(30)
    for statistics in ("frozen", "recomputed"):
        found = [
            sl.landscape.plane(
                sl.Objective(whole, data, F.cross_entropy, device=device),
                kind,
                steps=5,
                statistics=statistics,
            )
            for device in ("cpu", "cuda")
        ]
        here, there = (torch.tensor(one.losses, dtype=torch.float64) for one in found)
        torch.testing.assert_close(there, here, rtol=1e-9, atol=0)
        assert found[0].sheets[0].accuracies == found[1].sheets[0].accuracies


@pytest.mark.parametrize(
    ("name", "net"), [("geodesic_sharpness", "transformer"), ("path_flatness", "mlp")]
)
def test_heads_and_paths_are_the_same_on_both(name: str, net: str) -> None:
    known = zoo.trained(net)
    here, there = (
        sl.MEASURES[name](
            sl.Objective(known.net, (known.x, known.y), F.cross_entropy, device=device)
        )
        for device in ("cpu", "cuda")
    )
    assert there.value == pytest.approx(here.value, rel=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "sam", "adam"])
def test_a_stack_is_trained_as_on_the_cpu(optimizer: str) -> None:
    """Steps are played from a graph there; one network ends before the other."""
    x, y = randn(22, 4), labels(22)
    stacks = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        models = [nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)) for _ in range(3)]
        models = [model.double().to(device) for model in models]
        found = sl.training.fit_many(
            models, (x, y), F.cross_entropy, optimizer, lr=[0.1, 0.05, 0.2], epochs=20, stop=0.9
        )
        stacks.append((models, [len(history.epochs) for history in found]))
    assert stacks[0][1] == stacks[1][1]
    for here, there in zip(stacks[0][0], stacks[1][0], strict=True):
        for a, b in zip(here.parameters(), there.parameters(), strict=True):
            torch.testing.assert_close(b.cpu(), a, rtol=0, atol=1e-12)
