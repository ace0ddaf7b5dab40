"""Names of models and their architectures are two forms of one thing, and a bad name is pointed at where it is bad."""

import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concretely.notation import Architecture, Layer, Link, parse

H, V = Layer(200, observed=False), Layer(784, observed=True)

PAPER = [  # as typeset, in the order the paper has them
    ("(200V–200H∼784V)", 2, "200V-200H~784V"),
    ("(200H – 784V)", 2, "200H-784V"),
    ("(200H– 200H– 784V)", 2, "200H-200H-784V"),
    ("(200H∼784V)", 2, "200H~784V"),
    ("(200H∼200H∼784V)", 2, "200H~200H~784V"),
    ("(392V--240H--240H--392V)", 2, "392V-240H-240H-392V"),
    ("(392V--240H--240H--240H--392V)", 8, "392V-240H:8-240H:8-240H:8-392V"),
    ("(240H∼784V)", 4, "240H:4~784V"),
    ("(240H∼240H∼784V)", 8, "240H:8~240H:8~784V"),
]


@st.composite
def latent_layers(draw: st.DrawFn) -> Layer:
    bits = draw(st.integers(1, 29))
    return Layer(bits * draw(st.integers(1, 999_999_999 // bits)), observed=False, arity=2**bits)


OBSERVED = st.integers(1, 999_999_999).map(lambda units: Layer(units, observed=True))


@st.composite
def parts(draw: st.DrawFn) -> tuple[tuple[Layer, ...], tuple[Link, ...]]:
    """The layers and links of an architecture, for the test to join: checks of types draw lots, strategies must not."""
    context = draw(st.lists(OBSERVED, max_size=1))
    layers = (*context, *draw(st.lists(latent_layers(), min_size=1, max_size=4)), draw(OBSERVED))
    links: list[Link] = draw(st.lists(st.sampled_from(["-", "~"]), min_size=len(layers) - 1, max_size=len(layers) - 1))
    return layers, tuple(links)


@st.composite
def spellings(draw: st.DrawFn, name: str) -> str:
    """Another way to write a name: other dashes, tildes and case, spaces between the tokens, parentheses around."""
    variants = {"-": ["-", "--", "---", "‐", "–", "—", "−"], "~": ["~", "∼"], "H": ["H", "h"], "V": ["V", "v"]}
    pieces = [draw(st.sampled_from(variants.get(character, [character]))) for character in name]
    if draw(st.booleans()):
        pieces = ["(", *pieces, ")"]
    for index in reversed(range(len(pieces) + 1)):
        if not "".join(pieces[index - 1 : index + 1]).isdigit() or index in (0, len(pieces)):
            pieces.insert(index, draw(st.sampled_from(["", "", " ", "  ", "\t", "\n"])))
    return "".join(pieces)


seeking = settings(deadline=None, max_examples=200, derandomize=True, database=None)


@seeking
@given(parts=parts(), data=st.data())
def test_every_spelling_of_an_architecture_is_read_as_that_architecture(
    parts: tuple[tuple[Layer, ...], tuple[Link, ...]], data: st.DataObject
) -> None:
    architecture = Architecture(*parts)
    name = str(architecture)
    assert parse(name) == architecture
    assert parse(data.draw(spellings(name))) == architecture


@pytest.mark.parametrize(("typeset", "arity", "name"), PAPER)
def test_names_of_the_paper_are_read_and_written_canonically(typeset: str, arity: int, name: str) -> None:
    assert str(parse(typeset, arity=arity)) == name
    assert str(parse(name)) == name


def test_parts_of_an_architecture_are_those_of_its_name() -> None:
    density, prediction = parse("240H:8-200H~784V"), parse("392V-240H-100H-400V")
    assert density.latent == (Layer(240, observed=False, arity=8), H)
    assert (density.context, density.observed, density.nonlinear) == (None, V, True)
    assert prediction.latent == (Layer(240, observed=False), Layer(100, observed=False))
    assert (prediction.context, prediction.observed) == (Layer(392, observed=True), Layer(400, observed=True))
    assert not prediction.nonlinear
    assert (density.links, prediction.links) == (("-", "~"), ("-", "-", "-"))


def test_nodes_of_a_layer_share_out_its_units() -> None:
    layers = [Layer(240, observed=False, arity=arity) for arity in (2, 4, 8, 16)]
    assert [(layer.bits, layer.groups) for layer in layers] == [(1, 240), (2, 120), (3, 80), (4, 60)]


def test_arity_is_for_the_latent_layers_without_one_of_their_own() -> None:
    assert str(parse("392V-240H-240H:2-240H:4-392V", arity=8)) == "392V-240H:8-240H-240H:4-392V"
    assert parse("784V:2-10H-784V") == parse("784V-10H:2-784V")  # said, though it goes without saying


def test_zeros_in_front_are_of_no_account() -> None:
    assert str(parse("0" * 5000 + "200H-0784V")) == "200H-784V"


SYNTAX = [
    ("", 1, "notation must have a layer such as 200H, got nothing"),
    ("   ", 4, "notation must have a layer such as 200H, got nothing"),
    ("H-784V", 1, "notation must have a layer such as 200H, got 'H'"),
    ("200H-x-784V", 6, "notation must have a layer such as 200H, got 'x'"),
    ("200H -- x", 9, "notation must have a layer such as 200H, got 'x'"),
    ("200H----784V", 8, "notation must have a layer such as 200H, got '-'"),
    ("200H~-784V", 6, "notation must have a layer such as 200H, got '-'"),
    ("200H-784V-", 11, "notation must have a layer such as 200H, got nothing"),
    ("-5H-784V", 1, "notation must have a layer such as 200H, got '-'"),
    ("((200H-784V))", 2, "notation must have a layer such as 200H, got '('"),
    ("٢H-784V", 1, "notation must have a layer such as 200H, got '٢'"),
    ("200X-784V", 4, "notation must have H or V after the units, got 'X'"),
    ("200-784V", 4, "notation must have H or V after the units, got '-'"),
    ("20 0H-784V", 4, "notation must have H or V after the units, got '0'"),
    ("200H-784", 9, "notation must have H or V after the units, got nothing"),
    ("200H 784V", 6, "notation must have a link - or ~, got '784'"),
    ("200H=784V", 5, "notation must have a link - or ~, got '='"),
    (r"200H\sim784V", 5, r"notation must have a link - or ~, got '\\'"),
    ("200H-784V)", 10, "notation must have a link - or ~, got ')'"),
    ("200H " + "7" * 5000, 6, "notation must have a link - or ~, got '777777777777...7777777777777'"),
    ("(200H-784V", 11, "notation must have a link - or ~, or the closing ), got nothing"),
    ("(200H 784V)", 7, "notation must have a link - or ~, or the closing ), got '784'"),
    ("(200H-784V) ~ 2H", 13, "notation must have nothing after the closing ), got '~'"),
    ("240H:-784V", 6, "notation must have an arity such as 8 after the colon, got '-'"),
    ("240H:x-784V", 6, "notation must have an arity such as 8 after the colon, got 'x'"),
]
MEANING = [
    ("0H-784V", 1, "units must be positive, got 0"),
    ("(200H -- 0V)", 10, "units must be positive, got 0"),
    ("1000000000H-784V", 1, "units must be at most 999999999, got more"),
    ("200H-" + "9" * 5000 + "V", 6, "units must be at most 999999999, got more"),
    ("200H:" + "8" * 5000 + "-784V", 6, "arity must be at most 999999999, got more"),
    ("240H : 6-784V", 8, "arity must be a power of two, at least 2, got 6"),
    ("240H:1-784V", 6, "arity must be a power of two, at least 2, got 1"),
    ("240H:0-784V", 6, "arity must be a power of two, at least 2, got 0"),
    ("240H-200H:8-784V", 6, "units must be a multiple of 3 to form nodes of arity 8, got 200"),
    ("200H-784V:4", 11, "arity of an observed layer must be 2, got 4"),
    ("200H", 1, "architecture must have at least two layers, such as 200H-784V, got 1"),
    ("200h – 784v – 784v", 8, "layers between the first and the last must be latent, such as 200H, got 784V"),
    ("784V---200H", 8, "last layer must be observed, such as 784V, got 200H"),
    (" 392V-784V", 2, "architecture must have a latent layer, such as 200H, got observed ones only"),
]


@pytest.mark.parametrize(
    ("text", "column", "sentence"), [*SYNTAX, *MEANING], ids=[text[:20] for text, _, _ in [*SYNTAX, *MEANING]]
)
def test_bad_name_is_pointed_at_where_it_is_bad(text: str, column: int, sentence: str) -> None:
    with pytest.raises(ValueError, match="at column") as caught:
        parse(text)
    assert str(caught.value) == f"{sentence} at column {column}\n{text}\n{' ' * (column - 1)}^"


def test_tabs_and_line_breaks_do_not_move_the_caret() -> None:
    with pytest.raises(ValueError, match="at column") as caught:
        parse("200H\t-\n784X")
    assert str(caught.value) == (
        "notation must have H or V after the units, got 'X' at column 11\n200H - 784X\n          ^"
    )


def test_units_that_the_arity_does_not_divide_are_pointed_at() -> None:
    with pytest.raises(ValueError, match="at column") as caught:
        parse("240H~200H~784V", arity=8)
    assert str(caught.value) == (
        "units must be a multiple of 3 to form nodes of arity 8, got 200 at column 6\n240H~200H~784V\n     ^"
    )


PIECES = ["200H", "240h:8", "784V", "-", "--", "~", "–", ":4", ":3", "(", ")", " ", "\t", "\n", "0", "9" * 10, "V", "x"]


@seeking
@given(text=st.lists(st.sampled_from(PIECES), max_size=9).map("".join))
def test_any_text_is_read_or_pointed_at(text: str) -> None:
    try:
        name = str(parse(text))
    except ValueError as error:
        sentence, shown, caret = str(error).split("\n")
        column = int(sentence.rpartition(" at column ")[2])
        assert shown.split() == text.split()
        assert caret == " " * (column - 1) + "^"
        assert column == len(text) + 1 or not text[column - 1].isspace()
    else:
        assert str(parse(name)) == name


CALLS: list[tuple[Callable[[], object], str]] = [
    (lambda: parse("240H:8-784V", arity=6), "arity must be a power of two, at least 2, got 6"),
    (lambda: parse("240H-784V", arity=0), "arity must be a power of two, at least 2, got 0"),
    (lambda: parse("240H-784V", arity=2**5000), "arity must be at most 999999999, got more"),
    (lambda: Layer(0, observed=True), "units must be positive, got 0"),
    (lambda: Layer(10**5000, observed=True), "units must be at most 999999999, got more"),
    (lambda: Layer(240, observed=False, arity=-8), "arity must be a power of two, at least 2, got -8"),
    (
        lambda: Layer(200, observed=False, arity=8),
        "units must be a multiple of 3 to form nodes of arity 8, got 200",
    ),
    (lambda: Layer(784, observed=True, arity=4), "arity of an observed layer must be 2, got 4"),
    (lambda: Architecture((), ()), "architecture must have at least two layers, such as 200H-784V, got 0"),
    (lambda: Architecture((V,), ()), "architecture must have at least two layers, such as 200H-784V, got 1"),
    (
        lambda: Architecture((H, V, V), ("-", "-")),
        "layers between the first and the last must be latent, such as 200H, got 784V",
    ),
    (lambda: Architecture((V, H), ("-",)), "last layer must be observed, such as 784V, got 200H"),
    (
        lambda: Architecture((V, V), ("-",)),
        "architecture must have a latent layer, such as 200H, got observed ones only",
    ),
    (lambda: Architecture((H, V), ("-", "~")), "links must be one fewer than the 2 layers, got 2"),
    (lambda: Architecture((H, V), ()), "links must be one fewer than the 2 layers, got 0"),
]


@pytest.mark.parametrize(("call", "sentence"), CALLS, ids=[sentence for _, sentence in CALLS])
def test_bad_value_gets_one_sentence(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ValueError, match="must") as caught:
        call()
    assert str(caught.value) == sentence


TYPES: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: parse(784), TypeError, "notation must be a string, got int"),
    (lambda: parse(None), TypeError, "notation must be a string, got NoneType"),
    (lambda: parse(b"200H-784V"), TypeError, "notation must be a string, got bytes"),
    (lambda: parse("200H-784V", arity="8"), TypeError, "arity must be an integer, got str"),
    (lambda: parse("200H-784V", arity=2.0), TypeError, "arity must be an integer, got float"),
    (lambda: Layer(200.0, observed=False), TypeError, "units must be an integer, got float"),
    (lambda: Layer(True, observed=False), TypeError, "units must be an integer, got bool"),
    (lambda: Layer(200, "H"), TypeError, "observed must be True or False, got str"),
    (lambda: Architecture([H, V], ("-",)), TypeError, "layers and links must be tuples, got list and tuple"),
    (lambda: Architecture((H, V), "-"), TypeError, "layers and links must be tuples, got tuple and str"),
    (lambda: Architecture((H, V), ("=",)), ValueError, "links must be '-' or '~', got '=' at index 0"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("call", "error", "sentence"), TYPES, ids=[sentence for _, _, sentence in TYPES])
def test_value_of_another_type_gets_one_sentence(
    call: Callable[[], object], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == sentence


def test_notation_is_read_without_torch() -> None:
    program = "import sys, concretely.notation; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
