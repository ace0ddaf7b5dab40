"""Graphviz source says what ran: its nodes, its arrows, how each value was made, and the values."""

import re
import shutil
import subprocess
from collections.abc import Callable
from xml.etree import ElementTree

import pytest
import torch
from torch.distributions import Distribution, Normal

from concretely import Bernoulli, BinaryConcrete, Concrete, HypercubeConcrete, Trace, mode, run
from concretely.report.anatomy import GROUND
from concretely.report.dot import to_dot
from concretely.report.style import PALE

from .example import LOGITS, MASSES, ODD, TRACES, chain, detour, diamond, diverged, variable

STEPS = {
    "Bernoulli": ("L", "step", "sigmoid( · / {} )"),
    "OneHotCategorical": ("G", "argmax", "softmax( · / {} )"),
    "Hypercube": ("G", "C argmax", "C softmax( · / {} )"),
    "binary Hypercube": ("L", "2 step − 1", "2 sigmoid( · / {} ) − 1"),
}


class Source:
    """Graphviz source, taken apart."""

    def __init__(self, trace: Trace) -> None:
        self.text = to_dot(trace)
        lines = [line.strip() for line in self.text.splitlines()]
        self.parts = {m[1]: m[2] for line in lines if (m := re.fullmatch(r"(n\d\w+) \[(.*)\]", line))}
        self.edges = {(m[1], m[2]): m[3] or "" for line in lines if (m := re.fullmatch(r"(\w+) -> (\w+)( .*)?", line))}
        self.labels = {part: m[1] for part, look in self.parts.items() if (m := re.search(r'label="(.*)"', look))}
        self.names = list(trace)

    @property
    def parents(self) -> dict[str, set[str]]:
        """The nodes whose state points to a node."""
        owner = {part: self.names[int(part[1:].split("_")[0])] for part in self.parts}
        found: dict[str, set[str]] = {name: set() for name in self.names}
        for source, target in self.edges:
            if owner[source] != owner[target]:
                assert source.endswith("_state")
                found[owner[target]].add(owner[source])
        return found

    def shades(self, node: int) -> list[float]:
        """The brightness of the cells of a state."""
        greys = re.findall(r'HEIGHT="\d+" BGCOLOR="#(..)\1\1"', self.parts[f"n{node}_state"])
        return [int(grey, 16) / 255 for grey in greys]


@pytest.mark.parametrize("trace", TRACES.values(), ids=TRACES)
def test_the_source_is_well_formed_and_its_arrows_join_parts_that_it_has(trace: Callable[[], Trace]) -> None:
    source = Source(trace())
    bare = re.sub(r'"(\\.|[^"\\])*"', "", source.text)
    for left, right in ("{}", "[]", "<>"):
        assert bare.replace("->", "").count(left) == bare.replace("->", "").count(right)
    assert source.edges
    assert {part for edge in source.edges for part in edge} == set(source.parts)
    for look in source.parts.values():
        if table := re.search(r"label=<(<.*>)>", look):
            ElementTree.fromstring(table[1])
    if shutil.which("dot"):
        subprocess.run(["dot", "-Tsvg"], input=source.text.encode(), check=True, capture_output=True)


@pytest.mark.parametrize("trace", TRACES.values(), ids=TRACES)
def test_the_arrows_of_the_source_come_from_the_parents(trace: Callable[[], Trace]) -> None:
    drawn = trace()
    assert Source(drawn).parents == {name: set(parents) for name, parents in drawn.parents.items()}


def test_the_parents_of_a_diamond_are_its_two_sides() -> None:
    assert Source(run(diamond, mode=mode.Discrete())).parents == {"a": set(), "b": set(), "c": {"a", "b"}}


@pytest.mark.parametrize("name", MASSES)
@pytest.mark.parametrize(
    ("meaning", "hard", "soft"),
    [
        (mode.Discrete(), True, False),
        (mode.Enumerate(), True, False),
        (mode.Relaxed(0.5), False, True),
        (mode.Relaxed(0.5, scored_by="mass"), False, True),
        (mode.Relaxed(1e-9), False, True),
        (mode.Surrogate(), True, True),
        (mode.Surrogate(0.5), True, True),
    ],
)
def test_a_node_shows_what_its_mode_does(name: str, meaning: mode.Mode, hard: bool, soft: bool) -> None:
    source = Source(run(lambda draw: draw("X", MASSES[name]()), mode=meaning))
    noise, step, relaxed = STEPS[name]
    looks = {source.labels[part]: source.parts[part] for part in source.parts if "_step_" in part}
    assert list(looks) == [step] * hard + [relaxed.format("λ")] * soft
    assert all(("rounded" in look) == (label != step) for label, look in looks.items())
    assert ("ROUNDED" in source.parts["n0_state"]) == (not hard)
    lent = {edge for edge, look in source.edges.items() if "dashed" in look}
    assert any(target == "n0_state" for _, target in lent) == (hard and soft)
    assert sum(label.startswith(noise) for label in source.labels.values()) == MASSES[name]().logits.numel()


@pytest.mark.parametrize(
    ("law", "text"),
    [
        (lambda: BinaryConcrete(logits=LOGITS[0], temperature=0.5), "sigmoid( · / 1/2 )"),
        (lambda: Concrete(logits=LOGITS, temperature=2 / 3), "softmax( · / 2/3 )"),
        (lambda: Concrete(logits=LOGITS, temperature=0.0), "argmax"),
        (lambda: HypercubeConcrete(logits=LOGITS, temperature=0.05), "C softmax( · / 0.05 )"),
        (
            lambda: Concrete(logits=LOGITS[:, None].expand(4, 2), temperature=torch.tensor([1.0, 2.0, 3.0, 4.0])),
            "softmax( · / λ )",
        ),
        (lambda: Normal(LOGITS[0], 1.0), "Normal"),
    ],
)
def test_a_relaxed_variable_shows_its_temperature_and_any_other_its_name(
    law: Callable[[], Distribution], text: str
) -> None:
    source = Source(variable(law))
    assert {source.labels[part] for part in source.parts if "_step_" in part} == {text}


def test_only_noise_and_laws_without_any_are_blue() -> None:
    for trace in (run(diamond, mode=mode.Discrete()), run(chain, mode=mode.Relaxed(0.5))):
        source = Source(trace)
        blue = {source.labels[part] for part, look in source.parts.items() if PALE in look}
        assert blue
        assert all(re.fullmatch(r"[GL][₁-₉]?|Normal", label) for label in blue)


def test_an_observed_node_has_logits_and_a_state_on_grey_and_nothing_between() -> None:
    source = Source(variable(MASSES["OneHotCategorical"], observed=torch.tensor([0.0, 1.0, 0.0])))
    assert set(source.parts) == {*(f"n0_logit_0_{k}" for k in range(3)), "n0_state"}
    assert GROUND in source.parts["n0_state"]
    assert source.shades(0) == [0, 1, 0]


@pytest.mark.parametrize("samples", [None, 5])
def test_the_state_is_the_first_sample_of_the_first_data_point(samples: int | None) -> None:
    x = torch.randn(4, 8)
    trace = run(detour, x, mode=mode.Discrete(), samples=samples)
    source = Source(trace)
    for place, (name, value) in enumerate((name, each.value) for name, each in trace.items()):
        first = value[0, 0] if samples and name != "x" else value[0]
        if name == "c":
            first = (first - first.min()) / (first.max() - first.min())
        if name == "d":
            first = (1 + first) / 2
        assert source.shades(place) == pytest.approx(first.flatten().tolist(), abs=1 / 255)


def test_an_observed_value_may_have_more_units_than_its_distribution() -> None:
    source = Source(variable(lambda: Bernoulli(logits=torch.zeros(1)), observed=torch.tensor([1.0, 0.0])))
    assert source.shades(0) == [1, 0]


@pytest.mark.parametrize("name", ODD, ids=ascii)
def test_any_name_is_quoted(name: str) -> None:
    text = to_dot(run(lambda draw: draw(name, MASSES["Bernoulli"]()), mode=mode.Discrete()))
    (line,) = (line for line in text.splitlines() if " ∼ Bernoulli" in line)
    (label,) = re.findall(r'label="((?:\\.|[^"\\])*)"; color=', line)
    read = re.sub(r"\\(.)", r"\1", label).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    shown = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in name)
    assert read == f"{shown} ∼ Bernoulli"
    text.encode()


@pytest.mark.parametrize("units", [1, 40])
def test_a_state_that_has_diverged_has_no_shade(units: int) -> None:
    assert "BGCOLOR" not in to_dot(diverged(units)).replace('BGCOLOR="white"', "")


def test_a_run_without_nodes_is_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"^a run must have a node to be drawn, got none$"):
        to_dot(run(lambda draw: None, mode=mode.Discrete()))
