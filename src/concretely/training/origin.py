"""Signatures of the runs of own models that this user has trained on this machine.

The folder of such a run names the function that builds its model. Whoever made the folder chose that name and the
arguments, so calling the function may execute their code. It is called only if the run was trained here, as a signature
with a key of the user shows. Otherwise, the caller names the function, which then may also have moved.
"""

import hashlib
import hmac
import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from ..file import read_bytes, write_text
from .own_recipe import OwnRecipe

SCRIPT = "__main__:"
"""The start of the names of functions in a script or a notebook."""
FILE = ".origin"
"""The file of a signature in the folder of its run."""
SIZE = 32
"""The number of bytes of a key."""


def sign_run(folder: Path, recipe: OwnRecipe) -> None:
    """Mark a run as trained here. Without a place for the key, do nothing: the caller then has to name the function."""
    with suppress(OSError, RuntimeError):
        write_text(folder / FILE, _signature(_key(), recipe))


def require_named(folder: Path, recipe: OwnRecipe, name: str | None) -> None:
    """Raise an error unless a run was trained here, or the caller names a function that builds its model.

    That may have another name than in the recipe, as it is called only because the caller named it.
    """
    if name is None and not _is_signed(folder, recipe):
        name = "file.py:build" if recipe.model.startswith(SCRIPT) else recipe.model
        why = f"{str(folder)!r} was not trained here, and calls {recipe.model!r} to build its model"
        todo = f"pass its name, such as {name!r}, as model to load, as --model, or as first argument to train"
        raise ValueError(f"{why}: to allow that, {todo}")


def _is_signed(folder: Path, recipe: OwnRecipe) -> bool:
    try:
        signature = read_bytes(folder / FILE, most=2 * hashlib.sha256().digest_size)
        return hmac.compare_digest(signature, _signature(_key(), recipe).encode())
    except (OSError, ValueError, RuntimeError):  # a RuntimeError without a home
        return False


def _signature(key: bytes, recipe: OwnRecipe) -> str:
    named = json.dumps([recipe.model, dict(recipe.arguments)], sort_keys=True, default=repr)
    return hmac.new(key, named.encode(), hashlib.sha256).hexdigest()


def _key() -> bytes:
    """Return the key of this user, which is created if needed."""
    path = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "concretely" / "key"
    with suppress(FileNotFoundError):
        return read_bytes(path, most=SIZE)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with TemporaryDirectory(dir=path.parent) as folder:
        new = Path(folder, path.name)
        new.touch(mode=0o600)
        new.write_bytes(secrets.token_bytes(SIZE))
        with suppress(FileExistsError):  # another process was faster
            os.link(new, path)
    return read_bytes(path, most=SIZE)
