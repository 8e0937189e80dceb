"""Do the directions that the literature reports come out?

    SPIRITLEVEL_DATA=... python benchmarks/protocols.py --full --workers 12 --seeds 5

Runs every protocol of spiritlevel.studies, small on the digits or --full on Fashion-MNIST,
and prints what its networks say of each direction that its source reports.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from spiritlevel import SpiritlevelError
from spiritlevel.studies.protocols import PROTOCOLS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(PROTOCOLS))
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--store", type=Path, default=Path("protocols.db"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = []
    for name in options.names:
        begin, protocol = time.perf_counter(), PROTOCOLS[name]
        study = protocol.study(full=options.full, seeds=options.seeds)
        store = study.run(options.store, engine="pool", workers=options.workers)
        networks = store.networks(study)
        print(f"{name}: {protocol.title}, {protocol.source}; {len(networks)} of ", end="")
        print(f"{len(study.runs())} networks, {time.perf_counter() - begin:.0f} s", flush=True)
        try:
            found += [(name, one.text) for one in protocol.directions(study, networks)]
        except SpiritlevelError as error:
            found.append((name, str(error)))
        print("\n".join(f"    {text}" for known, text in found if known == name), flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
