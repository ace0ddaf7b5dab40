"""Where downloaded data live."""

import os
from pathlib import Path

from .need import need


def folder() -> Path:
    """The folder that `CONCRETELY_DATA` names, or else the one for caches of this user; it may not exist yet."""
    if named := os.environ.get("CONCRETELY_DATA"):
        try:
            return Path(named).expanduser().absolute()
        except RuntimeError as error:
            raise ValueError(f"CONCRETELY_DATA must name a folder, got {named!r} of an unknown user") from error
    platformdirs = need("platformdirs", "platformdirs", what="a data folder that CONCRETELY_DATA does not name")
    return Path(platformdirs.user_cache_path("concretely"))
