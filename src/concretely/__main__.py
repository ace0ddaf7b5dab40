"""The command `concretely`, also as `python -m concretely`."""

import codecs
import io
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

PLAIN = {"±": "+/-", "−": "-", "–": "-", "…": "...", "×": "x", "λ": "lambda", "α": "alpha", "∞": "inf"}
"""Replacements for characters that a stream cannot encode. All other such characters are escaped."""
WAIT = 30
"""Seconds that other ranks wait for rank 0 to print errors about the flags."""


def main() -> None:
    """Run the command, or print how to install the packages that it needs."""
    codecs.register_error("concretely.plain", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="concretely.plain")
    try:
        from .cli import app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == __package__:
            raise
        from .environment import install_command

        sys.exit(f"the command needs {error.name}, which is not installed: {install_command('command')}")
    if os.environ.get("RANK", "0") != "0" and {"LOCAL_RANK", "WORLD_SIZE"} <= os.environ.keys():
        _run_later_rank(app)
    app(prog_name="concretely")


def _run_later_rank(app: Callable[..., Any]) -> NoReturn:
    """Run the command as a rank other than rank 0. Only rank 0 prints errors about the flags."""
    try:
        code = app(prog_name="concretely", standalone_mode=False)
    except Exception as error:
        if not hasattr(error, "format_message"):  # all errors of click, or of the copy in typer, have it
            raise
        time.sleep(WAIT)  # torchrun stops all ranks when one exits, so rank 0 must exit first
        sys.exit(getattr(error, "exit_code", 2))
    sys.exit(code if isinstance(code, int) else 0)


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that cannot be encoded."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(PLAIN.get(sign) or sign.encode("unicode_escape").decode("ascii") for sign in text), error.end


if __name__ == "__main__":
    main()
