"""The registry of operators: it decides between a definition in torch operations and its Triton kernel.

`operator` registers a definition together with a module of `concretely.kernel` that computes the same. This is the
only place that asks whether a kernel can run:

- If it can, the kernel runs as one autograd node and as one operator of torch, which can be batched and compiled.
- Otherwise the definition runs, and autograd, `torch.func` and the compiler see ordinary torch operations.

The first axis of every tensor argument counts members: independent programs that run as one.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Generic, ParamSpec, TypeVar, cast

import torch
from torch import Tensor, nn
from torch._C import _get_function_stack_at, _len_torch_function_stack
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext
from torch.utils._pytree import tree_flatten, tree_unflatten

from .library import batched, contiguous, memory, parameter, registered, schema_type

_DISABLED: set[str] = set()


P = ParamSpec("P")
R = TypeVar("R")
Arranged = tuple[Sequence[Any], Callable[[Any], Any]]
"""The arguments of a kernel, and a function that gives its results the shape that they are to have."""


def operator(
    name: str,
    *,
    kernel: str,
    eligible: Callable[..., bool] | None = None,
    arrange: Callable[..., Arranged] | None = None,
    nondifferentiable: Sequence[int] = (),
) -> "Callable[[Callable[P, R]], Operator[P, R]]":
    """Register a definition with its kernel.

    The definition is a pure function of tensors, lists of tensors and plain values, with annotations. It returns a
    tensor or a tuple of tensors that share no memory with each other. Its kernel is the function of the same name in
    the module `concretely.kernel.<kernel>`, which is imported when it is first needed. With `draw` for its name, the
    gradient of the kernel is

        draw_backward(by, needs, inputs, outputs)

    where `by` has the gradient of every output or None, `needs` says for every argument whether its gradient is
    needed, and `inputs` and `outputs` are those of the kernel. It returns the gradients of the arguments in their
    order, None for those without one; trailing ones may be left out, and a list of tensors has a list of gradients.
    Without such a function, and where gradients are differentiated again, the definition is differentiated.

    Args:
        name: The name of the operator of torch.
        kernel: The module with the kernel.
        eligible: A condition on the arguments under which the kernel can run. That the first tensor is on the current
            GPU and not of float64 is always asked for.
        arrange: A function that turns the arguments into those of the kernel, and says how to undo it in the results:
            where a kernel takes tensors of other shapes, or has options of its own. The definition must be the same
            function of either arguments.
        nondifferentiable: The places of outputs without a gradient.
    """
    return lambda definition: Operator(definition, name, kernel, eligible, arrange, tuple(nondifferentiable))


@contextmanager
def disabled(*names: str) -> Iterator[None]:
    """Run definitions in place of the kernels with these names, of an operator or of a module, to compare the two."""
    added = set(names) - _DISABLED
    _DISABLED.update(added)
    try:
        yield
    finally:
        _DISABLED.difference_update(added)


@cache
def has_triton() -> bool:
    """Whether Triton is installed, as it is beside every torch for CUDA."""
    return find_spec("triton") is not None


def is_launchable(tensor: Tensor) -> bool:
    """Whether a kernel can be launched on a tensor: whether it is on the current GPU."""
    if not tensor.is_cuda or not has_triton():
        return False
    if torch.compiler.is_compiling() or not torch.cuda.is_initialized():  # then nothing is launched yet
        return True
    return tensor.device.index == torch.cuda.current_device()


def is_enabled(kernel: str, tensor: Tensor) -> bool:
    """Whether the kernels of a module can be launched on a tensor and are not disabled.

    Kernels that change their arguments in place are no operators: their callers ask this.
    """
    return kernel not in _DISABLED and is_launchable(tensor)


def launching(device: torch.device) -> AbstractContextManager[Any]:
    """Launch kernels on a device, if it is a GPU."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class Operator(Generic[P, R]):
    """A definition and its kernel as one function."""

    def __init__(
        self,
        definition: Callable[P, R],
        name: str,
        kernel: str,
        eligible: Callable[..., bool] | None,
        arrange: Callable[..., Arranged] | None,
        nondifferentiable: tuple[int, ...],
    ) -> None:
        self.definition, self.name, self.kernel = definition, name, kernel
        self._defined = cast("Callable[..., Any]", definition)
        self.__doc__, self.__name__ = definition.__doc__, definition.__name__
        self._eligible, self._arrange, self._nondifferentiable = eligible, arrange, nondifferentiable
        self._signature = inspect.signature(definition)
        given = self._signature.parameters
        self._defaults = tuple(each.default for each in given.values())
        parameters = [parameter(name, schema_type(each.annotation)) for name, each in given.items()]
        self._first = next(i for i, each in enumerate(parameters) if each.annotation in (Tensor, list[Tensor]))
        returned = schema_type(self._signature.return_annotation)
        self.registered = registered(name, self._launch, parameters, returned)
        self.registered.register_fake(lambda *given: contiguous(self._defined(*given)))
        self.registered.register_vmap(lambda *given: batched(self.registered, *given))
        self.registered.register_autograd(self._pull_nested, setup_context=self._save_registered)
        trail = [parameter("outputs", list[Tensor]), parameter("needs", list[bool])]
        parameters = [parameter("by", list[Tensor | None]), *parameters, *trail]
        self.backward = registered(f"{name}_backward", self._launch_backward, parameters, list[Tensor])
        self.backward.register_fake(self._fake_backward)
        self.backward.register_vmap(lambda *given: batched(self.backward, *given))
        self._apply: Callable[..., Any] = self._function().apply

    def __call__(self, *given: P.args, **named: P.kwargs) -> R:
        """Run the kernel if it is eligible, else the definition."""
        first: Any = given[self._first]
        if not is_launchable(first if isinstance(first, Tensor) else first[0]):
            return self.definition(*given, **named)
        arguments = self._complete(given, named)
        if not self._is_eligible(arguments) or _is_transformed():
            return self.definition(*given, **named)
        if self._arrange is None:
            return cast("R", self._called(arguments))
        arranged, restore = self._arrange(*arguments)
        return cast("R", restore(self._called(list(arranged))))

    def _called(self, arguments: list[Any]) -> Any:
        """Call the kernel: as an operator of torch if torch has to see it, else as an autograd node or directly."""
        leaves, structure = _flattened(arguments)
        if not is_plain(leaves) or _is_watched():
            return self.registered(*arguments)
        if torch.is_grad_enabled() and any(isinstance(each, Tensor) and each.requires_grad for each in leaves):
            return self._apply(*leaves, structure)
        return self._forward(*arguments)

    def runs_kernel(self, *arguments: Any) -> bool:
        """Whether a call with these arguments would run the kernel."""
        first = arguments[self._first]
        first = first if isinstance(first, Tensor) else first[0]
        return is_launchable(first) and self._is_eligible(arguments) and not _is_transformed()

    @cached_property
    def _module(self) -> ModuleType:
        return import_module(f"concretely.kernel.{self.kernel}")

    @property
    def _forward(self) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(self._module, self.__name__)
        return function

    @property
    def _backward(self) -> Callable[..., Any] | None:
        return getattr(self._module, f"{self.__name__}_backward", None)

    def _complete(self, given: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        """All arguments in their order, sequences of tensors as lists."""
        if named:
            bound = self._signature.bind(*given, **named)
            bound.apply_defaults()
            given = bound.args
        arguments = [*given, *self._defaults[len(given) :]]
        return [list(each) if isinstance(each, tuple) else each for each in arguments]

    def _is_eligible(self, arguments: Sequence[Any]) -> bool:
        first = arguments[self._first]
        if (first if isinstance(first, Tensor) else first[0]).dtype == torch.float64:
            return False
        if _DISABLED and not _DISABLED.isdisjoint((self.name, self.kernel)):
            return False
        return self._eligible is None or bool(self._eligible(*arguments))

    def _launch(self, *arguments: Any) -> Any:
        """What the operator of torch does: launch the kernel or, where there is none, run the definition."""
        first = arguments[self._first]
        first = first if isinstance(first, Tensor) else first[0]
        with launching(first.device):
            if is_launchable(first) and self._is_eligible(arguments):
                return self._forward(*arguments)
        return contiguous(self._defined(*arguments))

    def _launch_backward(self, by: list[Tensor | None], *given: Any) -> list[Tensor]:
        """The gradients that are needed, from the kernel."""
        *inputs, outputs, needs = given
        leaves = tree_flatten(inputs)[0]
        with launching(leaves[needs.index(True)].device):
            found = self._pulled_by_kernel(by, inputs, outputs, needs)
        # an operator of torch returns memory of its own, each piece once
        taken = {memory(tensor) for tensor in (*by, *leaves, *outputs) if isinstance(tensor, Tensor)}
        gradients = []
        for leaf, gradient, needed in zip(leaves, found, needs, strict=True):
            if needed:
                gradient = torch.zeros_like(leaf) if gradient is None else gradient.contiguous()
                gradients.append(gradient.clone() if memory(gradient) in taken else gradient)
                taken.add(memory(gradient))
        return gradients

    def _fake_backward(self, by: list[Tensor | None], *given: Any) -> list[Tensor]:
        *inputs, _, needs = given
        return [
            torch.empty_like(leaf, memory_format=torch.contiguous_format)
            for leaf, needed in zip(tree_flatten(inputs)[0], needs, strict=True)
            if needed
        ]

    def _save_registered(self, ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        """Keep what the gradient of torch's own operator needs, which may have run the definition."""
        leaves, structure = _flattened(inputs)
        first = next(leaf for leaf in leaves if isinstance(leaf, Tensor))
        self._save(ctx, leaves, structure, output, by_kernel=is_launchable(first) and self._is_eligible(inputs))

    def _save(self, ctx: Any, leaves: Sequence[Any], structure: Any, output: Any, *, by_kernel: bool) -> None:
        """Keep what the gradient needs: all tensors that went in and came out."""
        outputs = (output,) if isinstance(output, Tensor) else output
        ctx.structure, ctx.by_kernel = structure, by_kernel
        ctx.others = [None if isinstance(leaf, Tensor) else (leaf,) for leaf in leaves]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(outputs[place] for place in self._nondifferentiable))
        ctx.save_for_backward(*(leaf for leaf in leaves if isinstance(leaf, Tensor)), *outputs)

    def _pull(self, ctx: Any, by: Sequence[Tensor | None], needs: list[bool]) -> list[Tensor | None]:
        """The gradients of all leaves of the arguments."""
        if all(each is None for each in by):
            return [None] * len(needs)
        saved = iter(ctx.saved_tensors)
        leaves = [next(saved) if other is None else other[0] for other in ctx.others]
        outputs = list(saved)
        if torch.is_grad_enabled() or not ctx.by_kernel or self._backward is None:
            return self._pulled_by_definition(by, leaves, ctx.structure, needs)
        inputs = _unflattened(leaves, ctx.structure)
        if is_plain([*by, *leaves]):
            return self._pulled_by_kernel(by, inputs, outputs, needs)
        found = iter(self.backward(list(by), *inputs, outputs, needs))
        return [next(found) if needed else None for needed in needs]

    def _pull_nested(self, ctx: Any, *by: Tensor | None) -> tuple[Any, ...]:
        """Likewise for torch's own node, which has a list of gradients for each list of tensors."""
        found = self._pull(ctx, by, tree_flatten(list(ctx.needs_input_grad))[0])
        return tuple(_unflattened(found, ctx.structure))

    def _pulled_by_kernel(
        self, by: Sequence[Tensor | None], inputs: Sequence[Any], outputs: Sequence[Tensor], needs: Sequence[bool]
    ) -> list[Tensor | None]:
        assert self._backward is not None
        nested = _unflattened(needs, _flattened(inputs)[1])
        needed = tuple(any(each) if isinstance(each, list) else each for each in nested)
        found = list(self._backward(tuple(by), needed, tuple(inputs), tuple(outputs)))
        found += [None] * (len(inputs) - len(found))
        gradients: list[Tensor | None] = []
        for each, gradient in zip(inputs, found, strict=True):
            if isinstance(each, list):
                gradients += [None] * len(each) if gradient is None else gradient
            else:
                gradients.append(gradient)
        return [gradient if needed else None for gradient, needed in zip(gradients, needs, strict=True)]

    def _pulled_by_definition(
        self, by: Sequence[Tensor | None], leaves: list[Any], structure: Any, needs: list[bool]
    ) -> list[Tensor | None]:
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            # one argument may depend on another, through which no gradient must pass here
            leaves = [
                leaf if not needed else leaf.view_as(leaf) if again else leaf.detach().requires_grad_()
                for leaf, needed in zip(leaves, needs, strict=True)
            ]
            output = self._defined(*_unflattened(leaves, structure))
            outputs = (output,) if isinstance(output, Tensor) else output
            pairs = [
                (each, gradient)
                for each, gradient in zip(outputs, by, strict=True)
                if gradient is not None and each.requires_grad
            ]
            wanted = [leaf for leaf, needed in zip(leaves, needs, strict=True) if needed]
            if not pairs or not wanted:
                return [None] * len(needs)
            heads, slopes = zip(*pairs, strict=True)
            found = iter(torch.autograd.grad(heads, wanted, slopes, create_graph=again, allow_unused=True))
        return [next(found) if needed else None for needed in needs]

    def _function(self) -> type[torch.autograd.Function]:
        """The kernel as a node of autograd, without the detour through torch's dispatcher.

        The detour takes longer than a small kernel.
        """
        operator = self

        class Kernel(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *given: Any) -> Any:
                *leaves, structure = given
                found = operator._forward(*_unflattened(leaves, structure))
                operator._save(ctx, leaves, structure, found, by_kernel=True)
                return found

            @staticmethod
            def backward(ctx: Any, *by: Tensor | None) -> Any:
                return *operator._pull(ctx, by, list(ctx.needs_input_grad[:-1])), None

        return Kernel


def _flattened(arguments: Sequence[Any]) -> tuple[Sequence[Any], Any]:
    """The leaves of arguments and their structure, None where no argument is a list: that is the quicker way."""
    if any(isinstance(each, list) for each in arguments):
        return tree_flatten(list(arguments))
    return arguments, None


def _unflattened(leaves: Sequence[Any], structure: Any) -> Sequence[Any]:
    return leaves if structure is None else tree_unflatten(leaves, structure)


def _is_transformed() -> bool:
    """Whether `torch.func` differentiates or forward-mode derivatives are taken, for which operators have no rules."""
    return forward_ad._current_level >= 0 or _has_derivative_on_stack()


def _has_derivative_on_stack() -> bool:
    stack = get_interpreter_stack() or ()
    return any(each.key() in (TransformType.Grad, TransformType.Jvp) for each in stack)


# what torch.compiler.assume_constant_result does, which would import all of torch's compiler
_has_derivative_on_stack._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _is_watched() -> bool:
    """Whether a mode of torch, other than a default device, has to see every call."""
    watching = (_get_function_stack_at(index) for index in range(_len_torch_function_stack()))
    return not all(isinstance(mode, DeviceContext) for mode in watching)


def is_plain(leaves: Sequence[Any]) -> bool:
    """Whether no compiler, transform or mode of torch has to see the operator in a call."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    if torch._C._len_torch_dispatch_stack():
        return False
    # tensors of other types stand for something
    return not any(isinstance(each, Tensor) and type(each) not in (Tensor, nn.Parameter) for each in leaves)


def rows(tensor: Tensor) -> Tensor:
    """A tensor in which each member is contiguous; it is copied only if one is not. Members may share memory."""
    return tensor if len(tensor) and tensor[0].is_contiguous() else tensor.contiguous()


def partial_sums(parts: int, like: Tensor, dtype: torch.dtype) -> Tensor:
    """Memory for partial sums over samples, shaped like a tensor; in the dtype of the sum if there is one part."""
    shape = (len(like), parts, *like.shape[1:])
    return like.new_empty(shape, dtype=dtype if parts == 1 else torch.float32)


def sum_parts(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum of partial sums."""
    return parts.squeeze(1) if parts.shape[1] == 1 else parts.sum(1).to(dtype)


def row_sums(log_prob: Tensor, length: int) -> Tensor:
    """The sums over rows of so many neighbouring units, along the last axis."""
    return log_prob if length == 1 else log_prob.unflatten(-1, (log_prob.shape[-1] // length, length)).sum(-1)
