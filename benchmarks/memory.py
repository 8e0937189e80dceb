"""What a played product holds and takes at its peak, with and without what is cheap.

    SPIRITLEVEL_DATA=... python benchmarks/memory.py

Bytes are counted by playing: each memory once, parameters and data apart, on every device the same.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from typing import Any

import torch
import torch.nn.functional as F
from resnet20 import cifar10, trained
from torch import Tensor

import spiritlevel as sl
from spiritlevel.base.tensors import leaves
from spiritlevel.curvature import again
from spiritlevel.curvature.program import filled
from spiritlevel.curvature.tape import Tape

NOTHING = 2**60  # numbers: no tensor is so large


def resnet20() -> sl.Objective:
    return sl.Objective(trained(), cifar10(80), F.cross_entropy)


def gpt2() -> sl.Objective:
    """Three blocks of GPT-2 small, 512 tokens, a small vocabulary."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_layer": 3, "vocab_size": 5000, "bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(**sizes)).eval()  # type: ignore[arg-type]
    ids = torch.randint(0, 5000, (1, 512))
    return sl.Objective(model, {"input_ids": ids, "labels": ids})


class Meter:
    """The bytes that are alive, each memory once."""

    def __init__(self, apart: set[int]) -> None:
        self.apart, self.sizes, self.users = apart, dict[int, int](), Counter[int]()

    def count(self, item: Any, by: int) -> None:
        if isinstance(item, Tensor):
            store = item.untyped_storage()
            if store.data_ptr() not in self.apart:
                self.sizes[store.data_ptr()] = store.nbytes()
                self.users[store.data_ptr()] += by

    @property
    def alive(self) -> int:
        return sum(self.sizes[place] for place, count in self.users.items() if count > 0)


@torch.no_grad()
def bytes_of(tape: Tape, v: Tensor, own: list[Tensor]) -> tuple[int, int]:
    """Held, and at the peak."""
    meter = Meter({t.untyped_storage().data_ptr() for t in own})
    places: list[Any] = [v, *tape.held, *[None] * (tape.program.slots - 1 - len(tape.held))]
    for tensor in tape.held:
        meter.count(tensor, 1)
    held = peak = meter.alive
    for step in tape.program.steps:
        made = step.operation(*filled(step.args, places), **(filled(step.kwargs, places) or {}))
        for number, tensor in zip(step.outs, made if step.several else (made,), strict=True):
            if number is not None:
                places[number] = tensor
                meter.count(tensor, 1)
        peak = max(peak, meter.alive)
        for number in step.last:
            meter.count(places[number], -1)
            places[number] = None
    return held, peak


def line(what: str, objective: sl.Objective, worth: int) -> str:
    again.WORTH = worth
    operator = sl.hessian(objective, compile=False)
    vectors = torch.randn(3, objective.size, generator=torch.Generator().manual_seed(0))
    for v in vectors[:2]:
        operator @ v
    seconds = []
    for _ in range(7):
        begin = time.perf_counter()
        operator @ vectors[2]
        seconds.append(time.perf_counter() - begin)
    engine = operator.matvec.__self__  # type: ignore[attr-defined]
    tape = engine.tapes[0]
    held, peak = bytes_of(
        tape, vectors[2], [*objective.params.values(), *leaves(objective.batches)]
    )
    cells = f"{held / 2**20:.0f} MiB | {peak / 2**20:.0f} MiB | {len(tape.program.steps)}"
    return f"| {what} | {cells} | {statistics.median(seconds) * 1e3:.0f} ms |"


def main() -> None:
    print("| what | held | peak | operations | a product |\n|---|---|---|---|---|")
    cases = {"ResNet-20, 80 images": resnet20(), "three blocks of GPT-2, 512 tokens": gpt2()}
    for what, objective in cases.items():
        print(line(f"{what}, all is held", objective, NOTHING), flush=True)
        print(line(f"{what}, what is cheap is made again", objective, 2**16), flush=True)


if __name__ == "__main__":
    main()
