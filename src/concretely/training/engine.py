"""The step engine: it takes the training steps of one run, or of many runs of one architecture together.

Runs that are trained together are called members. They may differ in seed, learning rate, weight decay, temperatures
and data. Everything that a step changes lies in tensors whose first axis counts members; a single run has one member.
On a GPU the step of all members is one vmapped program, captured as a CUDA graph and replayed. On a CPU every member
runs its own program, so that its result has the same bits as if it were trained alone.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any
from warnings import warn

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_map_only

from ..distribution.check import mark_bits, postponing_checks
from ..functional.linear import fewer_launches
from ..functional.noise import Keys
from ..kernel.deferred import DeferredGradient, deferred_gradients
from ..kernel.operator import launching
from ..layer.base import layers
from .capture import Captured, compiled
from .feed import TOGETHER, Inputs, StepTable
from .optimizer import StepLog, guard_
from .place import State, joined_state, keep_tensors, keeping_buffers, kept_of, over_members, path_of, places_of
from .rank_step import RankStep
from .rng import Purpose, has_drawn, keys_of_part, seed_torch, torch_generators
from .stream import EndOfDataError
from .task import MemberLoss
from .torch_optimizer import update_of
from .trial import is_lost, require_finite

if TYPE_CHECKING:
    from .train_state import TrainState

GAP_INTERVAL = TOGETHER
"""The least interval, in steps, at which the gap is measured: the trained bound minus that of the discrete graph."""

METRICS = 5
"""The number of entries of `TrainState.metrics`."""
TINY = 1e-6
"""Added to norms, so that a gradient of zero can be divided by its norm."""


class Engine:
    """Takes the steps of runs that have all reached the same step.

    The models of the runs are views of the state that steps change, so that changes to a model between two calls of
    `advance` affect the next step. `stacked` says whether all members run as one program, by default only on a GPU.
    `note` receives a sentence if steps cannot be stacked or captured. `gap_interval` is a multiple of `GAP_INTERVAL`.
    """

    def __init__(
        self,
        runs: Sequence["TrainState"],
        *,
        stacked: bool | None = None,
        note: Callable[[str], None] = warn,
        gap_interval: int | None = None,
    ) -> None:
        first = runs[0]
        if len({(run.task.key, run.step, run.since) for run in runs}) > 1:
            raise ValueError("members of an engine must have one architecture, estimator and step, got others")
        self.runs, self.device = tuple(runs), first.device
        self._note, self._gap_interval = note, gap_interval or GAP_INTERVAL
        self._ended: EndOfDataError | None = None
        self.stacked = self._may_stack() if stacked is None else stacked
        groups = [self.runs] if self.stacked else [(run,) for run in self.runs]
        self._programs = [_Program(group, vmapped=self.stacked, note=note) for group in groups]
        self._measures_gap, self._reseeds = first.task.monitor is not None, first.task.reseeds

    def _may_stack(self) -> bool:
        """Return whether all members can run as one program, and should."""
        stacks = "never" if self.runs[0].world.shards else self.runs[0].task.stacks
        if self.device.type == "cpu" or stacks == "never" or (stacks == "several" and len(self.runs) == 1):
            return False
        why = why_not_stacked(self.runs) if stacks == "several" else None
        if why is not None:
            self._note(f"members run one after the other in every step, as vmap does not support them: {why}")
        return why is None

    @property
    def step(self) -> int:
        """The number of steps taken so far."""
        return self.runs[0].step

    def advance(self, until: int, *, pause: Callable[[], bool] = lambda: False, each: bool = False) -> None:
        """Take steps until the step `until`, or until `pause`, called after `each` step or after ten, returns true."""
        since = max(run.since for run in self.runs)  # runs that have ended no longer begin new rows
        for program in self._programs:
            program._loss.train()
        with launching(self.device), torch_generators(self.device) if self._reseeds else nullcontext():
            while self.step < until and self._fetched():
                steps = 1 if each or (self.step - since) % GAP_INTERVAL else self._together(until)
                self._take_steps(steps, gap=self._measures_gap and (self.step - since) % self._gap_interval == 0)
                for run in self.runs:
                    run.step += steps
                if pause():
                    break
            if self.runs[0].world.ranks > 1:
                self.runs[0].world.settle()
            for program in self._programs:
                program.set_metrics()
        if self._ended is not None:
            raise self._ended

    def _together(self, until: int) -> int:
        """Return how many of the next steps are one graph, since a GPU pauses for some microseconds between graphs."""
        fits = self.step + GAP_INTERVAL <= until and self.runs[0].world.ranks == 1  # ranks vote after each step
        fits = fits and all(program.may_repeat(self.step) for program in self._programs)
        return GAP_INTERVAL if fits else 1

    def _take_steps(self, steps: int, *, gap: bool) -> None:
        """Take steps of every program, side by side on a GPU if they can be captured.

        Graphs that draw from torch's generator run one after the other, as they read its seed from the same memory.
        Graphs of several ranks do so too, as their averages must have one order.
        """
        streams = [program.stream for program in self._programs if program.stream is not None]
        is_alone = len(streams) < 2 or len(streams) < len(self._programs) or self.runs[0].world.ranks > 1
        if is_alone or any(program.draws_from_torch for program in self._programs):
            for program in self._programs:
                program.take_steps(self.step, steps, gap=gap)
            return
        current = torch.cuda.current_stream(self.device)
        for program, stream in zip(self._programs, streams, strict=True):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                program.take_steps(self.step, steps, gap=gap)
        for stream in streams:
            current.wait_stream(stream)

    def _fetched(self) -> bool:
        """Read the data of the next step for all members, and return whether there are any."""
        try:
            for run in self.runs:
                run.task.feed.fetch(self.step)
        except EndOfDataError as error:  # raised when the metrics are read
            self._ended = error
        return self._ended is None

    @property
    def is_captured(self) -> bool | None:
        """Whether all steps so far could be captured as CUDA graphs, or None if that was not tried."""
        works = [work for program in self._programs for work in program._works.values()]
        tried = [work.is_possible for work in works if isinstance(work, Captured)]
        return all(tried) if tried else None

    def without_ended(self, active: Sequence["TrainState"]) -> "Engine":
        """Return an engine for the runs that are still active: this engine, or a new one.

        A stacked engine is kept until half of its members have ended. Until then, stepping the ended members costs less
        than capturing a new program.
        """
        if len(active) > len(self.runs) // 2 if self.stacked else len(active) == len(self.runs):
            return self
        self.close()
        return Engine(active, stacked=self.stacked, note=self._note, gap_interval=self._gap_interval)

    def close(self) -> None:
        """Free the captured graphs. NCCL cannot be shut down before the graphs that use it are freed."""
        for program in self._programs:
            program._works.clear()


def why_not_stacked(runs: Sequence["TrainState"]) -> str | None:
    """Return why the next step of several runs cannot be one vmapped program, or None if it can."""
    program = _Program(runs, vmapped=True)
    kept = {name: tensor.clone() for name, tensor in program._constants.items()}
    try:
        program.try_step(runs[0].step)
    except Exception as error:  # any error: vmap does not support something
        return (str(error).splitlines() or [type(error).__name__])[0]
    finally:
        for name, tensor in program._constants.items():
            tensor.copy_(kept[name])
    return None


class _Program:
    """The step of members that run as one program."""

    def __init__(self, runs: Sequence["TrainState"], *, vmapped: bool, note: Callable[[str], None] = warn) -> None:
        first, task = runs[0], runs[0].task
        self._runs, self._task, self._vmapped, self._note = runs, task, vmapped, note
        self._loss, self._monitor = task.loss, task.monitor
        state = first.state if len(runs) == 1 else joined_state(runs)
        own = {name: parameter for name, parameter in task.loss.named_parameters() if parameter.requires_grad}
        others = (*task.loss.named_parameters(), *task.loss.named_buffers())
        self._constants = {name: state[path_of(name)] for name, _ in others if name not in own}
        replaces = task.examines and first.sharding is None  # a model of one's own may replace data of parameters
        self._kept = ([], []) if vmapped else kept_of(task.loss, state if replaces else None)
        self._update = update_of(runs, state, list(own))
        self._layers = [layer for _, layer in layers(task.model)]
        self._averages = [(state[path_of(name)], state.get(f"ema/{name}")) for name in own]
        self._log, self._metrics = StepLog(state["row/sums"], state["row/first_nonfinite"]), state.get("row/metrics")
        stacked = {name: state[path_of(name)].detach().requires_grad_() for name in own}
        self._leaves: State = stacked if vmapped else dict(own)
        draws, monitor_draws = first.draws
        self._table = StepTable(runs, draws=draws * task.parts, monitor_draws=monitor_draws)
        self._ones = torch.ones(len(runs), device=first.device)
        # torch has the weight of a single loss by itself, in less time
        self._weight = None if len(runs) == task.parts == 1 else self._ones / task.parts
        self._works = dict[Hashable, Callable[[], None]]()
        captures = first.device.type == "cuda" and all(run.may_capture for run in runs)
        self.stream = torch.cuda.Stream(first.device) if captures else None
        """The stream on which steps are captured, or None if they are not."""
        self.draws_from_torch = False
        """Whether a step has drawn from torch's generator of the device."""
        self._call = compiled(self._called, first.device, note=note) if task.compiles else self._called
        self._sharding, shared = first.sharding, (self._leaves, self._constants if vmapped else None)
        self._ranks = RankStep(first.world, task, *shared) if first.world.ranks > 1 else None
        # reading a loss would wait for a GPU, and a second run on one rank would communicate with no other
        self._postpones = first.device.type == "cpu" and not vmapped and not task.compiles and self._ranks is None

    def may_repeat(self, step: int) -> bool:
        """Return whether several steps from a step on may be one graph: the host has nothing to do between them."""
        work = self._works.get((1, False, None))
        if not isinstance(work, Captured) or not work.is_captured or self.draws_from_torch:
            return False
        return self._task.feed.is_on_device and self._table.has_lines(step, GAP_INTERVAL)

    def take_steps(self, step: int, steps: int, *, gap: bool) -> None:
        """Take steps. With `gap`, also measure the trained bound minus that of the discrete graph in the first."""
        if self._task.reseeds:
            rank = 0 if self._ranks is None else self._ranks.seeded_rank
            seed_torch(self._task.recipe.seed, step, self._runs[0].device, rank=rank)
        work = steps, gap, self._table.prepare(step)
        if work not in self._works:
            take = partial(self._steps, steps, gap=gap)
            self._works[work] = take if self.stream is None else Captured(take, self.stream, note=self._note)
        try:
            self._works[work]()
            if self._task.reseeds and self.stream is not None:
                self.draws_from_torch |= has_drawn(self.stream.device)
        except ValueError as error:  # distributions refuse what is not finite
            if not any(map(is_lost, self._runs)):
                batches = [self._table.batch(part) for part in range(self._task.parts)]
                require_finite(tree_map_only(Tensor, lambda own: own[0], batches), f"step {step:,}", error)
                raise
            self._log.first_nonfinite.masked_fill_(self._log.first_nonfinite < 0, step)

    def try_step(self, step: int) -> None:
        """Compute the gradients of a step without an update. Buffers of the model may change."""
        self._loss.train()
        with torch_generators(self._runs[0].device), keeping_buffers(self._loss):
            self._table.prepare(step)
            self._table.read()
            self._differentiated()

    def set_metrics(self) -> None:
        """Copy the metrics of all members from the device. This waits for the device."""
        parts = [self._log.sums, self._log.first_nonfinite.unsqueeze(-1)]
        metrics = torch.cat(parts if self._metrics is None else [*parts, self._metrics], -1).tolist()
        for run, own in zip(self._runs, metrics, strict=True):
            run.metrics, run.measured = own[:METRICS], own[METRICS:]

    def _steps(self, steps: int, *, gap: bool) -> None:
        """Take steps without synchronizing with the host."""
        self._table.read(steps)
        for place in range(steps):
            self._table.select(place)
            self._step(gap=gap and place == 0)

    def _step(self, *, gap: bool = False) -> None:
        """Take the step of the selected line without synchronizing with the host."""
        loss, gradients, inputs, last = self._differentiated()
        with torch.no_grad():
            if any(self._kept):
                keep_tensors(*self._kept)
            if self._ranks is not None:
                loss, gradients = self._ranks.means(loss, gradients)
            sizes, watched = self._table.sizes, list[Tensor]()
            needs_norm = self._task.clip or self._sharding is not None or (gap and self._metrics is not None)
            norm = self._norm(gradients) if needs_norm else None
            if gap:
                self._measure(inputs, last, norm)
                if any(self._kept):
                    keep_tensors(*self._kept)
            if norm is None:
                seen = [gradient for name, gradient in gradients.items() if name in self._task.watched]
                watched = [gradient for gradient in seen if not isinstance(gradient, DeferredGradient)]
            sizes = guard_(self._log, watched if norm is None else [norm.unsqueeze(-1)], loss, sizes)
            if norm is not None and self._task.clip:
                scale = (self._task.clip / (norm + TINY)).clamp(max=1.0)
                gradients = {name: gradient * over_members(scale, gradient) for name, gradient in gradients.items()}
            self._update(gradients, sizes)
            if self._task.ema is not None:
                for parameter, average in self._averages:
                    if average is not None:
                        average.lerp_(parameter, 1 - self._task.ema)
            for layer in self._layers:
                layer.advance()

    def _differentiated(self) -> tuple[Tensor, dict[str, Tensor], Inputs, Tensor]:
        """Return the loss and its gradients, averaged over the parts of a step; inputs and loss of the last part."""
        parts, total, gradients, inputs, loss = self._task.parts, self._ones, dict[str, Tensor](), None, self._ones
        for part in range(parts):
            inputs = self._table.batch(part)
            with self._computing(inputs):
                loss = self._trained(inputs, part)
                slopes = self._slopes(loss)
            loss = self._by_member(loss.detach())
            total = loss if parts == 1 else (total * bool(part) + loss / parts)
            for name, slope in zip(self._leaves, slopes, strict=True):
                if slope is not None:
                    own = self._by_member(slope)
                    gradients[name] = gradients[name] + own if name in gradients else own
        return total, gradients, inputs, loss

    def _trained(self, inputs: Inputs, part: int) -> Tensor:
        """Return the loss to differentiate. On a CPU, a second run names observed logits if it is not finite."""
        given = self._loss, inputs, Purpose.NOISE, part
        with postponing_checks() if self._postpones else nullcontext():
            loss = self._losses(*given)
        if self._postpones and not math.isfinite(loss.item()):
            self._losses(*given)
        return loss

    def _slopes(self, loss: Tensor) -> Sequence[Tensor | None]:
        """Return the gradients of all leaves; if they are sharded, of the parts of this rank."""
        weight = None if self._weight is None else self._weight.to(loss.dtype).view_as(loss)
        if self._sharding is not None:
            return self._sharding.gradients(loss, weight)
        return torch.autograd.grad([loss], list(self._leaves.values()), [weight], allow_unused=True)

    def _by_member(self, tensor: Tensor) -> Tensor:
        """Return a result of the program with an axis of members, which a program that is not vmapped lacks."""
        return tensor if self._vmapped else tensor.unsqueeze(0)

    def _computing(self, inputs: Inputs) -> AbstractContextManager[Any]:
        """Return the context to compute losses and gradients in. Ranks average whole gradients, not factors."""
        defers = self._vmapped and self._ranks is None
        layers: AbstractContextManager[None] = deferred_gradients() if defers else nullcontext()
        if self.stream is not None and not self._task.compiles:
            layers = fewer_launches(stacked=self._vmapped, deferred=defers)
        if self._ranks is None:
            return layers
        both = ExitStack()
        both.enter_context(self._ranks.drawing(inputs))
        both.enter_context(layers)
        return both

    def _measure(self, inputs: Inputs, loss: Tensor, norm: Tensor | None) -> None:
        """Measure the discrete graph on a batch with a loss, and add the gap and the metrics to the sums of the row."""
        assert self._monitor is not None
        gathered = nullcontext() if self._sharding is None else self._sharding.gathered()
        with gathered, self._computing(inputs):
            measured = self._by_member(self._losses(self._monitor, inputs, Purpose.GAP)).reshape(len(loss), -1)
            if self._task.relaxed is not None:
                loss = self._by_member(self._losses(self._task.relaxed, inputs, Purpose.GAP))
        measured[:, 0] = measured[:, 0] - loss if self._task.relaxes else 0 * loss
        measured = measured if self._ranks is None else self._ranks.world.mean(measured)
        self._log.sums[:, 2:] += torch.stack([measured[:, 0], self._ones], -1)
        if self._metrics is not None and norm is not None:
            self._metrics += torch.cat([norm.unsqueeze(-1), measured[:, 1:], self._ones.unsqueeze(-1)], -1)

    def _norm(self, gradients: dict[str, Tensor]) -> Float[Tensor, " members"]:
        """Return the norm of the gradient of every member."""
        norms = [torch.linalg.vector_norm(by.reshape(len(by), -1), dim=1) for by in gradients.values()]
        norm: Tensor = torch.linalg.vector_norm(torch.stack([one.to(self._ones.dtype) for one in norms]), dim=0)
        return norm if self._sharding is None else self._sharding.norm(norm)

    def _losses(self, function: MemberLoss, inputs: Inputs, purpose: Purpose, part: int = 0) -> Tensor:
        """Return the loss of every member (see `_by_member`), with the keys of a purpose."""
        keys, controls = self._table.keys[purpose], self._table.controls
        if purpose is Purpose.NOISE and self._task.parts > 1:
            keys = keys_of_part(keys, part, self._task.parts)
        return (self._call if purpose is Purpose.NOISE else self._called)(function, inputs, keys, controls)

    def _called(self, function: MemberLoss, inputs: Inputs, keys: Tensor, controls: Tensor) -> Tensor:
        """Return the loss of every member (see `_by_member`)."""
        seeds, noise = not self._task.reseeds, (lambda keys: keys) if self._ranks is None else self._ranks.world.noise
        if not self._vmapped:
            own = inputs[0] if isinstance(inputs, Tensor) else tree_map_only(Tensor, lambda tensor: tensor[0], inputs)
            # on a GPU, reading numbers would wait for it
            reads, numbers = controls.is_cpu and not self._task.compiles, controls[:, 0] if self._task.controls else ()
            given = tuple(numbers.tolist() if reads and isinstance(numbers, Tensor) else numbers)
            if reads and self._table.has_bits:
                mark_bits(own)
            value: Tensor = function(own, noise(Keys(keys[:, 0], seeds_torch=seeds, more=self._table.more)), given)
            return value

        places = places_of(function)
        own = {name: (self._leaves | self._constants)[name] for name in places.values()}

        def of_member(own: State, inputs: Any, keys: Tensor, controls: Tensor) -> Tensor:
            given = inputs, noise(Keys(keys, seeds_torch=seeds, more=self._table.more)), tuple(controls)
            tensors = {place: own[name] for place, name in places.items()}
            loss: Tensor = functional_call(function, tensors, given, tie_weights=False)
            return loss

        stacked = vmap(of_member, in_dims=(0, 0, 1, 1), randomness="error" if seeds else "different")
        return stacked(own, inputs, keys, controls)
