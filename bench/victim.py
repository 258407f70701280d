"""A writer to be killed: `python -m bench.victim PEER DIRECTORY KEYS` writes, says so, and waits."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from bench.ground import Ground, Scale, make_pairs
from bench.peers import PEERS, TTL_S

WAIT_SECONDS_MAX = 60


def main(peer_name: str, directory: str, keys: str) -> None:
    ground = Ground(PEERS[peer_name], Path(directory), Scale(keys=int(keys)))
    with ground.open() as peer:
        peer.load(make_pairs(ground.keys()), TTL_S)
        print("written", flush=True)
        time.sleep(WAIT_SECONDS_MAX)


if __name__ == "__main__":
    main(*sys.argv[1:])
