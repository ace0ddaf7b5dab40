"""The folder of downloaded data."""

import os
from pathlib import Path

from .need import need


def folder() -> Path:
    """Return the folder in `CONCRETELY_DATA`, by default the user's cache; it may not exist yet."""
    if named := os.environ.get("CONCRETELY_DATA"):
        try:
            return Path(named).expanduser().absolute()
        except RuntimeError as error:
            raise ValueError(f"CONCRETELY_DATA must name a folder, got {named!r} of an unknown user") from error
    platformdirs = need("platformdirs", "platformdirs", what="the default data folder")
    return Path(platformdirs.user_cache_path("concretely"))
