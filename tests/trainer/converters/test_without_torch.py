"""Torch is imported by the first tensor, and by nothing before it."""

import subprocess
import sys

WITHOUT = """
import pkgutil, sys
sys.modules["torch"] = None  # an import of it fails from here on
from streams.trainer import converters
names = [each.name for each in pkgutil.iter_modules(converters.__path__)]
for name in names:
    __import__(f"streams.trainer.converters.{name}")
from streams.trainer.converters import padded
from tests.trainer.converters.given import row
padded.packed_arrays([row()])
try:
    padded.packed([row()])
except ImportError:
    print(len(names))
"""


def test_everything_but_a_tensor_is_made_without_torch() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) >= 13
