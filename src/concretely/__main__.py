"""The command `concretely`, also as `python -m concretely`."""

import codecs
import io
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

PLAIN = {"±": "+/-", "−": "-", "–": "-", "…": "...", "×": "x", "λ": "lambda", "α": "alpha", "∞": "inf"}
"""What is printed for a character that the encoding of a stream does not have. Others are escaped."""
WAIT = 30
"""The seconds that other ranks give the first one to print what is wrong with the flags."""


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
    """Run the command as a rank other than the first, which alone prints what is wrong with the flags."""
    try:
        code = app(prog_name="concretely", standalone_mode=False)
    except Exception as error:
        if not hasattr(error, "format_message"):  # as the errors of click have, of which typer has a copy
            raise
        time.sleep(WAIT)  # torchrun ends all ranks with the first that ends, which must not be this one
        sys.exit(getattr(error, "exit_code", 2))
    sys.exit(code if isinstance(code, int) else 0)


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that cannot be encoded."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = error.object[error.start : error.end]
    return "".join(PLAIN.get(each) or each.encode("unicode_escape").decode("ascii") for each in found), error.end


if __name__ == "__main__":
    main()
