"""Flags that several subcommands share, and the objects that their values denote."""

from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..environment import PRECISIONS
from ..training.own_resolve import is_builder_name, require_own_keys
from ..training.recipe import ESTIMATORS, overridden, read, require_settings
from .terminal import fail, interruptible_loading, remark, report_errors, require_known, require_positive

if TYPE_CHECKING:
    import torch

    from ..experiment.place import Place
    from ..training.folder import Run
    from ..training.own_recipe import RunRecipe

EXAMPLE_RUN = "out/train/32H~64V-digits-concrete-m1-seed0"
"""The folder of the run in the example of `concretely train`, which the examples of other subcommands use."""


def option(text: str, default: str, *names: str) -> Any:
    """Return an optional flag with its help, and its default in words."""
    return typer.Option(*names, help=text, show_default=default)


def folder_of(name: str) -> Any:
    """Return a function that reads the path of a folder. An empty path, which Python takes for `.`, is refused."""

    def folder(text: str) -> Path:
        if not str(text):
            fail(f"{name} must be the path of a folder, got ''")
        return Path(text)

    return {"parser": folder, "metavar": "PATH"}


RunFolder = Annotated[Path, typer.Argument(**folder_of("run") | {"metavar": "RUN"}, help="Folder of a run.")]
ModelName = Annotated[
    str | None,
    option(
        "Own models: the function that builds the model, if it has moved, or for a run of a script or of another user.",
        "the one of the run",
        "--model",
    ),
]
MaxBytes = Annotated[
    int | None, option("Memory limit for the arrays of a .npz file, in bytes.", "1 GiB", "--max-bytes")
]
DataPath = Annotated[str | None, option("Path of the data, if they have moved.", "where they were", "--data")]
Device = Annotated[str | None, option("Device, such as cpu or cuda:1.", "cuda if available", "--device")]
Precision = Annotated[
    str | None, option(f"Precision of matrix products on a GPU: {', '.join(PRECISIONS)}.", "float32", "--precision")
]
Notation = Annotated[
    str | None,
    typer.Argument(help="Model in the paper's notation, such as 200H~784V, or its builder, as package.module:build."),
]
FullPoints = Annotated[
    int | None,
    option(
        "Number of data points to score with all samples. The others get 1,000 and are corrected by the mean "
        "difference.",
        "all",
    ),
]

Shared = Annotated[
    bool, typer.Option("--share", help="Share the members with all processes that run this command on this folder.")
]
On = Annotated[str | None, option("Where to train: ray.", "in this process", "--on")]
Address = Annotated[str | None, option("Ray: address of a cluster, such as auto or 10.0.0.1:6379.", "a local Ray")]
ProgramsPerGPU = Annotated[int | None, option("Ray: programs that share a GPU.", "4", "--programs-per-gpu")]
MembersPerProgram = Annotated[
    int | None, option("With --share or Ray: maximum number of members of one program.", "8 on a GPU, 1 elsewhere")
]

OF_PAPER = "the paper's; own models:"
"""The start of a default that differs between models in a notation and models of one's own."""
_RECIPE_FLAGS = {
    "data": ("Data set: digits, mnist, omniglot, or a .npz file with train, test and maybe valid.", "digits"),
    "binarize": ("Notations: how to turn grey values of a file into bits, bernoulli or threshold.", "bernoulli"),
    "train_on": ("Notations: training points, train or, to include the validation set, whole.", "train"),
    "estimator": (f"Gradient estimator: {', '.join(ESTIMATORS)}; concrete is Pathwise.", "concrete"),
    "samples": ("Number of samples m in the bound.", "1, or 5 if the estimator needs several"),
    "temperature": (
        "Temperature such as 2/3, or 1:1/2:10000 to anneal from 1 to 1/2.",
        f"{OF_PAPER} by number of states",
    ),
    "prior_temperature": ("Temperature of the prior.", f"{OF_PAPER} none"),
    "arity": ("Notations: number of states of units without a suffix.", "2"),
    "steps": ("Number of training steps; the paper takes 10,000,000.", "20000"),
    "batch": ("Batch size.", "64"),
    "lr": ("Learning rate.", f"{OF_PAPER} 0.001"),
    "optimizer": ("Optimizer: adam, or muon for large batches and fewer steps.", "adam"),
    "lr_schedule": ("Learning rate schedule: constant, linear or cosine.", "constant"),
    "weight_decay": (
        "Notations: factor of half the squared weights, divided by the number of data points.",
        "the paper's",
    ),
    "seed": ("Random seed.", "0"),
    "validate": ("Steps between validations; the best model is kept.", "never"),
    "validation_samples": ("Samples for each data point in a validation.", "10"),
    "patience": ("Stop after this many validations without improvement.", "never"),
    "clip": ("Own models: largest norm of a gradient.", "none"),
    "accumulate": ("Own models: batches whose gradients are averaged in a step.", "1"),
    "ema": ("Own models: decay of a running average of the parameters, such as 0.999.", "none"),
    "beta": ("Own models: weight of the KL, or 0:1:1000 for a linear warm-up.", "1"),
}
"""The help of every key of a recipe, and its default in words."""

Verb = Callable[..., None]


def with_recipe(verb: Verb) -> Verb:
    """Add a flag for every key of a recipe, and --recipe for a TOML file, to a subcommand with an argument `given`."""
    own = signature(verb)
    kinds: dict[str, Any] = {name: Annotated[str | None, option(*flag)] for name, flag in _RECIPE_FLAGS.items()}
    text = "TOML file with these keys, or paper or fast; flags override it."
    kinds["recipe"] = Annotated[Path | None, option(text, "none")]
    text = "Own models: argument of the builder, such as width=200 or the list width=100,200; may be repeated."
    kinds["arguments"] = Annotated[list[str] | None, option(text, "none", "--set")]
    flags = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind) for name, kind in kinds.items()]
    others = [parameter for name, parameter in own.parameters.items() if name != "given"]
    at = next((i for i, parameter in enumerate(others) if parameter.kind is parameter.KEYWORD_ONLY), len(others))
    parameters = [*others[:at], *flags, *others[at:]]

    @wraps(verb)
    def flagged(**arguments: Any) -> None:
        flags = {name: arguments.pop(name) for name in _RECIPE_FLAGS}
        file: Path | None = arguments.pop("recipe")
        own = _arguments(arguments.pop("arguments") or ())
        model = arguments.get("notation")
        is_own = model is not None and is_builder_name(model)
        if model is not None and not is_own and (set("./") & set(model) or model.endswith(":")):
            fail(f"a model of your own must be named as package.module:build or file.py:build, got {model!r}")
        require = None if model is None else require_own_keys if is_own else require_settings
        with report_errors():
            given = {} if file is None else read(file, require)
            given = overridden(given, {name: value for name, value in flags.items() if value is not None})
        if given.get("model") is not None and model is None:
            fail(f"a recipe calls its builder only if you name it: add {given['model']!r} as first argument")
        if model is not None:
            given["model" if is_own else "notation"] = model
        if own:
            given["arguments"] = {**given.get("arguments", {}), **own}
        if own and given.get("model") is None:
            fail(f"set must be left out, as {model or 'the recipe'} has no builder, got {', '.join(own)}")
        verb(given=given, **arguments)

    flagged.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    flagged.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return flagged


def _arguments(texts: Sequence[str]) -> dict[str, str]:
    """Return the arguments of a builder by name."""
    pairs = [_argument(text) for text in texts]
    given = dict(pairs)
    for name in given:
        if len(values := [value for other, value in pairs if other == name]) > 1:
            fail(
                f"set must name {name} once, got {len(values)} values: for several runs, pass {name}={','.join(values)}"
            )
    return given


def _argument(text: str) -> tuple[str, str]:
    """Return the name and the value of an argument of a builder."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        fail(f"set must be a name and a value, such as width=200, got {text!r}")
    if set(value) & set("([{"):  # commas separate the values of several runs
        way = "for a list, read a text such as 8x16 in the builder"
        fail(f"set must be a number, true, false or a text, got {text!r}: {way}")
    return name, value


def with_precision(given: dict[str, Any], precision: str | None) -> dict[str, Any]:
    """Return settings; the precision of a model of one's own is one of them."""
    return given if precision is None or given.get("model") is None else {**given, "precision": precision}


def select_device(name: str | None, precision: str | None = None) -> "torch.device":
    """Return the device of a name, or by default the fastest one, and set the precision of matrix products."""
    precision = "float32" if precision is None else precision
    require_known("precision", precision, PRECISIONS)
    import torch

    torch.set_float32_matmul_precision(PRECISIONS[precision])
    best = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(best if name is None else name)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, ImportError, NotImplementedError):
        fail(f"device must be available to torch, such as {best!r}, got {name!r}")
    if chosen.type not in ("cpu", "cuda"):
        fail(f"device must be a CPU or CUDA device, got {name!r}")
    return chosen


def select_place(
    *,
    share: bool,
    members_per_program: int | None,
    on: str | None = None,
    address: str | None = None,
    programs_per_gpu: int | None = None,
    device_name: str | None = None,
) -> "Place":
    """Return where members are trained; exit with an error if the flags contradict each other."""
    from ..experiment.place import Here, Ray, Share

    require_positive(members_per_program=members_per_program, programs_per_gpu=programs_per_gpu)
    if on is not None:
        require_known("place", on, ["ray"])
        if share:
            fail("share must be left out with --on ray, which places all members itself")
        from ..experiment.cluster import isolate_ray, require_ray

        with report_errors():
            if address is None:
                isolate_ray()
            require_ray()
            return Ray(address, programs_per_gpu or Ray.programs_per_gpu, members_per_program, device_name)
    for name, value in (("address", address), ("programs-per-gpu", programs_per_gpu)):
        if value is not None:
            fail(f"{name} must be left out without --on ray, got {value!r}")
    if members_per_program is not None and not share:
        fail(f"members-per-program must be left out without --share or --on ray, got {members_per_program}")
    return Share(members_per_program) if share else Here()


def load_data(
    recipe: "RunRecipe", path: str | None = None, *, resumed: bool = False, max_bytes: int | None = None
) -> Any:
    """Load the data of a recipe. The data of a resumed run may have moved."""
    from ..training.folder import data_of

    with report_errors(), interruptible_loading():
        try:
            return data_of(recipe, place=path, max_bytes=max_bytes, progress=True)
        except FileNotFoundError as error:
            fail(f"{error}{': pass the new path as --data' if resumed else ''}")


def restore_run(
    folder: Path,
    *,
    device: "torch.device",
    data: str | None,
    model_name: str | None = None,
    max_bytes: int | None = None,
) -> tuple["Run", Any, Any]:
    """Return the run in a folder, its model and its data; print if a checkpoint is damaged or the run not finished."""
    from ..training.folder import require_same, restored
    from ..training.own_method import is_named
    from ..training.own_recipe import OwnRecipe

    with report_errors():
        run, model, damaged = restored(folder, model=model_name, device=device)
        loaded = load_data(run.recipe, data, resumed=True, max_bytes=max_bytes)
        if not isinstance(run.recipe, OwnRecipe) or is_named(run.recipe):
            require_same(run, loaded.digest, loaded.name)
    for sentence in damaged:
        remark(f"{sentence}; using the one of step {run.step:,}")
    if not run.finished:
        remark(f"the run is not finished; using its model after step {run.chosen:,} of {run.recipe.steps:,}")
    return run, model, loaded
