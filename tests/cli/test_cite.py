"""What to cite is what the package and its documentation say."""

import re
from pathlib import Path

from concretely import __version__
from concretely.cli.cite import entries

from .command import call

ROOT = Path(__file__).parents[2]


def field(entry: str, name: str) -> str:
    """A field of an entry of BibTeX, without braces."""
    (found,) = re.findall(rf"^ *{name} *= *\{{(.*)\}},?$", entry, re.MULTILINE)
    return found.strip("{}")


def test_the_software_and_the_paper_are_printed_without_a_key() -> None:
    code, stdout, stderr = call("cite")
    assert (code, stderr) == (0, "")
    known = entries()
    assert stdout == f"{known['concretely']}\n\n{known['maddison2017concrete']}\n"


def test_the_entries_agree_with_the_citation_file_and_the_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    software, paper = entries()["concretely"], entries()["maddison2017concrete"]
    assert f"\ntitle: {field(software, 'title')}\n" in citation
    assert f"\n  - name: {field(software, 'author')}\n" in citation
    assert f"\nversion: {__version__}\n" in citation
    assert field(software, "note") == f"Version {__version__}"
    assert f'\n    title: "{field(paper, "title")}"\n' in citation
    assert f"\n    year: {field(paper, 'year')}\n" in citation
    assert f"\n      name: {field(paper, 'booktitle')}\n" in citation
    people = zip(re.findall(r"family-names: (.+)", citation), re.findall(r"given-names: (.+)", citation), strict=True)
    assert field(paper, "author") == " and ".join(f"{family}, {given}" for family, given in people)


def test_keys_choose_entries_in_their_order_once_each() -> None:
    keys = ["mnih2016variational", "concretely", "jang2017categorical", "concretely"]
    code, stdout, stderr = call("cite", *keys)
    assert (code, stderr) == (0, "")
    assert re.findall(r"^@\w+\{(\w+),$", stdout, re.MULTILINE) == keys[:3]


def test_every_entry_of_the_bibliography_is_known_to_the_letter() -> None:
    text = (ROOT / "src" / "concretely" / "references.bib").read_text()
    (software, *cited) = entries().values()
    assert "\n\n".join(cited) + "\n" == text
    assert software.startswith("@misc{concretely,")


def test_the_list_has_a_line_for_each_entry() -> None:
    code, stdout, _ = call("cite", "--list")
    assert code == 0
    assert [line.split()[0] for line in stdout.splitlines()] == list(entries())
    titles = dict(line.split(maxsplit=1) for line in stdout.splitlines())
    assert titles["kool2019buy"] == "Buy 4 REINFORCE Samples, Get a Baseline for Free!"
    assert len({line.index(titles[line.split()[0]]) for line in stdout.splitlines()[1:]}) == 1  # one column


def test_an_unknown_key_gets_the_nearest_one_and_prints_nothing_else() -> None:
    sentence = "unknown key 'madison2017concrete'; did you mean 'maddison2017concrete'?\n"
    assert call("cite", "concretely", "madison2017concrete") == (2, "", sentence)
