"""The flags of a recipe, which several verbs take: one for each of its keys, with the same name."""

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ..training.member import DataKey, data_key
from ..training.recipe import ESTIMATORS, Recipe, overridden, read, resolve
from .terminal import interruptible, refuse, refusing

if TYPE_CHECKING:
    from ..data import Dataset


class Flag(NamedTuple):
    """What the help says of a flag, and of its absence."""

    help: str
    absent: str


FLAGS = {
    "data": Flag("digits, mnist, omniglot, or the path of a .npz file with arrays train, test, maybe valid.", "digits"),
    "binarize": Flag("How grey values of a file become bits: bernoulli or threshold.", "bernoulli"),
    "train_on": Flag("train, or whole: the points held out for validation, too.", "train"),
    "estimator": Flag(f"{', '.join(ESTIMATORS)}.", "concrete"),
    "samples": Flag("The number m of samples in the bound.", "1, or 5 where 1 is too few"),
    "temperature": Flag("A number such as 2/3, or 1:1/2:10000 to fall from 1 to 1/2.", "the paper's"),
    "prior_temperature": Flag("The temperature at which the prior is scored.", "the paper's"),
    "arity": Flag("The states of a node, for layers without a suffix.", "2"),
    "steps": Flag("How many steps; the paper takes 10,000,000.", "20000"),
    "batch": Flag("Data points in a step.", "64"),
    "lr": Flag("The learning rate.", "the paper's"),
    "optimizer": Flag("adam, or muon for weights: fewer steps at large batches.", "adam"),
    "lr_schedule": Flag("constant, linear or cosine.", "constant"),
    "weight_decay": Flag("The factor of half the squared weights, over the number of data points.", "the paper's"),
    "seed": Flag("All that is random follows from it.", "0"),
    "validate": Flag("Look at the validation set every so many steps, and keep the best.", "never"),
    "validation_samples": Flag("Samples of such a look.", "10"),
    "patience": Flag("Stop after so many looks without a better one.", "never"),
}

Verb = Callable[..., None]


def with_recipe(verb: Verb) -> Verb:
    """Give a verb the flags of a recipe, and a TOML file with the same keys, in place of its argument `given`."""
    own = inspect.signature(verb)
    recipe = _parameter("recipe", Path, "A TOML file with any of these, or paper or fast; flags go before it.", "none")
    flags = [_parameter(name, str, flag.help, flag.absent) for name, flag in FLAGS.items()]
    others = [parameter for name, parameter in own.parameters.items() if name != "given"]
    at = next((i for i, parameter in enumerate(others) if parameter.kind is parameter.KEYWORD_ONLY), len(others))
    parameters = [*others[:at], *flags, recipe, *others[at:]]

    @wraps(verb)
    def flagged(**arguments: Any) -> None:
        wished = {name: arguments.pop(name) for name in FLAGS}
        file: Path | None = arguments.pop("recipe")
        with refusing():
            given = read(file) if file is not None else {}
            given = overridden(given, {name: value for name, value in wished.items() if value is not None})
        verb(given=given, **arguments)

    flagged.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    flagged.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return flagged


def resolved(notation: str | None, given: dict[str, Any]) -> Recipe:
    """The recipe of a notation and flags, or a sentence about what is wrong with it."""
    with refusing():
        return resolve(**given | ({} if notation is None else {"notation": notation}))


def loaded(recipe: Recipe, place: str | None = None, *, again: bool = False) -> "Dataset":
    """The data of a recipe, which again may be in another place, or a sentence about why they cannot be had."""
    from ..training.run import data_of

    with refusing(), interruptible("stopped before the data were there; what was downloaded is kept"):
        try:
            return data_of(recipe, place=place, progress=True)
        except FileNotFoundError as error:
            refuse(f"{error}{': say where it is now by --data' if again else ''}")


def loaded_once(recipes: Iterable[Recipe]) -> "dict[DataKey, Dataset]":
    """The data of recipes, of which those that are shared are loaded once."""
    return {key: loaded(recipe) for key, recipe in {data_key(recipe): recipe for recipe in recipes}.items()}


def _parameter(name: str, kind: type, text: str, absent: str) -> inspect.Parameter:
    option = typer.Option(help=text, show_default=absent)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )
