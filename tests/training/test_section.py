"""What a recipe's file says of some models alone is so for those, and what it cannot say is refused."""

import re
from pathlib import Path
from typing import Any

import pytest

from concretely.training.recipe import overridden, read, resolve

SECTIONS = """
lr = 1e-3
batch = 8
[when.density]
batch = 16
[when.linear]
lr = 1e-2
[when.nonlinear]
lr = "3e-3"
[when.nvil]
optimizer = "muon"
lr = 5e-4
[when.discrete.linear]
batch = 24
lr = 9.0
[when.linear.nvil]
lr = 6e-4
[when.nvil.linear.m7]
lr = 7e-4
[when.m7]
batch = 32
"""


@pytest.mark.parametrize(
    ("wished", "expected"),
    [
        ({"notation": "4H-64V"}, (1e-2, 16, "adam")),
        ({"notation": "4H~64V"}, (3e-3, 16, "adam")),
        ({"notation": "32V-4H-32V"}, (1e-2, 8, "adam")),
        ({"notation": "4H~64V", "estimator": "nvil"}, (5e-4, 16, "muon")),  # the estimator overrules the layers
        ({"notation": "4H-64V", "estimator": "nvil"}, (6e-4, 24, "muon")),
        ({"notation": "4H-64V", "estimator": "reinforce"}, (9.0, 24, "adam")),
        ({"notation": "4H-64V", "estimator": "nvil", "samples": "7"}, (7e-4, 24, "muon")),  # two kinds overrule one
        ({"notation": "4H~64V", "samples": 7}, (3e-3, 32, "adam")),
        ({"notation": "4H-64V", "estimator": "nvil", "samples": 7, "lr": "0.1", "batch": 4}, (0.1, 4, "muon")),
    ],
)
def test_a_file_may_say_what_is_so_for_some_models_alone(
    wished: dict[str, Any], expected: tuple[float, int, str], tmp_path: Path
) -> None:
    (tmp_path / "some.toml").write_text(SECTIONS)
    found = resolve(**overridden(read(tmp_path / "some.toml"), wished))
    assert (found.lr, found.batch, found.optimizer) == expected
    (tmp_path / "again.toml").write_text(found.toml())
    assert resolve(**read(tmp_path / "again.toml")) == found


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[when.linaer]\nlr = 1", "unknown section 'when.linaer'; did you mean 'linear'?"),
        ("[when.linear]\nrate = 1", "in [when.linear]: unknown key 'rate'"),
        ("[when.linear]\nlr = [1, 2]", "in [when.linear]: lr must be a number, got [1, 2]"),
        ("[when.linear]\nlr = -1", "in [when.linear]: lr must be positive, got -1.0"),
        ("[when.m5]\nbatch = 0", "in [when.m5]: batch must be at least 1, got 0"),
        ("[when.nvil]\nlr_schedule = 'cosin'", "in [when.nvil]: unknown lr_schedule 'cosin'; did you mean 'cosine'?"),
        ("[when.nvil]\nlr = 'high'", "in [when.nvil]: lr must be a number, got 'high'"),
        ("[when.linear]\nestimator = 'nvil'", "estimator must not be in [when.linear], got 'nvil'"),
        ("[when.nvil]\nnotation = '4H-64V'", "notation must not be in [when.nvil], got '4H-64V'"),
        ("[when.linear]\nsamples = 5", "samples must not be in [when.linear], got 5"),
        ("[when.linear.nvli]\nlr = 1", "unknown section 'when.linear.nvli'; did you mean 'nvil'?"),
        ("[when.linear.nvil]\nrate = 1", "in [when.linear.nvil]: unknown key 'rate'"),
        ("[when.linear.nonlinear]\nlr = 1", "[when.linear.nonlinear] must apply to some run, but no run is both"),
        ("[when.m5.nvil.m5]\nlr = 1", "[when.m5.nvil.m5] must apply to some run, but no run is both"),
        (f"[when{'.linear' * 3000}]\nlr = 1", "[when.linear.linear] must apply to some run, but no run is both"),
        ("[when.linear]\nlr = {a = 1}", "in [when.linear]: lr must be a number, got {'a': 1}"),
        ("[when.nvil]\nlinear = 3", "in [when.nvil]: unknown key 'linear'"),
        ("[when.m0]\nlr = 1", "unknown section 'when.m0'; choose from 'concrete', 'density', "),
        ("when = 3", "when must be sections such as [when.linear], got 3"),
        ("[when]\nlinear = 3", "when must be sections such as [when.linear], got {'linear': 3}"),
    ],
)
def test_a_section_that_is_wrong_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "some.toml").write_text(text)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        read(tmp_path / "some.toml")
