"""The claims of the paper hold in its own numbers, and are judged by ours."""

import pytest

from concretely.experiment.claim import (
    CLAIMS,
    GAP,
    Claim,
    Key,
    Verdict,
    integrality,
    judge_claims,
    large_gap_start,
    temperature_points,
)
from concretely.experiment.claim import TemperaturePoint as Point
from concretely.experiment.paper import CellResult, Score, load_experiment

PAPER: dict[Key, Score] = {
    (cell.recipe.notation, cell.recipe.samples, cell.recipe.data, cell.heading, split): Score(nll, 0.25)
    for name in ("table-1", "table-3", "structured-prediction")
    for cell in load_experiment(name).cells
    for split, nll in cell.paper.items()
}
WARM = [Point(0.5, 58.0, 58.2), Point(1.0, 57.8, 58.0), Point(2.0, 57.0, 60.5), Point(4.0, 56.0, 70.0)]


def judged(name: str, scores: dict[Key, Score]) -> Verdict:
    """Return the verdict of some scores on a claim."""
    (claim,) = (claim for claim in CLAIMS if claim.name == name)
    return claim.judge(scores, PAPER)


def without(**wished: object) -> dict[Key, Score]:
    """The paper's numbers but for those with all of some keys."""
    names = ("notation", "samples", "data", "estimator", "split")
    return {
        key: score
        for key, score in PAPER.items()
        if not all(key[names.index(name)] == value for name, value in wished.items())
    }


def test_all_claims_hold_in_the_numbers_of_the_paper_and_all_comparisons_are_of_its_cells() -> None:
    for each in [*(judged(claim.name, PAPER) for claim in CLAIMS), integrality(WARM, WARM, temperatures=4)]:
        assert each.held is True, each
        assert each.verdict == "held"
        assert "yet" not in each.summary


def test_nothing_is_known_without_cells() -> None:
    cells = [CellResult(cell) for name in ("table-1", "table-3") for cell in load_experiment(name).cells]
    warm = [CellResult(cell) for cell in load_experiment("temperature").cells]
    found = judge_claims(cells, warm)
    assert len(found) == 9
    for each in found:
        assert (each.held, each.verdict) == (None, "unknown yet")
        assert each.summary.startswith(("None of ", "0 of 12 temperatures"))


def test_a_finding_has_the_mean_the_number_that_agree_and_both_ends() -> None:
    scores = {("392V-240H-240H-392V", m, "mnist", "vimco", "test"): Score(60.0, 0.3) for m in (1, 5)}
    scores |= {
        ("392V-240H-240H-392V", m, "mnist", "concrete", "test"): Score(ours, 0.4) for m, ours in ((1, 57), (5, 61))
    }
    assert judged("Structured prediction", scores) == Verdict(
        "Structured prediction",
        "In structured prediction with m = 1 and m = 5, Concrete reaches a lower test NLL than VIMCO.",
        True,
        "+1.00 nats on average, above 0 in 1 of 2 and by more than 2 standard errors in 1, "
        "from −1.00 ± 0.50 (`392V-240H-240H-392V`, m = 5, mnist) "
        "to +3.00 ± 0.50 (`392V-240H-240H-392V`, m = 1, mnist). "
        "In the paper: +1.55 nats on average, above 0 in 2 of 2. 2 more comparisons cannot be made yet.",
        partial=True,
    )
    scores["392V-240H-240H-392V", 5, "mnist", "concrete", "test"] = Score(64.0, 0.4)
    assert judged("Structured prediction", scores).verdict == "not held weakly so far"


@pytest.mark.parametrize(
    ("name", "estimator"),
    [
        ("Linear models", "vimco"),
        ("Non-linear models", "concrete"),
        ("Structured prediction", "concrete"),
        ("Structured prediction with many samples", "vimco"),
    ],
)
def test_an_estimator_that_is_behind_is_not_said_to_be_ahead(name: str, estimator: str) -> None:
    worse = {key: Score(nll + 20 * (key[3] == estimator), error) for key, (nll, error) in PAPER.items()}
    assert judged(name, worse).verdict == "not held"


def test_what_is_known_of_fewer_than_half_is_not_judged() -> None:
    few = without(data="omniglot")
    assert judged("Linear models", few).held is True
    fewer = {key: score for key, score in few.items() if key[1] != 5}
    found = judged("Linear models", fewer)
    assert (found.held, found.summary.endswith(" 8 more comparisons cannot be made yet.")) == (None, True)


def test_what_holds_by_less_than_two_standard_errors_holds_weakly() -> None:
    one, two, zero = (("", m, "", "", "") for m in (1, 2, 0))
    claim = Claim("", "", lambda: iter([("one", (one, zero)), ("two", (two, zero))]))
    for value, verdict in ((1.5, "held"), (0.5, "held weakly"), (-3.5, "not held weakly"), (-9.0, "not held")):
        scores = {one: Score(value, 1.0), two: Score(3.0, 1.0), zero: Score(0.0, 0.0)}
        assert claim.judge(scores, {}).verdict == verdict


def test_samples_are_judged_by_all_models_of_mnist() -> None:
    found = judged("More samples", PAPER).summary
    assert "above 0 in 33 of 36" in found
    models = {key[0] for key in PAPER if key[1] == 5 and key[2] == "mnist"}
    worse = {key: Score(nll + 9 * (key[1] == 50), error) for key, (nll, error) in PAPER.items()}
    for model in models:
        alone = {key: (worse if key[0] == model else PAPER)[key] for key in PAPER}
        assert f"(`{model}` by " in judged("More samples", alone).summary


def test_arity_and_samples_are_judged_by_the_sign_of_the_mean() -> None:
    swapped = {key: Score(-nll, error) for key, (nll, error) in PAPER.items()}
    for name in ("Arity in density estimation", "Arity in structured prediction", "More samples", "Overfitting"):
        assert judged(name, PAPER).held is True
        assert judged(name, swapped).held is False
    assert judged("Overfitting", without(split="train")).held is None


def test_the_gap_is_where_only_the_discrete_graph_loses() -> None:
    found = integrality(WARM[::-1], temperatures=4)
    assert (found.held, found.summary) == (
        True,
        "On the training set the discrete graph is best at λ = 1 with 58.00 (relaxed 57.80). It is worse by more "
        "than 1 nat at λ = 2 with 60.50 (relaxed 57.00); λ = 4 with 70.00 (relaxed 56.00). "
        "From about λ = 1.5 on, the gap stays above 2 nats.",
    )
    told = integrality(WARM, [Point(0.5, 60.0, 61.0), Point(1.0, 62.5, 64.0), Point(2.0, 62.0, 70.0)], temperatures=4)
    assert told.summary.endswith(
        " On the test set the claim does not hold: the discrete graph is best at λ = 1/2 with 61.00 (relaxed 60.00); "
        "where it is worse, the relaxed graph is worst at λ = 1 with 64.00 (relaxed 62.50)."
    )
    assert " On the test set the claim holds too: the discrete" in integrality(WARM, WARM, temperatures=4).summary
    flat = integrality(WARM, [Point(0.5, 60.0, 61.0), Point(1.0, 60.0, 61.5)], temperatures=4)
    assert flat.summary.endswith(" does not hold: the discrete graph is best at λ = 1/2 with 61.00 (relaxed 60.00).")
    both = [point._replace(relaxed=point.discrete - 0.2) for point in WARM]
    assert integrality(both, temperatures=4).held is False
    between = [*WARM[:3], WARM[3]._replace(relaxed=59.0)]
    assert integrality(between, temperatures=4).held is False
    cold = [point._replace(temperature=1 / point.temperature) for point in WARM]
    assert integrality(cold, temperatures=4).held is False
    assert integrality(WARM, temperatures=12).held is None


def test_the_gap_is_large_from_where_it_exceeds_the_limit_for_good() -> None:
    low, mid, high = Point(1.0, 50.0, 50.0), Point(2.0, 50.0, 50.0 + 2 * GAP), Point(4.0, 50.0, 50.0 + 3 * GAP)
    assert large_gap_start([low, mid, high]) == 1.5
    assert large_gap_start([mid, high]) == 2.0
    assert large_gap_start([low]) is None
    assert large_gap_start([mid, low._replace(temperature=3.0), high]) == pytest.approx(3 + 1 / 3)


def test_a_record_is_a_point_only_with_both_objectives() -> None:
    cell = load_experiment("temperature").cells[0]
    recipe = {**cell.recipe.settings, "temperature": 0.5}
    metrics = {f"train_{name}": {"value": value, "standard_error": 0.1} for name, value in (("nll", 3), ("relaxed", 2))}
    assert temperature_points([CellResult(cell, {"recipe": recipe, "metrics": metrics})], "train") == [(0.5, 2.0, 3.0)]
    for missing in ({"train_nll": metrics["train_nll"]}, {**metrics, "train_relaxed": {"value": None}}):
        assert temperature_points([CellResult(cell, {"recipe": recipe, "metrics": missing})], "train") == []
    assert temperature_points([CellResult(cell)], "train") == []
