"""Pictures of the loss: a plane, twins of one network, two networks, the path of training.

python examples/05_landscapes.py
"""

from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

import torch
import torch.nn.functional as F

import spiritlevel as sl

folder = Path(mkdtemp())
objective = sl.default_objective(dtype=torch.float64)  # put your own Objective here

# The famous picture, and the same network after rescalings that change no prediction: whole layers
# leave it as it is, single units do not. "orbit" scales the directions at the one point of the
# orbit with the least norm, and every twin has the same picture.
group = sl.symmetries(objective)
twins = {
    "the network": objective,
    "layers rescaled": group.apply(objective, group.of_layers(group.layerwise().random(3, 1.0))),
    "units rescaled": group.apply(objective, group.random(0, 1.0)),
}
for kind in ("filter", "orbit"):
    planes = {
        name: sl.landscape.plane(twin, kind, steps=15, span=0.5) for name, twin in twins.items()
    }
    sheets = tuple(replace(plane.sheets[0], name=name) for name, plane in planes.items())
    print(f"{kind}: largest losses of {group.dim} rescalings' twins")
    for sheet in sheets:
        print(f"  {sheet.name}: {max(value or 0 for row in sheet.values for value in row):.6g}")
    replace(planes["the network"], sheets=sheets).plot(folder / f"landscape-{kind}.svg")

# One page with a slider along the orbit: the landscape moves, the predictions do not.
surface = sl.landscape.plane(objective, orbit=4)
sl.write_report(surface, folder / "landscape.html")

# Two networks of other seeds. What tells nothing apart is divided out in the second line.
line = sl.landscape.interpolate(
    objective, sl.default_objective(seed=1, dtype=torch.float64), align=True
)
print(line)
line.plot(folder / "interpolation.svg")

# The path of training, in the plane in which most of it lies.
net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)).double()
x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
y = (x[:, 0] * x[:, 1] > 0).long()
checkpoints = []
optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
for step in range(200):
    if step % 20 == 0:
        checkpoints.append({name: tensor.clone() for name, tensor in net.state_dict().items()})
    optimizer.zero_grad()
    F.cross_entropy(net(x), y).backward()
    optimizer.step()
path = sl.landscape.trajectory(sl.Objective(net, (x, y), F.cross_entropy), checkpoints, steps=15)
print(path)
path.plot(folder / "path.svg")
print(f"\nthe pictures are in {folder}")
