"""CONTRIBUTING names what exists."""

import importlib
import re
from pathlib import Path

import pytest

import concretely

ROOT = Path(__file__).parent.parent
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`((?:\w+[./])+\w*)[`(]", CONTRIBUTING))))
def test_files_and_functions_for_contributors_exist_and_are_public(name: str) -> None:
    if "/" in name or name.endswith((".py", ".md")):
        places = (ROOT, ROOT / "src", ROOT / "src" / "concretely", ROOT / "src" / "concretely" / "distribution")
        assert any((place / name).exists() for place in places)
        return
    *module, last = name.split(".")
    assert not last.startswith("_")
    if module == ["Estimate"]:
        assert hasattr(concretely.Estimate, last)
    else:
        path = module if module[0] == "tests" else ["concretely", *module]
        assert hasattr(importlib.import_module(".".join(path)), last)
