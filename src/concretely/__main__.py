"""The command as `python -m concretely`."""

from .cli import app

if __name__ == "__main__":
    app(prog_name="concretely")
