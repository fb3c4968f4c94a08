"""The README's snippet of each framework runs as it stands there."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.trainer.converters import published
from tests.trainer.converters.given import forked

README = (Path(__file__).parents[3] / "README.md").read_text()


class Taken:
    """Stands for what only the framework has: it takes what it is given."""

    def __init__(self, *given: Any, **fields: Any) -> None:
        self.given, self.fields = given, fields

    @classmethod
    def from_dict(cls, *given: Any, **fields: Any) -> "Taken":
        return cls(*given, **fields)


def test_every_line_of_it_runs() -> None:
    (section,) = re.findall(r"^## Frameworks\n(.*?)^## ", README, re.MULTILINE | re.DOTALL)
    (snippet,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    tinker = published.tinker()
    names: dict[str, Any] = {
        "batch": SimpleNamespace(rows=forked()),
        "rows_by_group": [forked()],
        "step": 7,
        "Sample": Taken,
        "DataProto": Taken,
        "TrainingSample": Taken,
        "list_of_dict_to_tensordict": Taken,
        "concat_padded_tensors": list,
        "tq": SimpleNamespace(kv_batch_put=Taken),
        "RolloutSample": published.trl_sample(),
        "Datum": tinker.Datum,
        "ModelInput": tinker.ModelInput,
        "TrajectoryID": published.skyrl().TrajectoryID,
    }
    exec(snippet, names)
    assert len(names["rollouts"]) == len(names["examples"]) == len(names["records"]) == 3
    assert published.atropos_data()(**names["scored"][0]).tokens[0] == list(range(10, 18))
