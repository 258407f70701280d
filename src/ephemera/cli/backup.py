"""`ephemera backup`: a copy of a store while it is used."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ephemera import Store
from ephemera.cli import output
from ephemera.cli.stores import Json, StoreUrl, open_to_read
from ephemera.cli.usage import directory_bytes
from ephemera.engines.local.files import is_temporary

LOOK_SECONDS = 0.1


def backup(
    url: StoreUrl,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="A new directory.")],
    as_json: Json = False,
) -> None:
    """Write a copy of a store to a new directory, which opens as a store, while it is used."""
    with open_to_read(url) as store:
        copy(store, target, task="copying")
    size = directory_bytes(str(target))
    if as_json:
        output.record({"path": str(target), "bytes": size})
    else:
        output.line(f"{output.show_bytes(size)} in {target}")


def copy(store: Store, target: Path, *, task: str) -> None:
    """Write a copy with a bar that follows the bytes as they arrive."""
    stats = store.stats()
    total = stats.get("base_bytes", 0) + stats.get("segment_bytes", 0)
    with output.progress(task) as advance, _following(target, total, advance):
        store.backup(target)


@contextmanager
def _following(target: Path, total: int, advance: output.Advance) -> Iterator[None]:
    """Tell how large the unfinished copy is, from a thread: the copy itself says nothing."""
    is_over = threading.Event()
    place, beginning = target.absolute().parent, f"{target.name}.{os.getpid()}-"

    def follow() -> None:
        while not is_over.wait(LOOK_SECONDS):
            names = (name for name in os.listdir(place) if name.startswith(beginning))
            done = sum(directory_bytes(str(place / name)) for name in names if is_temporary(name))
            advance(min(done, total), total)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
        advance(total, total)
    finally:
        is_over.set()
        thread.join()
