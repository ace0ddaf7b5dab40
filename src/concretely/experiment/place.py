"""Where the members of an experiment are trained: in this process, in several that share a folder, or on Ray."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..spelling import did_you_mean
from .scheduler import Monitor
from .share import require_locks, train_shared
from .work import Train, train_here


@dataclass(frozen=True)
class Here:
    """This process alone trains."""


@dataclass(frozen=True)
class Share:
    """Every process that was started with the same folder trains members that no other process holds."""

    members_per_program: int | None = None
    """The maximum number of members that a process trains as one program, by default 8 on a GPU and 1 elsewhere."""

    def __post_init__(self) -> None:
        _require_positive(members_per_program=self.members_per_program)


@dataclass(frozen=True)
class Ray:
    """Programs are tasks of Ray, on this machine or on a cluster."""

    address: str | None = None
    """The address of a cluster, such as "auto" or "10.0.0.1:6379". By default Ray is started on this machine."""
    programs_per_gpu: int = 4
    """The number of programs that share a GPU."""
    members_per_program: int | None = None
    """The maximum number of members of one program, by default 8 on a cluster with GPUs and 1 elsewhere."""
    device: str | None = None
    """Whether tasks train on "cpu" or "cuda". By default they take a GPU if the cluster has one."""

    def __post_init__(self) -> None:
        _require_positive(programs_per_gpu=self.programs_per_gpu, members_per_program=self.members_per_program)
        if self.device not in (None, "cpu", "cuda"):
            raise ValueError(f"device must be 'cpu' or 'cuda' on Ray, which chooses the GPU, got {self.device!r}")


Place = Here | Share | Ray
PLACES: dict[str, type[Place]] = {"here": Here, "share": Share, "ray": Ray}


def place_of(on: str | Place) -> Place:
    """Return a place by its name.

    >>> place_of("ray")
    Ray(address=None, programs_per_gpu=4, members_per_program=None, device=None)
    """
    if not isinstance(on, str):
        return on
    if on not in PLACES:
        raise ValueError(f"unknown place {on!r}{did_you_mean(on, PLACES)}")
    return PLACES[on]()


@contextmanager
def opened(on: str | Place, folder: Path, monitor: Monitor) -> Iterator[Train]:
    """Yield a function that trains and scores at a place, in a folder that exists."""
    match place_of(on):
        case Here():
            yield train_here
        case Share(members):
            require_locks(folder, monitor.note)
            yield partial(train_shared, members=members)
        case Ray() as place:
            from .cluster import connected  # needs ray, which is optional

            with connected(place.address) as session:
                yield partial(
                    session.train,
                    programs_per_gpu=place.programs_per_gpu,
                    members=place.members_per_program,
                    device=place.device,
                )


def _require_positive(**numbers: int | None) -> None:
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
