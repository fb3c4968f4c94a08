"""The table of planted errors: what a tired hand might write, one slip a row.

    name -> (exact old text, new text), grouped by file

Each old text stands exactly once in its file, so the table cannot rot unnoticed. An error that
no input can show is not here: `<` for `<=` where both sides lead to the same place.
"""

from tests.mutants.group_errors import GROUP_ERRORS
from tests.mutants.life_errors import LIFE
from tests.mutants.mutant import Mutant
from tests.mutants.sample_errors import SAMPLES
from tests.mutants.tree_errors import TREE

PLANTED: tuple[Mutant, ...] = TREE + SAMPLES + LIFE + GROUP_ERRORS
