"""One embedded log a test."""

from pathlib import Path

import pytest

from streams.settings import Settings
from tests.trainer.publishing import in_file


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return in_file(tmp_path)
