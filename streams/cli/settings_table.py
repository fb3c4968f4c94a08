"""The knobs as a table for people, out of the source that defines them.

Invariant: every knob has a row, with its default and its reason.
"""

import ast
import dataclasses
import inspect

from streams.settings import PREFIX, Settings


def settings_table() -> str:
    """The knobs as a Markdown table, in the order they stand here."""
    reasons = _reasons()
    rows = ["| variable | default | meaning |", "| --- | --- | --- |"]
    for field in dataclasses.fields(Settings):
        default = "" if field.default is None else f"`{field.default}`"
        reason = reasons[field.name].replace("|", "\\|")
        rows.append(f"| `{PREFIX}{field.name.upper()}` | {default} | {reason} |")
    return "\n".join(rows) + "\n"


def _reasons() -> dict[str, str]:
    """The docstring under each field; Python keeps none of them, so the source is read."""
    (tree,) = ast.parse(inspect.getsource(Settings)).body
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(field.target, ast.Name)
            found[field.target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    return found
