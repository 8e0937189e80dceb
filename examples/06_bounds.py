"""What is guaranteed on new examples, and that rescaled twins have the same guarantee.

python examples/06_bounds.py
"""

from pathlib import Path
from tempfile import mkdtemp

import torch
import torch.nn.functional as F

import spiritlevel as sl
from spiritlevel.training import fit

# Two classes of points in the plane, and a small net. Put your own model and data here.
torch.manual_seed(0)
x = torch.randn(1200, 2)
y = (x[:, 0] > 0.5 * x[:, 1]).long()
net = torch.nn.Sequential(torch.nn.Linear(2, 12), torch.nn.ReLU(), torch.nn.Linear(12, 2))
init = {name: p.detach().clone() for name, p in net.named_parameters()}  # before training
train, test = (x[:1000], y[:1000]), (x[1000:], y[1000:])
fit(net, train, F.cross_entropy, torch.optim.Adam(net.parameters(), lr=1e-2), 10)

# Weights plus noise are a posterior; it is trained until its error and what it costs to tell are
# least together. The prior is centred at the weights before training: it knows no example.
objective = sl.Objective(net, train, F.cross_entropy)
found = sl.bounds.pac_bayes(objective, init=init, orbit=True, epochs=40, draws=200, test=test)
print(found)
page = sl.write_report(found, Path(mkdtemp()) / "bounds.html")
print(f"\n{page} says where it comes from\n")

# The same network in other coordinates: no prediction changes, and the plain bound does. Along the
# orbit it comes back.
group = sl.symmetries(objective)
twin = group.apply(objective, group.random(0, 1.5))
print(f"a twin, along {group.dim} rescalings:")
for orbit in (False, True):
    bound = sl.bounds.pac_bayes(twin, init=init, orbit=orbit, epochs=40, draws=200)["maurer"]
    print(f"  {'rescaled' if orbit else 'as it is'}: {bound}")
