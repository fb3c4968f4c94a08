"""`turnstream doctor`: what would go wrong, before it does.

Invariant: it changes nothing, ends within its timeouts, and says what to change wherever it says
that something failed; exit code 1 if anything did.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

import click

from streams.cli.doctor.finding import Finding, note, table
from streams.cli.doctor.installation import installation

_LATER = {
    "streams.cli.doctor.records": "records",
    "streams.cli.doctor.places": "log and ports",
    "streams.cli.doctor.tokenizer": "tokenizer",
    "streams.cli.doctor.engine": "engine",
}


@click.command()
@click.option(
    "--tokenizer",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="The one that the gateway is to use.",
)
@click.option(
    "--log",
    metavar="LOG",
    help="`kafka`, or the file of an embedded log; else TURNSTREAM_LOG, else the log of `up` here.",
)
@click.option(
    "--engine",
    metavar="URL",
    help="Of SGLang or vLLM; some tokens are sampled. `sglang:URL` or `vllm:URL` says which it is.",
)
@click.option(
    "--serving-template",
    is_flag=True,
    help="Print the template to serve the model with after training, and do no more.",
)
def doctor(
    tokenizer: Path | None, log: str | None, engine: str | None, serving_template: bool
) -> None:
    """Check installation, log, ports, tokenizer and engine; say what to change.

    Exit code 1 if anything failed. Settings come from TURNSTREAM_* variables.
    """
    if serving_template:
        _print_template(tokenizer)
        return
    findings = installation()
    # What is below needs our own packages; where others stand in their place it cannot be loaded.
    sound = all(finding.state != "FAIL" for finding in findings)
    for name, what in _LATER.items():
        if not sound:
            if what != "engine" or engine is not None:
                findings.append(note(what, "not tried: the installation comes first"))
            continue
        module: Any = importlib.import_module(name)
        found: list[Finding] = module.findings(tokenizer=tokenizer, log=log, engine=engine)
        findings += found
    click.echo(table(findings))
    sys.exit(any(finding.state == "FAIL" for finding in findings))


def _print_template(tokenizer: Path | None) -> None:
    if tokenizer is None:
        click.echo("turnstream: --serving-template: give --tokenizer FOLDER too", err=True)
        sys.exit(1)
    module: Any = importlib.import_module("streams.cli.doctor.tokenizer")
    errors: Any = importlib.import_module("streams.errors")
    try:
        click.echo(module.serving_template(tokenizer), nl=False)
    except errors.BadSetting as error:
        click.echo(f"turnstream: {error}", err=True)
        sys.exit(1)
