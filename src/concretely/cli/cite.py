"""`concretely cite`: BibTeX entries."""

import re
from importlib import resources
from typing import Annotated

import typer

from .. import __version__
from .terminal import require_known, show_text

EXAMPLE = "Example: concretely cite mnih2016variational"

SOFTWARE = f"""@misc{{concretely,
  title  = {{concretely}},
  author = {{{{The concretely developers}}}},
  note   = {{Version {__version__}}}
}}"""


def cite(
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY", help="Keys of the bibliography.", show_default="this software and the paper"),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List all keys and titles.")] = False,
) -> None:
    """Print BibTeX entries of this software and the paper, or of other references in the documentation."""
    known = entries()
    for key in keys or ():
        require_known("key", key, known)
    wanted = dict.fromkeys(keys or (known if listed else ("concretely", "maddison2017concrete")))
    if listed:
        width = max(map(len, wanted))
        show_text("\n".join(f"{key:{width}}  {_title(known[key])}" for key in wanted))
    else:
        show_text("\n\n".join(known[key] for key in wanted))


def entries() -> dict[str, str]:
    """Return the entries of the bibliography by key, with the entry of this software first."""
    text = (resources.files("concretely") / "references.bib").read_text(encoding="utf-8")
    matches = re.finditer(r"^@\w+\{(\w+),.*?^\}", text, re.MULTILINE | re.DOTALL)
    return {"concretely": SOFTWARE, **{entry[1]: entry[0] for entry in matches}}


def _title(entry: str) -> str:
    (title,) = re.findall(r"^ *title *= *\{(.*)\}", entry, re.MULTILINE)
    return re.sub(r"[{}]", "", title)
