"""Which flatness numbers mean something for a network, and which of two is flatter.

python examples/04_audit_and_compare.py
"""

from pathlib import Path
from tempfile import mkdtemp

import spiritlevel as sl


@sl.register("weight_norm", title="norm of the weights")
def weight_norm(objective: sl.Objective) -> float:
    """A measure of your own; it promises nothing, and the audit finds that it moves."""
    return float(objective.vector.norm())


# The embedded net: 64-32-16-10 with ReLU on the 8x8 digits. Put your own Objective here.
objective = sl.default_objective()
audit = sl.audit(objective, ["loss", "hessian_trace", "weight_norm", "path_norm", "orbit_trace"])
print(audit)

# The same as one HTML page, with a slider along the orbit.
page = sl.write_report(audit, Path(mkdtemp()) / "report.html")
print(f"\n{page} has {page.stat().st_size // 1000} kB and needs nothing else\n")

# A net against the same net with other weights: sharper, but only in these coordinates.
twin = sl.sharpen(objective, target=1e4).objective
print(sl.compare({"net": objective, "twin": twin}, ["hessian_trace", "orbit_trace"]))
