"""Threads of a store: a limit that was reached is an error of the store's own."""

from __future__ import annotations

import threading

from ephemera.core.errors import ResourcesExhausted


def start_thread(thread: threading.Thread) -> None:
    """Start a thread. Raises ResourcesExhausted where the system has none left."""
    try:
        thread.start()
    except RuntimeError as error:
        raise explain_no_thread(error) from error


def explain_no_thread(error: RuntimeError) -> ResourcesExhausted:
    """Return what it means that no thread could be started, and what to do."""
    return ResourcesExhausted(
        f"no thread could be started for the store: {error}. End some threads or processes, or raise"
        " their limit (ulimit -u, or the container's limit of pids)"
    )
