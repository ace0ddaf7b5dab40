"""The command as a user calls it, without a process of its own."""

import re
import subprocess
import sys

from typer.testing import CliRunner

from concretely.cli import app
from concretely.experiment import paper


def call(*arguments: str) -> tuple[int, str, str]:
    """The exit code, and the two streams without colours."""
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    plain = (re.sub(r"\x1b\[[0-9;]*m", "", text) for text in (result.stdout, result.stderr))
    return result.exit_code, *plain


def modules_after(*arguments: str) -> set[str]:
    """The modules that a fresh interpreter has imported once the command is done."""
    program = (
        "import sys; from concretely.cli import app; app(sys.argv[1:], standalone_mode=False); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def lines(stdout: str) -> list[list[str]]:
    """The words of every line of cells that `reproduce` shows of a small table."""
    return [line.split() for line in stdout.splitlines() if line.startswith((" 6H", " 32V"))]


def change(old: str, new: str) -> None:
    """Change the small table from which `reproduce` takes its cells."""
    table = paper.FOLDER / "tiny.toml"
    assert old in table.read_text()
    table.write_text(table.read_text().replace(old, new))
