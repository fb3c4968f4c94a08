"""One real tokenizer for the whole run: loading it costs more than all tests that use it."""

import pytest

from tests.drift.qwen3 import Qwen3, load


@pytest.fixture(scope="session")
def qwen3() -> Qwen3:
    return load()
