"""A recipe is the paper's where nothing else is said, reads back as it was written, and is never half wrong."""

import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concretely.schedule import Annealing
from concretely.training.folder import data_of
from concretely.training.own_recipe import OwnRecipe
from concretely.training.recipe import (
    BINARIZATIONS,
    ESTIMATORS,
    KEYS,
    LR_SCHEDULES,
    OPTIMIZERS,
    OWN_KEYS,
    PRESETS,
    read,
    resolve,
)

ODD = [
    'say "x".npz',
    "back\\slash.npz",
    "new\nline",
    "tab\t",
    "\x00\x1f\x7f\x80\u2028",
    "汉😀.npz",
    "'",
    "#",
    "",
    "\\u0041",
]


@pytest.mark.parametrize(
    ("notation", "lr", "weight_decay", "temperature", "prior"),
    [
        ("200H-784V", 3e-4, 0.0, 2 / 3, 1 / 2),
        ("200H~784V", 1e-4, 0.0, 2 / 3, 1 / 2),
        ("200H-200H~784V", 1e-4, 0.0, 2 / 3, 1 / 2),
        ("240H:4-784V", 3e-4, 0.0, 1.0, 2 / 3),
        ("240H:4~784V", 1e-4, 0.0, 1.0, 2 / 3),
        ("240H:8~784V", 1e-4, 0.0, 2 / 3, 2 / 5),
        ("240H:16~784V", 1e-4, 0.0, 2 / 3, 2 / 5),  # those of 8 states, the nearest
        ("240H:8-240H:4~784V", 1e-4, 0.0, 2 / 3, 1 / 2),
        ("392V-240H-240H-392V", 3e-4, 1e-3, 2 / 3, None),
        ("392V-240H~392V", 3e-4, 1e-3, 2 / 3, None),
        ("392V-240H:4-240H:4-392V", 3e-4, 1e-3, 1.0, None),
        ("392V-240H:8-240H:8-392V", 3e-4, 1e-3, 2 / 3, None),
    ],
)
def test_what_is_not_said_is_as_in_the_paper(
    notation: str, lr: float, weight_decay: float, temperature: float, prior: float | None
) -> None:
    recipe = resolve(notation=notation)
    assert (recipe.lr, recipe.weight_decay) == (lr, weight_decay)
    assert (recipe.temperature, recipe.prior_temperature) == (temperature, prior)
    assert (recipe.estimator, recipe.samples, recipe.batch, recipe.lr_schedule) == ("concrete", 1, 64, "constant")
    assert (recipe.data, recipe.steps, recipe.seed, recipe.validate, recipe.patience) == ("digits", 20_000, 0, 0, 0)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_estimator_has_the_samples_and_temperatures_that_it_needs_and_no_others(estimator: str) -> None:
    recipe = resolve(notation="200H~784V", estimator=estimator)
    assert recipe.samples == (5 if estimator in ("rloo", "vimco") else 1)
    has_temperature = estimator in ("concrete", "logistic-normal", "gumbel-softmax", "straight-through-gumbel-softmax")
    assert recipe.temperature == (2 / 3 if has_temperature else None)
    assert recipe.prior_temperature == (1 / 2 if estimator in ("concrete", "logistic-normal") else None)


def test_patience_alone_looks_fifty_times() -> None:
    assert resolve(notation="4H-6V", patience=3).validate == 400
    assert resolve(notation="4H-6V", patience="3", steps="20").validate == 1
    assert resolve(notation="4H-6V", patience=3, validate=7).validate == 7


def test_the_width_is_that_of_what_is_modelled_and_of_its_context() -> None:
    assert resolve(notation="200H~784V").width == 784
    assert resolve(notation="300V-200H-392V").width == 692


def test_text_is_read_as_the_number_it_stands_for() -> None:
    recipe = resolve(
        notation="(4h ∼ 6v)", lr="3e-4", temperature="2/3", prior_temperature="1:1/2:1e4", steps=" 1e3", seed="+7"
    )
    assert recipe == resolve(
        notation="4H~6V",
        lr=3e-4,
        temperature=2 / 3,
        prior_temperature=Annealing(1.0, 0.5, 10_000),
        steps=1000.0,
        seed=7,
    )
    assert isinstance(recipe.steps, int)
    for text in ("9007199254740993", "+9007199254740993", " 9007199254740993 "):
        assert resolve(notation="4H-6V", seed=text).seed == 2**53 + 1


def test_the_arity_becomes_part_of_the_notation_where_that_has_none() -> None:
    recipe = resolve(notation="6H-6H:8~6V", arity="4")
    assert recipe.notation == "6H:4-6H:8~6V"
    assert "arity" not in recipe.settings
    assert resolve(notation="6H~6V", arity=4) == resolve(notation="6H:4~6V")


TEMPERATURES = st.floats(1e-300, 1e300) | st.builds(
    Annealing, st.floats(1e-5, 1e5), st.floats(1e-5, 1e5), st.integers(1, 10**15)
)


@st.composite
def wished(draw: st.DrawFn) -> dict[str, Any]:
    """What any valid recipe may say."""
    estimator = draw(st.sampled_from(sorted(ESTIMATORS)))
    notation = draw(st.sampled_from(["4H-6V", "4H~6V", "6H:4-6H:8~9V", "3V-4H-2V"]))
    method = ESTIMATORS[estimator]
    patience = draw(st.integers(0, 10))
    wishes = {
        "data": st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(ODD),
        "binarize": st.sampled_from(BINARIZATIONS),
        "samples": st.integers(method.samples, 10**6),
        "steps": st.integers(1, 10**12),
        "batch": st.integers(1, 10**6),
        "lr": st.floats(0, exclude_min=True, allow_infinity=False),
        "optimizer": st.sampled_from(OPTIMIZERS),
        "lr_schedule": st.sampled_from(LR_SCHEDULES),
        "weight_decay": st.floats(0, allow_infinity=False),
        "seed": st.integers(0, 2**63 - 1),
        "validate": st.integers(1 if patience else 0, 10**6),
        "validation_samples": st.integers(1, 10**6),
    }
    if method.has_temperature:
        wishes["temperature"] = TEMPERATURES
    if estimator == "concrete" and notation != "3V-4H-2V":
        wishes["prior_temperature"] = TEMPERATURES
    given = draw(st.fixed_dictionaries({}, optional=wishes))
    if patience and given.get("validate"):
        given["patience"] = patience
    return {"notation": notation, "estimator": estimator, **given}


@given(wishes=wished())
@settings(max_examples=200, deadline=None)
def test_a_recipe_reads_back_as_it_was_written(
    wishes: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    recipe = resolve(**wishes)
    path = tmp_path_factory.getbasetemp() / "recipe.toml"
    path.write_text(recipe.toml(), encoding="utf-8")
    assert resolve(**read(path)) == recipe
    assert resolve(**recipe.settings) == recipe
    assert wishes.items() <= {field.name: getattr(recipe, field.name) for field in fields(recipe)}.items()


@pytest.mark.parametrize("data", ODD)
def test_odd_names_of_data_read_back_too(data: str, tmp_path: Path) -> None:
    recipe = resolve(notation="4H-6V", data=data)
    (tmp_path / "recipe.toml").write_text(recipe.toml(), encoding="utf-8")
    assert resolve(**read(tmp_path / "recipe.toml")) == recipe


@pytest.mark.parametrize(
    ("wishes", "sentence"),
    [
        ({"stepps": 10}, "unknown key 'stepps'; did you mean 'steps'?"),
        ({"clip": 3}, "clip must be left out for a notation, as it is for models of one's own"),
        ({"learning_rate": 1}, "unknown key 'learning_rate'; choose from 'arity', 'batch', .*, 'weight_decay', 'when'"),
        ({"estimator": "vimcoo"}, "unknown estimator 'vimcoo'; did you mean 'vimco'?"),
        ({"estimator": "vimcoo", "temperature": 1}, "unknown estimator 'vimcoo'; did you mean 'vimco'?"),
        ({"lr_schedule": "cosin"}, "unknown lr_schedule 'cosin'; did you mean 'cosine'?"),
        ({"lr_schedule": "?"}, "unknown lr_schedule '?'; choose from 'constant', 'cosine', 'linear'"),
        ({"binarize": "treshold"}, "unknown binarize 'treshold'; did you mean 'threshold'?"),
    ],
)
def test_an_unknown_key_or_choice_is_refused_with_the_nearest(wishes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence).replace(re.escape('.*'), '.*')}$"):
        resolve(notation="4H-6V", **wishes)


BAD: list[tuple[dict[str, Any], str]] = [
    *(
        ({name: value}, f"{name} must be at least 1, got {found}")
        for name in ("samples", "steps", "batch", "validation_samples")
        for value, found in ((0, 0), ("0", 0), ("-3", -3), (-3.0, -3))
    ),
    *(({name: "-1"}, f"{name} must not be negative, got -1") for name in ("seed", "validate", "patience")),
    ({"weight_decay": -1e-3}, "weight_decay must not be negative, got -0.001"),
    *(({"lr": value}, f"lr must be positive, got {float(value)}") for value in (0, -1, "-0.5")),
    *(
        ({name: value}, f"{name} must be a whole number, got {value!r}")
        for name in ("samples", "steps", "batch", "seed", "validate", "validation_samples", "patience", "arity")
        for value in (1.5, "3/2", "inf", float("inf"))
    ),
    *(
        ({name: value}, f"{name} must be a number, got {value!r}")
        for name in ("samples", "steps", "lr", "weight_decay", "seed", "temperature", "prior_temperature", "arity")
        for value in ("nan", float("nan"), "many", "", "1/0", True, [1], {"a": 1})
    ),
    *(
        ({name: value}, f"{name} must be finite, got {value!r}")
        for name in ("lr", "weight_decay", "temperature", "prior_temperature")
        for value in ("inf", float("-inf"), 10**400, "1e999")
    ),
    ({"seed": 2**63}, f"seed must be below 2^63, got {2**63}"),
    ({"seed": 10**400}, f"seed must be below 2^63, got {10**400}"),
    *(({name: 0}, f"{name} must be positive, got 0.0") for name in ("temperature", "prior_temperature")),
    *(
        ({"temperature": text}, f"temperature must be a number, or start:end:steps such as 1:1/2:10000, got {text!r}")
        for text in ("1:2", "1:1/2:10:3", "1:0:10", "-1:1:10", "1:1/2:1.5", "1:1/2:inf", "a:b:c", ":", "1:nan:3")
    ),
    *(({name: 3}, f"{name} must be text, got 3") for name in ("notation", "data", "estimator", "binarize")),
    ({"data": "\udcff.npz"}, "data must be text that a file can hold, got '\\udcff.npz'"),
    ({"estimator": "vimco", "samples": 1}, "samples must be at least 2 for estimator 'vimco', got 1"),
    ({"estimator": "rloo", "samples": 1}, "samples must be at least 2 for estimator 'rloo', got 1"),
    ({"estimator": "vimco", "temperature": 1}, "temperature must be left out, as estimator 'vimco' has none, got 1.0"),
    (
        {"estimator": "gumbel-softmax", "prior_temperature": "1:1/2:9"},
        "prior_temperature must be left out, as estimator 'gumbel-softmax' has none, got '1.0:0.5:9'",
    ),
    (
        {"notation": "3V-4H-2V", "prior_temperature": 1},
        "prior_temperature must be left out, as 3V-4H-2V has no prior over its latents, got 1.0",
    ),
    ({"patience": 3, "validate": 0}, "patience must be 0 unless validate is given, got 3"),
    ({"arity": 3}, "arity must be a power of two, at least 2, got 3"),
    ({"arity": -4}, "arity must be a power of two, at least 2, got -4"),
    ({"notation": None}, "notation must be given, such as 200H~784V, got none"),
    ({"notation": "4H-6X"}, "notation must have H or V after the units, got 'X' at column 5\n4H-6X\n    ^"),
    (
        {"notation": "4H-6V", "arity": 8},
        "units must be a multiple of 3 to form nodes of arity 8, got 4 at column 1\n4H-6V\n^",
    ),
]


@pytest.mark.parametrize(("wishes", "sentence"), BAD, ids=lambda value: str(value)[:60])
def test_a_bad_value_is_refused_with_one_sentence(wishes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        resolve(**{"notation": "4H-6V"} | wishes)


@pytest.mark.parametrize("name", ["temperature", "prior_temperature"])
def test_a_missing_temperature_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be given for estimator 'concrete', got None$"):
        replace(resolve(notation="4H-6V"), **{name: None})


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"lr = ", "recipe must be a file of TOML, got {path!r}: Invalid value (at end of document)"),
        (b"lr = 1\nlr = 2", "recipe must be a file of TOML, got {path!r}: Cannot overwrite a value"),
        (b"\xff", "recipe must be a file of TOML, got {path!r}: it holds text that is not valid Unicode"),
        (
            b"seed = " + b"9" * 5_000,
            "recipe must be a file of TOML, got {path!r}: it holds an integer of too many digits",
        ),
        (b"seed = " + b"[" * 5_000, "recipe must be a file of TOML, got {path!r}: it is nested too deeply"),
        (b"#" * (2**20 + 1), "recipe must be a file of TOML, got {path!r}: {path!r} must have at most 1,048,576 bytes"),
        (None, "recipe must be fast or paper, or a file that can be read, got {path!r}: No such file or directory"),
        (b"stepps = 3", "in {path!r}: unknown key 'stepps'; did you mean 'steps'?"),
        (b"[table]\nlr = 1", "in {path!r}: unknown key 'table'; choose from"),
        (b"clip = 1.0", "in {path!r}: clip must be left out for a notation, as it is for models of one's own"),
        (b"lr = -3", "in {path!r}: lr must be positive, got -3.0"),
        (b"lr = [1e-3, -3]", "in {path!r}: lr must be positive, got -3.0"),
        (b"lr = [1e-3, '1,-3']", "in {path!r}: lr must be a number, got '1,-3'"),
        (b"optimizer = 'muno'", "in {path!r}: unknown optimizer 'muno'; did you mean 'muon'?"),
        (b"steps = 'many'", "in {path!r}: steps must be a number, got 'many'"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused_with_its_name(content: bytes | None, why: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{re.escape(why.format(path=str(path)))}"):
        read(path)


@pytest.mark.parametrize("value", ["0..7", "0,1", [0, 1], []])
def test_a_file_may_say_several_values(value: str | list[int], tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(f"seed = {value!r}")
    assert read(path) == {"seed": value}


def test_a_file_without_end_to_its_depth_is_refused(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(f"lr = {'[' * 100_000}")
    with pytest.raises(ValueError, match=r"^recipe must be a file of TOML, got .*recipe\.toml': "):
        read(tmp_path / "recipe.toml")


def test_a_folder_is_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^recipe must be fast or paper, or a file .*: Is a directory$"):
        read(tmp_path)


def test_recipes_are_read_without_torch() -> None:
    program = (
        "import sys; from concretely.training.recipe import resolve; "
        "assert resolve(notation='200H~784V', arity=4).toml(); assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_title_is_one_name_of_a_folder() -> None:
    title = resolve(notation="6H:8~6V", data="some/where/my.npz", estimator="vimco", seed=4).title
    assert title == "6Hx8~6V-my-vimco-m5-seed4"


def test_nothing_is_validated_on_points_that_are_trained_on() -> None:
    with pytest.raises(ValueError, match=r"^validate must be 0 to train on the whole, got 10$"):
        resolve(notation="4H-6V", train_on="whole", validate=10)


def test_the_whole_are_also_the_points_that_are_held_out_else() -> None:
    held_out, whole = (data_of(resolve(notation="4H-64V", train_on=name)) for name in ("train", "whole"))
    assert len(whole.train) == len(held_out.train) + len(held_out.valid)
    assert len(whole.test) == len(held_out.test)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_suit_any_model(name: str) -> None:
    for notation in ("200H-784V", "200H~200H~784V", "392V-240H:8-392V"):
        found = resolve(notation=notation, **read(Path(name)))
        assert found.steps >= 20_000
        assert found != resolve(notation=notation)


@pytest.mark.parametrize(
    ("notation", "estimator", "samples", "expected"),
    [
        ("200H~784V", "concrete", 1, (30_000, 2_048, 4e-3, 0, 10)),
        ("200H-784V", "concrete", 5, (30_000, 2_048, 1.6e-2, 0, 10)),
        ("200H-784V", "concrete", 50, (30_000, 512, 1.6e-2, 0, 10)),
        ("200H~784V", "concrete", 50, (30_000, 1_024, 4e-3, 0, 10)),
        ("200H-784V", "nvil", 1, (50_000, 2_048, 2e-3, 1_000, 1_000)),
        ("200H~784V", "vimco", 50, (50_000, 512, 1e-3, 1_000, 1_000)),
        ("392V~240H~392V", "concrete", 1, (30_000, 512, 4e-3, 0, 10)),
        ("392V-240H-392V", "concrete", 50, (30_000, 512, 4e-3, 0, 10)),
        ("392V-240H-392V", "nvil", 1, (50_000, 2_048, 8e-3, 1_000, 100)),
        ("392V-240H-392V", "vimco", 5, (50_000, 2_048, 8e-3, 1_000, 100)),
        ("392V-240H-392V", "vimco", 50, (50_000, 512, 8e-3, 1_000, 100)),
    ],
)
def test_the_fast_preset_follows_the_model(
    notation: str, estimator: str, samples: int, expected: tuple[int, int, float, int, int]
) -> None:
    found = resolve(notation=notation, estimator=estimator, samples=samples, **read(Path("fast")))
    assert (found.steps, found.batch, found.lr, found.validate, found.validation_samples) == expected
    assert (found.optimizer, found.lr_schedule) == ("muon", "linear")
    decays = {"concrete": (0, 20), "nvil": (10, 2), "vimco": (10, 20)}
    assert found.weight_decay == decays[estimator][notation.startswith("392V")]


def test_the_preset_of_the_paper_changes_only_the_number_of_steps() -> None:
    given = read(Path("paper"))
    assert resolve(notation="200H~784V", **given) == resolve(notation="200H~784V", steps=given["steps"])


def test_the_keys_of_models_of_ones_own_alone_are_known() -> None:
    assert set(OWN_KEYS) == {field.name for field in fields(OwnRecipe)} - set(KEYS)
