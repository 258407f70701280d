"""A real terminal: a tmux server of its own, into which a test types and whose screen it reads."""

from __future__ import annotations

import os
import shlex
import subprocess
import threading
from pathlib import Path
from typing import Self

from tests.cli.typing_it import PROGRAM

COLUMNS, ROWS = 100, 30
LOOK_SECONDS = 0.05
LOOKS_MAX = 300


class Terminal:
    """One window with one program in it."""

    def __init__(self, directory: Path, *args: object) -> None:
        self._socket = directory / "tmux"
        self._environment = {
            **os.environ,
            "XDG_STATE_HOME": str(directory / "state"),
            "LC_ALL": "C.UTF-8",
        }
        self._pause = threading.Event()
        command = shlex.join([*PROGRAM, *map(str, args)])
        # The screen stays as it was when the program ends, with its exit code after it.
        self._tmux(
            "-f", os.devnull, "new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS),
            f"{command}; echo ended with $?; exec cat",
        )  # fmt: skip

    def type(self, *keys: str) -> None:
        """Press keys: text as it is, and the names that tmux has for others (Enter, Tab, C-c)."""
        for key in keys:
            is_name = key in ("Enter", "Tab", "Up") or key.startswith("C-")
            self._tmux("send-keys", *([] if is_name else ["-l"]), key)

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p", "-S", "-100")

    def wait_for(self, text: str) -> str:
        """The screen, once this text is on it."""
        for _ in range(LOOKS_MAX):
            screen = self.screen()
            if text in screen:
                return screen
            self._pause.wait(LOOK_SECONDS)
        raise AssertionError(f"{text!r} never appeared:\n{self.screen()}")

    def _tmux(self, *args: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", str(self._socket), *args],
            env=self._environment, capture_output=True, text=True, timeout=30, check=True,
        )  # fmt: skip
        return done.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._tmux("kill-server")
