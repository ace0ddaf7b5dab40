"""The command line interface, one file for each verb.

Torch and matplotlib are imported only when a verb runs, so that `--help` is fast.
"""

from inspect import getdoc
from typing import Annotated

import typer

from .. import __version__
from . import cite, compare, evaluate, figure, reproduce, sample, study, sweep, train
from .terminal import guarded

app = typer.Typer(
    help="Train, evaluate and compare models with discrete latent variables.",
    epilog=train.EXAMPLE,
    no_args_is_help=True,
    add_completion=False,
)
for verb in (train, evaluate, compare, sample, study, sweep):
    app.command(epilog=verb.EXAMPLE, no_args_is_help=True)(getattr(verb, verb.__name__.rpartition(".")[2]))
app.command(epilog=reproduce.EXAMPLE)(reproduce.reproduce)
app.add_typer(figure.app, name="figure")
app.command(epilog=cite.EXAMPLE)(cite.cite)
for command in (*app.registered_commands, *figure.app.registered_commands):
    assert command.callback is not None
    paragraphs = (getdoc(command.callback) or "").split("\n\n")
    command.help = "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)  # typer keeps line breaks
    command.callback = guarded(command.callback)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"concretely {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...
