"""SmolLM2-135M-Instruct three times over: what samples, what spells, what scores once more.

Reading the GGUF file takes a quarter of a minute, so that is done once: the engine gets what
was read as a folder.
"""

from pathlib import Path

from streams.adapters.engines.local import LocalEngine
from streams.adapters.gateway.rendering.renderer import Renderer
from tests.train.models import smollm2, tokenizer_folder
from tests.train.rescoring import Rescorer


class Real:
    """One real model and its versions."""

    def __init__(self, folder: Path) -> None:
        """Everything is kept in the folder, as a model's own."""
        self.gguf = smollm2()
        self.folder = tokenizer_folder(self.gguf, folder)
        self.rescorer = Rescorer(self.gguf)
        self.rescorer.model.save_pretrained(folder)
        self.renderer = Renderer(self.folder)
        self.engine = LocalEngine(self.folder, self.renderer.backend, seed=1)
        self.weights = {
            0: self.rescorer.own,
            1: self.rescorer.disturbed(1),
            2: self.rescorer.disturbed(2),
        }
