"""The command `concretely`, also as `python -m concretely`."""

import codecs
import io
import sys

PLAIN = {"±": "+/-", "−": "-", "–": "-", "…": "...", "×": "x", "λ": "lambda", "α": "alpha", "∞": "inf"}
"""What is printed for a character that the encoding of a stream does not have. Others are escaped."""


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
    app(prog_name="concretely")


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that cannot be encoded."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = error.object[error.start : error.end]
    return "".join(PLAIN.get(each) or each.encode("unicode_escape").decode("ascii") for each in found), error.end


if __name__ == "__main__":
    main()
