"""A store to type commands at."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where there is no store yet."""
    return tmp_path / "s.eph"
