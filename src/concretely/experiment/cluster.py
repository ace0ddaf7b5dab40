"""Train the programs of an experiment as tasks of Ray, on this machine or on a cluster.

Ray runs any code that it receives, by default without authentication. So a Ray that is started here listens only on the
loopback interface, has no dashboard, and ends with the experiment.
"""

import os
import re
import secrets
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from ..environment import install_command
from ..training.folder import restored
from ..training.origin import sign_run
from ..training.own_recipe import OwnRecipe
from ..training.recipe import Member
from .board import Board, ProgramState
from .cluster_task import Outcome, Task, packed, run_task, token_path, unpack
from .record import FILE as RECORD
from .record import read_record
from .scheduler import POLL_SECONDS, is_settled
from .share import GPU_MEMBERS
from .subject import program_of
from .work import Bundle, Work

RETRIES = 3
"""How often a program is restarted after its process or machine was lost."""
GRACE_SECONDS = 60.0
"""How long programs have to save a checkpoint once they are asked to stop."""
CONNECT_SECONDS = 5.0
"""How long a cluster has to accept a connection."""
STORE_BYTES = 2**28
"""The memory for objects of a Ray that is started here. Results are in the folder, so that there are few objects."""
LOOPBACK = "127.0.0.1"
PORTS = {"": 6379, "ray://": 10001}
"""The usual ports of a cluster, by the scheme of its address."""


def require_ray() -> Any:
    """Import Ray, or raise an error that says how to install it."""
    try:
        import ray
    except ImportError:
        raise ImportError(f"ray is not installed: {install_command('ray')}") from None
    return ray


def isolate_ray() -> None:
    """Protect a Ray that this process starts from other users of this machine, by a random token.

    Ray reads the token when it is imported, and keeps it for all its connections. So the command does this, not the
    library.
    """
    if "ray" not in sys.modules and "RAY_AUTH_MODE" not in os.environ:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@contextmanager
def connected(address: str | None) -> Iterator["Session"]:
    """Yield a session with the given cluster, with the one that the caller is connected to, or with a new local one."""
    ray = require_ray()
    if ray.is_initialized():
        if address is not None:
            raise ValueError(f"address must be left out, as Ray is connected already, got {address!r}")
        yield Session(ray)
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if address is None:
            _start(ray)
        else:
            _join(ray, address)
        with suppress(ValueError):  # outside of the main thread, where Ray sets no handler either
            signal.signal(signal.SIGTERM, handler)  # Ray's own would end the process without a checkpoint
        yield Session(ray)
    finally:
        ray.shutdown()


def _start(ray: Any) -> None:
    """Start Ray on this machine, on the loopback interface."""
    statistics = os.environ.get("RAY_USAGE_STATS_ENABLED")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        how: dict[str, Any] = {"include_dashboard": False, "object_store_memory": STORE_BYTES}
        with _loopback():
            ray.init("local", **how, log_to_driver=False, logging_level="ERROR")
    except (RuntimeError, ConnectionError, ValueError) as error:
        why = str(error).strip().partition("\n")[0]
        raise ConnectionError(f"Ray must be able to start on this machine, got an error: {why}") from None
    finally:
        if statistics is None:
            del os.environ["RAY_USAGE_STATS_ENABLED"]
        else:
            os.environ["RAY_USAGE_STATS_ENABLED"] = statistics
    if (got := ray.util.get_node_ip_address()) != LOOPBACK:
        todo = "start it yourself with ray.init or ray start, and pass its address"
        raise ConnectionError(f"Ray must listen on {LOOPBACK} only, got {got}: {todo}")


@contextmanager
def _loopback() -> Iterator[None]:
    """Make Ray use the loopback interface as the address of this machine, as it does on other systems than Linux."""
    from ray._private import ray_constants

    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _join(ray: Any, address: str) -> None:
    """Connect to a cluster; raise an error of one sentence if that is not possible."""
    try:
        known = _running() if address == "auto" else address
        with nullcontext() if known == "auto" else _reached(ray, known):
            ray.init(known, log_to_driver=False, logging_level="ERROR")
    except _UnreachableError:
        raise
    except (RuntimeError, ConnectionError, ValueError, ImportError) as error:
        raise _connection_error(ray, address, error) from None


class _UnreachableError(ConnectionError):
    """Raised if an address accepts no connection."""


def _running() -> str:
    """Return the address of the cluster that runs on this machine, as reported by Ray; raise if there is none."""
    try:
        from ray._private.services import get_ray_address_from_environment
    except ImportError:
        return "auto"
    return str(get_ray_address_from_environment("auto", None))


def _reached(ray: Any, address: str) -> AbstractContextManager[None]:
    """Return a context in which Ray can connect to an address; raise if the address accepts no connection.

    Ray itself would wait for minutes, and then end the process.
    """
    must = "address must be that of a Ray cluster, such as auto or 10.0.0.1:6379"
    scheme = "ray://" if address.startswith("ray://") else ""
    host, _, port = address.removeprefix(scheme).rpartition(":")
    host, port = (host, port) if host else (port, str(PORTS[scheme]))
    if not port.isdecimal() or not 0 < int(port) < 2**16 or not host:
        raise _UnreachableError(f"{must}, got {address!r}")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        why = error.strerror or str(error)
        raise _UnreachableError(f"{must}, got {address!r}, which accepts no connection: {why}") from None
    if not scheme and host in (LOOPBACK, "localhost"):  # for Ray these are names of the outer address
        try:
            socket.create_connection((ray.util.get_node_ip_address(), int(port)), timeout=CONNECT_SECONDS).close()
        except OSError:
            return _loopback()
    return nullcontext()


def _connection_error(ray: Any, address: str, error: Exception) -> Exception:
    """Return an error of one sentence for one of Ray's."""
    text = str(error)
    if re.search("version mismatch|different version", text, re.IGNORECASE):
        theirs = re.search(r"cluster was started with:\s*Ray:\s*(\S+)\s*Python:\s*(\S+)", text)
        got = f"Ray {theirs[1]} and Python {theirs[2]}" if theirs else "others"
        here = f"Ray {ray.__version__} and Python {'.'.join(map(str, sys.version_info[:3]))}"
        todo = "install the same versions on all machines"
        return ConnectionError(f"the cluster at {address!r} must have {here}, as this process has, got {got}: {todo}")
    if address == "auto" and "Could not find any running Ray" in text:
        todo = "start one with ray start --head, pass its address, or leave address out"
        return ConnectionError(f"a Ray cluster must run on this machine for address 'auto', got none: {todo}")
    if any(type(cause).__name__ == "AuthenticationError" for cause in (error, error.__cause__)):
        todo = "set RAY_AUTH_MODE to token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to that of the cluster"
        return ConnectionError(f"the Ray cluster at {address!r} must know the token of this process, got none: {todo}")
    why = text.strip().partition("\n")[0]
    return ConnectionError(f"the Ray cluster at {address!r} must accept this process, got an error: {why}")


@dataclass(frozen=True)
class Session:
    """A connection to a cluster."""

    ray: Any

    def train(
        self, work: Work, *, programs_per_gpu: int = 4, members: int | None = None, device: str | None = None
    ) -> bool:
        """Train and score all bundles as tasks, and return whether all is done.

        A task takes up to `members` members of one architecture, by default 8 on a cluster with GPUs and 1 elsewhere.
        If the monitor stops the work, tasks save a checkpoint first.
        """
        gpus = 0.0 if device == "cpu" else self.ray.cluster_resources().get("GPU", 0.0)
        if device == "cuda" and not gpus:
            raise ValueError("device must be 'cpu', as the Ray cluster has no GPU, got 'cuda'")
        left = [bundle for bundle in work.bundles if not _is_done(bundle, work)]
        groups = _groups(left, members or (GPU_MEMBERS if gpus else 1))
        token = secrets.token_hex(8)
        visible = token_path(work.folder, token)
        visible.touch()
        try:
            share = {"num_gpus": 1 / programs_per_gpu} if gpus else {}
            remote = self.ray.remote(run_task).options(num_cpus=1, max_retries=RETRIES, **share)
            gpu = False if not gpus else True if device == "cuda" else None
            programs = [_Program(index, group, token, work, gpu) for index, group in enumerate(groups)]
            return self._run(programs, remote, work)
        finally:
            visible.unlink(missing_ok=True)

    def _run(self, programs: Sequence["_Program"], remote: Any, work: Work) -> bool:
        """Start all programs, and follow them to their end."""
        ray, monitor, complete, failure = self.ray, work.monitor, True, None
        board = ray.remote(Board).options(num_cpus=0).remote()
        running = {program.start(ray, remote, board): program for program in programs}
        deadline, starts = None, dict[int, int]()
        try:
            with monitor.watching() as show:
                while running:
                    done, _ = ray.wait([*running], num_returns=1, timeout=POLL_SECONDS)
                    for task in done:
                        try:
                            complete &= _finish(ray, task, running.pop(task), work)
                        except Exception as error:
                            complete, failure = False, failure or error  # the others save first
                    if deadline is None and (failure is not None or monitor.stop()):
                        deadline, complete = time.monotonic() + GRACE_SECONDS, False
                        for task in running:
                            ray.cancel(task)
                    if deadline is not None and time.monotonic() > deadline:
                        break
                    self._follow(board, programs, {program.index for program in running.values()}, starts, show, work)
        finally:
            for task in running:
                ray.cancel(task, force=True)
            ray.kill(board)
        if failure is not None:
            raise failure
        return complete and not running

    def _follow(
        self,
        board: Any,
        programs: Sequence["_Program"],
        running: set[int],
        starts: dict[int, int],
        show: Any,
        work: Work,
    ) -> None:
        """Show the states of all programs, and pass on their notes."""
        try:
            states, notes = self.ray.get(board.read.remote(), timeout=CONNECT_SECONDS)
        except self.ray.exceptions.RayError:  # the machine of the board is lost or busy
            return
        for index, sentence in notes:
            named = any(member.folder.name in sentence for member in programs[index].members)
            work.monitor.note(sentence if named else f"{programs[index].name}: {sentence}")
        for index, state in states.items():
            if state.get("starts", 0) > max(starts.get(index, 1), 1):
                work.monitor.note(f"{programs[index].name} was lost, and goes on from its last checkpoint")
            starts[index] = state.get("starts", 0)
        show([program.state(states, running) for program in programs])


@dataclass(frozen=True)
class _Program:
    """A group of bundles that one task trains."""

    index: int
    bundles: Sequence[Bundle]
    token: str
    work: Work
    gpu: bool | None

    @property
    def members(self) -> list[Member]:
        return [member for bundle in self.bundles for member in bundle]

    @property
    def name(self) -> str:
        first, *others = self.members
        return f"{first.folder.name} and {len(others)} more" if others else first.folder.name

    def start(self, ray: Any, remote: Any, board: Any) -> Any:
        """Start the task, and return the object of Ray that will be its outcome."""
        work = self.work
        task = Task(
            program=self.index,
            bundles=[[(member.recipe.settings, member.folder.name) for member in bundle] for bundle in self.bundles],
            folder=str(work.folder.resolve()),
            token=self.token,
            working_dir=str(Path.cwd()),
            score=work.score,
            gpu=self.gpu,
            precision=torch.get_float32_matmul_precision(),
            checkpoint_seconds=work.checkpoint_seconds,
            until=work.until,
            points=work.points,
            max_bytes=work.max_bytes,
        )
        begun = (any(member.folder.glob("checkpoint-*.json")) for member in self.members)
        kept = [
            ray.put(packed(member.folder)) if has else None for member, has in zip(self.members, begun, strict=True)
        ]
        return remote.remote(task, board, kept)

    def state(self, known: Mapping[int, Mapping[str, Any]], running: set[int]) -> ProgramState:
        """Return the state of the program."""
        state = ProgramState(self.name, len(self.members), self.work.until or self.members[0].recipe.steps)
        state = state._replace(**known.get(self.index, {}))
        ended = self.index not in running and state.state not in ("done", "stopped")
        return state._replace(state="done") if ended else state


def _is_done(bundle: Bundle, work: Work) -> bool:
    """Return whether there is nothing left to do for a bundle."""
    return all(is_settled(member, work.until) for member in bundle) and work.score.is_scored(bundle)


def _groups(bundles: Sequence[Bundle], size: int) -> list[list[Bundle]]:
    """Group bundles of one program, with up to `size` members or one bundle."""
    groups, last = list[list[Bundle]](), dict[object, list[Bundle]]()
    for bundle in bundles:
        key = program_of(bundle[0].recipe)
        group = last.get(key)
        if group is None or sum(map(len, group)) + len(bundle) > size:
            group = last[key] = []
            groups.append(group)
        group.append(bundle)
    return groups


def _finish(ray: Any, outcome: Any, program: _Program, work: Work) -> bool:
    """Take over the outcome of a task; return whether it is complete, or raise its error in one sentence."""
    errors = ray.exceptions
    try:
        result = cast("Outcome", ray.get(outcome))
    except errors.TaskCancelledError:
        return False
    except errors.RayTaskError as error:
        if "failed to import" in str(error) or isinstance(error.cause, ModuleNotFoundError):
            todo = "install it there with the extras that are used here"
            why = error.cause if isinstance(error.cause, ModuleNotFoundError) else "its module was not found"
            raise ImportError(f"concretely must be installed on all machines of the cluster ({why}): {todo}") from None
        raise error.cause if isinstance(error.cause, Exception) else error from None
    except errors.RayError as error:
        lost = f"{program.name} was lost {RETRIES + 1} times ({type(error).__name__})"
        todo = "look at the memory and the logs of its machine, then run the same command to go on"
        raise ConnectionError(f"{lost}: {todo}") from None
    folders = {member.folder.name: member for member in program.members}
    for name, files in (result.files or {}).items():
        unpack(files, folders[name].folder)
        if isinstance(folders[name].recipe, OwnRecipe):
            sign_run(folders[name].folder, folders[name].recipe)  # the caller has named its function
    for name in result.scored:
        run, model, _ = restored(folders[name].folder)
        record = read_record(folders[name].folder / RECORD)
        work.monitor.scored(folders[name].folder, run, model, work.data(run.recipe), record)
    return result.complete
