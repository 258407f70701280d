"""One peer's run of some workloads: `python -m bench.one PEER WORKLOADS KEYS DIRECTORY`.

It prints one line of JSON per workload. The runner starts a process for each, so that one's memory,
collector and threads do not disturb the next.
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.ground import Ground, Scale
from bench.growth import GROWN
from bench.peers import PEERS, NotOffered, Peer
from bench.workloads import WORKLOADS, Workload


def main(peer: str, workloads: str, keys: str, directory: str) -> None:
    scale = Scale(keys=int(keys))
    known = WORKLOADS | {GROWN.name: GROWN}
    for name in workloads.split(","):
        print(json.dumps(run(PEERS[peer], known[name], scale, directory)), flush=True)


def run(peer: type[Peer], workload: Workload, scale: Scale, directory: str) -> dict[str, Any]:
    """A cell of the table as JSON will have it (hence Any): a measure, a dash, or an error."""
    cell: dict[str, Any] = {"workload": workload.name, "peer": peer.name}
    if peer.workloads is not None and workload.name not in peer.workloads:
        return cell | {"state": "not offered"}
    with tempfile.TemporaryDirectory(prefix="bench-", dir=directory) as place:
        try:
            measure = workload.run(Ground(peer, Path(place), scale))
        except NotOffered:
            return cell | {"state": "not offered"}
        except Exception as error:  # one peer's failure must not end the run of the others
            traceback.print_exc()
            return cell | {"state": "error", "error": f"{type(error).__name__}: {error}"}
    return cell | {"state": "measured"} | asdict(measure)


if __name__ == "__main__":
    main(*sys.argv[1:])
