"""How long it takes to find the symmetries of large models, and to move along them.

    python benchmarks/symmetries.py [resnet20] [vgg11] [gpt2]

VGG-11 has 133 million parameters at 224 x 224, GPT-2 small 124 million with a tied vocabulary of
50,257. Acting is compared with copying the same tensors.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from resnet20 import ResNet
from torch import Tensor, nn

import spiritlevel as sl

REPEATS = 7


def vgg11() -> nn.Module:
    layers: list[nn.Module] = []
    inside = 3
    for width in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):
        if width:
            layers += [nn.Conv2d(inside, width, 3, padding=1), nn.ReLU()]
            inside = width
        else:
            layers.append(nn.MaxPool2d(2))
    head = [nn.Linear(25088, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), *head, nn.Linear(4096, 1000))


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config())


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "resnet20": (ResNet, lambda: torch.randn(2, 3, 32, 32)),
    "vgg11": (vgg11, lambda: torch.randn(2, 3, 224, 224)),
    "gpt2": (gpt2, lambda: {"input_ids": torch.arange(16).reshape(2, 8), "use_cache": False}),
}


def median(action: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        result = action()
        times.append(time.perf_counter() - begin)
        del result
    return sorted(times)[REPEATS // 2]


def main() -> None:
    chosen = sys.argv[1:] or list(MODELS)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    print("| model | parameters | dimension | find, s | copy, ms | act, ms | act / copy |")
    print("|---|---|---|---|---|---|---|")
    sl.symmetries(nn.Linear(2, 2), torch.randn(2, 2))  # torch.export imports for seconds
    for name in chosen:
        make, example = MODELS[name]
        model = make().eval()
        begin = time.perf_counter()
        group = sl.symmetries(model, example())
        seconds = time.perf_counter() - begin
        params: dict[str, Tensor] = {k: p.detach() for k, p in model.named_parameters()}
        t = group.random()
        copy = median(lambda p=params: {k: v.clone() for k, v in p.items()})
        act = median(lambda p=params, g=group, t=t: g.act(p, t))
        size = sum(p.numel() for p in params.values())
        cells = [name, f"{size:,}", str(group.dim), f"{seconds:.1f}", f"{1e3 * copy:.1f}"]
        print(
            "| " + " | ".join([*cells, f"{1e3 * act:.1f}", f"{act / copy:.2f}"]) + " |", flush=True
        )


if __name__ == "__main__":
    main()
