"""A comparison of estimators at their defaults: trained on small tasks, scored by the discrete graph on held-out data.

All estimators of a task have the same data, initial parameters, optimizer, steps and samples. Parameters are selected
on the validation set; the test set is scored once, at the end of a run.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..environment import describe_environment
from ..estimator import (
    NVIL,
    RLOO,
    VIMCO,
    Estimator,
    Exact,
    GumbelSoftmax,
    Pathwise,
    Reinforce,
    StraightThrough,
    StraightThroughGumbelSoftmax,
    estimate,
)
from ..evaluation.points import require_positive
from ..evaluation.progress import counting
from ..spelling import did_you_mean, is_count, is_number
from ..training.rng import Order, Purpose, generator_of, seed_of
from .record import read_checked, write_record
from .task import TASKS, Task

SAMPLES, BATCH, LR = 4, 64, 3e-3
"""The number of samples, the batch size and the learning rate of Adam in every run."""
VALIDATIONS = 10
"""The number of validations, at equal distances. The best one selects the parameters."""
SHARE = 0.1
"""A validation takes this share of the samples of the final score."""


class Contender(NamedTuple):
    """An estimator of the comparison."""

    code: str
    """How it is written in Python."""
    make: Callable[..., Estimator]
    """Returns it, given the model or program and its inputs."""


CONTENDERS = {
    "pathwise": Contender("Pathwise()", lambda *_: Pathwise()),
    "concrete": Contender('Pathwise(kl="density")', lambda *_: Pathwise(kl="density")),
    "gumbel-softmax": Contender("GumbelSoftmax()", lambda *_: GumbelSoftmax()),
    "straight-through": Contender("StraightThrough()", lambda *_: StraightThrough()),
    "straight-through-gumbel-softmax": Contender(
        "StraightThroughGumbelSoftmax()", lambda *_: StraightThroughGumbelSoftmax()
    ),
    "reinforce": Contender("Reinforce()", lambda *_: Reinforce()),
    "rloo": Contender("RLOO()", lambda *_: RLOO()),
    "nvil": Contender("NVIL(target, *inputs)", NVIL),
    "vimco": Contender("VIMCO()", lambda *_: VIMCO()),
    "exact": Contender("Exact()", lambda *_: Exact()),
}
"""The estimators by name. The names are those of the command for notations, where `concrete` compares densities."""


@dataclass(frozen=True)
class TaskRun:
    """The result of one estimator with one seed on one task."""

    task: str
    estimator: str
    seed: int
    steps: int
    step: int
    """The step whose parameters were selected."""
    valid: float | None
    """The validation score of the selected parameters, by which they were selected, or None if the run diverged."""
    test: float | None
    seconds: float


class Score(NamedTuple):
    """The test score of an estimator on a task, over seeds."""

    mean: float
    standard_error: float | None
    """None for a single seed."""
    seeds: int


@dataclass(frozen=True)
class TaskStudy:
    """The runs of a comparison."""

    runs: Sequence[TaskRun]

    @property
    def tasks(self) -> list[str]:
        """The names of the tasks with a run."""
        return [name for name in TASKS if any(run.task == name for run in self.runs)]

    @property
    def estimators(self) -> list[str]:
        """The names of the estimators with a run."""
        return [name for name in CONTENDERS if any(run.estimator == name for run in self.runs)]

    def score(self, task: str, estimator: str) -> Score | None:
        """Return the mean test score over seeds, or None if there is no run. A diverged run makes it infinite."""
        tests = [run.test for run in self.runs if (run.task, run.estimator) == (task, estimator)]
        if not tests:
            return None
        values = torch.tensor([math.inf if test is None else test for test in tests], dtype=torch.float64)
        known = len(values) > 1 and bool(values.isfinite().all())
        return Score(values.mean().item(), values.std().item() / math.sqrt(len(values)) if known else None, len(values))

    def best(self, task: str) -> str:
        """Return the estimator with the lowest mean test score on a task."""
        scores = {name: score.mean for name in self.estimators if (score := self.score(task, name))}
        return min(scores, key=scores.__getitem__)


def study_tasks(
    tasks: Sequence[str] | None = None,
    *,
    estimators: Sequence[str] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    steps: int | None = None,
    record: Path | None = None,
    device: torch.device | str = "cpu",
    stop: Callable[[], bool] = lambda: False,
    note: Callable[[str], None] = lambda sentence: None,
    progress: bool = False,
) -> TaskStudy:
    """Train estimators on tasks and score them, by default all that suit each of `TASKS`.

    Scores are nats per data point: the negative log-likelihood, or the expected cost of a program. `steps` overrides
    the number of steps of the tasks. With `record`, every finished run is written to that file, and runs that are in it
    already are not repeated. If `stop` returns true, KeyboardInterrupt is raised after the current step. `note`
    receives a sentence for each finished run.

    >>> study = study_tasks(["gate"], estimators=["rloo"], seeds=[0], steps=2)
    >>> study.score("gate", "rloo").seeds
    1
    """
    require_suited(tasks, estimators)
    if steps is not None:
        require_positive("steps", steps)
    for name, estimator in product(TASKS if tasks is None else tasks, estimators or ()):
        if estimator not in TASKS[name].estimators:
            note(f"estimator {estimator!r} does not suit task {name!r} and is left out")
    wished = [(name, estimator, seed) for name, estimator in _pairs(tasks, estimators) for seed in seeds]
    about = {"samples": SAMPLES, "batch": BATCH, "lr": LR, "validations": VALIDATIONS, "steps": steps}
    runs = [] if record is None else _finished(record, about, str(device))
    known = {(run.task, run.estimator, run.seed) for run in runs}
    missing = [run for run in wished if run not in known]
    total = sum(TASKS[name].steps if steps is None else steps for name, _, _ in missing)
    with counting("training", total, shown=progress) as advance:
        for name, estimator, seed in missing:

            def step() -> None:
                advance(1)
                if stop():
                    raise KeyboardInterrupt

            new = _run(name, estimator, seed=seed, steps=steps, device=device, step=step)
            runs.append(new)
            if record is not None:
                write_record(record, _content(runs, about, str(device)))
            outcome = "diverged" if new.test is None else f"test {new.test:.3f}"
            note(f"{name}, {estimator}, seed {seed}: {outcome}, {new.seconds:.1f} s")
    order = {run: place for place, run in enumerate(wished)}
    chosen = [run for run in runs if (run.task, run.estimator, run.seed) in order]
    return TaskStudy(sorted(chosen, key=lambda run: order[run.task, run.estimator, run.seed]))


def require_suited(tasks: Sequence[str] | None, estimators: Sequence[str] | None) -> None:
    """Raise if the name of a task or an estimator is unknown, or if no estimator suits a task."""
    for kind, names, known in (("task", tasks, TASKS), ("estimator", estimators, CONTENDERS)):
        for name in names or ():
            if name not in known:
                raise ValueError(f"unknown {kind} {name!r}{did_you_mean(name, known)}")
    if not any(True for _ in _pairs(tasks, estimators)):
        got = f"{', '.join(estimators or ())} for {', '.join(tasks or ())}"
        raise ValueError(f"estimators must suit one of the tasks, got {got}")


def _pairs(tasks: Sequence[str] | None, estimators: Sequence[str] | None) -> Iterator[tuple[str, str]]:
    """Yield the tasks and the estimators that suit them."""
    for name in TASKS if tasks is None else dict.fromkeys(tasks):
        for estimator in CONTENDERS:
            if estimator in TASKS[name].estimators and (estimators is None or estimator in estimators):
                yield name, estimator


def _run(
    name: str, estimator: str, *, seed: int, steps: int | None, device: torch.device | str, step: Callable[[], None]
) -> TaskRun:
    """Train one estimator on one task, and score the parameters with the best validation."""
    task, started = TASKS[name], time.perf_counter()
    steps = task.steps if steps is None else steps
    train, valid, test = (
        tuple(tensor.to(device) for tensor in task.inputs(split)) for split in ("train", "valid", "test")
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed_of(seed, Purpose.INITIAL))
        target = task.build().to(device)
        method = CONTENDERS[estimator].make(target, *train)
    parts = nn.ModuleList([target, *([method.to(device)] if isinstance(method, nn.Module) else [])])
    optimizer = torch.optim.Adam(parts.parameters(), lr=LR)
    order = Order(points=len(train[0]), batch=BATCH, seed=seed)
    noise = generator_of(seed, Purpose.NOISE, device=device)
    samples = 1 if estimator == "exact" else SAMPLES  # more samples only add joint states
    best, chosen, kept = math.inf, 0, dict[str, Tensor]()
    for taken in range(1, steps + 1):
        at = order.indices(taken - 1).to(device)
        batch = tuple(tensor[at] for tensor in train)
        loss = estimate(target, *batch, estimator=method, samples=samples, generator=noise).loss
        if not loss.isfinite():  # diverged; an earlier validation may have selected parameters
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step()
        if taken * VALIDATIONS // steps > (taken - 1) * VALIDATIONS // steps:
            score = _score(task, target, valid, seed=seed, purpose=Purpose.VALIDATION, share=SHARE)
            if score < best:
                best, chosen = score, taken
                kept = {key: tensor.clone() for key, tensor in target.state_dict().items()}
    if not kept:
        return TaskRun(name, estimator, seed, steps, 0, None, None, time.perf_counter() - started)
    target.load_state_dict(kept)
    last = _score(task, target, test, seed=seed, purpose=Purpose.EVALUATION)
    return TaskRun(name, estimator, seed, steps, chosen, best, last, time.perf_counter() - started)


def _score(
    task: Task, target: nn.Module, inputs: tuple[Tensor, ...], *, seed: int, purpose: Purpose, share: float = 1.0
) -> float:
    """Return the mean score of a split, or infinity if a parameter is not finite."""
    if not all(parameter.isfinite().all() for parameter in target.parameters()):
        return math.inf
    generator = generator_of(seed, purpose, device=inputs[0].device)
    return task.score(target, *inputs, generator=generator, share=share).mean().item()


def _content(runs: Sequence[TaskRun], about: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Return the content of a record."""
    study = TaskStudy(runs)
    scores = {(task, name): study.score(task, name) for task in study.tasks for name in study.estimators}
    summary = [
        {"task": task, "estimator": name, "code": CONTENDERS[name].code, "test": score.mean}
        | {"standard_error": score.standard_error, "seeds": score.seeds}
        for (task, name), score in scores.items()
        if score is not None
    ]
    tasks = {name: TASKS[name].description for name in study.tasks}
    seeds = sorted({run.seed for run in runs})
    return {
        "recipe": {**about, "tasks": tasks},
        **describe_environment(device),
        "seed": seeds,
        "summary": summary,
        "results": [asdict(run) for run in runs],
    }


def read_study(path: Path) -> TaskStudy:
    """Read the runs of a record."""
    return TaskStudy(_runs(path, _read(path)))


def _read(path: Path) -> dict[str, Any]:
    return dict(read_checked(path, remedy="move it, or name another folder", has_checksum=False))


def _runs(path: Path, content: Mapping[str, Any]) -> list[TaskRun]:
    results, names = content.get("results"), {field.name for field in fields(TaskRun)}
    is_known = isinstance(results, list) and all(
        isinstance(run, dict)
        and run.keys() == names
        and all(isinstance(run[name], str) for name in ("task", "estimator"))
        and all(is_count(run[name]) for name in ("seed", "steps", "step"))
        and all(run[name] is None or is_number(run[name]) for name in ("valid", "test"))
        and is_number(run["seconds"])
        for run in results
    )
    if not isinstance(results, list) or not is_known:
        raise ValueError(f"the record of a study must have its runs, got another in {str(path)!r}")
    return [TaskRun(**run) for run in results]


def _finished(path: Path, about: Mapping[str, Any], device: str) -> list[TaskRun]:
    """Return the runs of a record, which must have the same settings and environment as new runs."""
    if not path.exists():
        return []
    content = _read(path)
    runs = _runs(path, content)
    own = {key: content.get("recipe", {}).get(key) for key in about}
    other = [] if own == about else ["settings"]
    other += [key for key, value in describe_environment(device).items() if content.get(key) != value]
    if other:
        differing = " and ".join(other)
        raise ValueError(
            f"the record {path} must be of the same study, got other {differing}: move it, or name another folder"
        )
    return runs
