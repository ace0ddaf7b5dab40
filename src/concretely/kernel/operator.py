"""The registry of operators: it decides between a definition in torch operations and its Triton kernel.

`operator` registers a definition together with a module of `concretely.kernel` that computes the same function. This
module alone decides whether a kernel runs:

- If it can, the kernel runs as one autograd node and as one operator of torch, which can be batched and compiled.
- Otherwise the definition runs, and autograd, `torch.func` and the compiler see ordinary torch operations.

The first axis of every tensor argument counts members: independent models that are computed together.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from itertools import zip_longest
from types import ModuleType
from typing import Any, Generic, ParamSpec, TypeVar, cast

import torch
from torch import Tensor, nn
from torch._C import _get_function_stack_at, _len_torch_function_stack
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

from . import library
from .library import Call, Shapes, flattened, joined, reshaped, unflattened, with_tensor_keys

_DISABLED: set[str] = set()
_PLAIN = frozenset((Tensor, nn.Parameter, int, float, bool, str, tuple, type(None)))

P = ParamSpec("P")
R = TypeVar("R")
Arranged = tuple[Sequence[Any], Shapes, Shapes]
"""The arguments of a kernel, the shapes that it takes its first tensors in, and the shapes of its results."""


def operator(
    name: str,
    *,
    kernel: str,
    eligible: Callable[..., bool] | None = None,
    arrange: Callable[..., Arranged] | None = None,
    takes_any_shape: bool = False,
    nondifferentiable: Sequence[int] = (),
    saved: Sequence[int] = (),
    takes_float64: bool = False,
) -> "Callable[[Callable[P, R]], Operator[P, R]]":
    """Register a definition with its kernel.

    The definition is a pure function of tensors, lists of tensors and plain values, with annotations. It returns a
    tensor or a tuple of tensors that share no memory with each other. Its kernel is the function of the same name in
    the module `concretely.kernel.<kernel>`, which is imported when it is first needed. If the function is called
    `draw`, its gradient is

        draw_backward(by, needs, inputs, outputs)

    where `by` has the gradient of every output or None, `needs` says for every argument whether its gradient is
    needed, and `inputs` and `outputs` are those of the kernel. It returns the gradients of the arguments in order, or
    None for those without one. Trailing ones may be left out, and a list of tensors has a list of gradients. Without
    such a function, and for second derivatives, the definition is differentiated.

    Args:
        name: The name of the operator of torch.
        kernel: The module with the kernel.
        eligible: A condition on the arguments under which the kernel can run. In addition, the first tensor must be on
            the current GPU and, unless `takes_float64`, not in float64.
        arrange: A function that returns the arguments with the options of the kernel, the shapes that it takes its
            first tensors in, and those of the results. The definition must compute the same result from them.
        takes_any_shape: Whether the kernel, too, takes what was not arranged, so that only operators of torch need it.
        nondifferentiable: The indices of outputs without a gradient.
        saved: The indices of outputs that the gradient of the kernel reads. It gets None for the others.
        takes_float64: Whether the kernel also computes in float64.
    """
    options = eligible, arrange, takes_any_shape, tuple(nondifferentiable), tuple(saved), takes_float64
    return lambda definition: Operator(definition, name, kernel, *options)


@contextmanager
def disabled(*names: str) -> Iterator[None]:
    """Run definitions instead of kernels inside this context, to compare them, for names of operators or modules."""
    added = set(names) - _DISABLED
    _DISABLED.update(added)
    try:
        yield
    finally:
        _DISABLED.difference_update(added)


@cache
def _finds_triton() -> bool:
    return find_spec("triton") is not None


def has_triton() -> bool:
    """Return whether Triton is installed, as it is with every CUDA build of torch."""
    return _finds_triton()


# as torch.compiler.assume_constant_result does, but without importing all of torch's compiler
has_triton._dynamo_marked_constant = True  # type: ignore[attr-defined]


def is_launchable(tensor: Tensor) -> bool:
    """Return whether a kernel can be launched on a tensor, which must be on the current GPU."""
    if not tensor.is_cuda or not has_triton():
        return False
    if torch.compiler.is_compiling() or not torch.cuda.is_initialized():  # nothing is launched yet
        return True
    return tensor.get_device() == torch._C._cuda_getDevice()  # torch.cuda.current_device() takes longer


def is_enabled(kernel: str, tensor: Tensor) -> bool:
    """Return whether the kernels of a module can be launched on a tensor and are not disabled.

    Callers of kernels that modify their arguments in place use this, since such kernels are not operators.
    """
    return kernel not in _DISABLED and is_launchable(tensor)


def launching(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which kernels are launched on a device; it does nothing unless the device is a GPU."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class Operator(Generic[P, R]):
    """A function that runs either its kernel or its definition."""

    def __init__(
        self,
        definition: Callable[P, R],
        name: str,
        kernel: str,
        eligible: Callable[..., bool] | None,
        arrange: Callable[..., Arranged] | None,
        takes_any_shape: bool,
        nondifferentiable: tuple[int, ...],
        saved: tuple[int, ...],
        takes_float64: bool,
    ) -> None:
        self.definition, self.name, self.kernel = definition, name, kernel
        self._defined = cast("Callable[..., Any]", definition)
        self.__doc__, self.__name__ = definition.__doc__, definition.__name__
        self._eligible, self._arrange, self._nondifferentiable = eligible, arrange, nondifferentiable
        self._saved, self._takes_any_shape, self._takes_float64 = saved, takes_any_shape, takes_float64
        self._signature = inspect.signature(definition)
        given = self._signature.parameters
        self._defaults = tuple(own.default for own in given.values())
        parameters = [library.parameter(name, library.schema_type(own.annotation)) for name, own in given.items()]
        self._first = next(i for i, own in enumerate(parameters) if own.annotation in (Tensor, list[Tensor]))
        returned = library.schema_type(self._signature.return_annotation)
        self.registered = library.registered(name, self._launch, parameters, returned)
        self.registered.register_fake(lambda *given: library.contiguous(self._defined(*given)))
        self.registered.register_vmap(lambda *given: library.batched(self.registered, *given))
        self.registered.register_autograd(self._pull_nested, setup_context=self._save_registered)
        trail = [library.parameter("outputs", list[Tensor]), library.parameter("needs", list[bool])]
        parameters = [library.parameter("by", list[Tensor | None]), *parameters, *trail]
        self.backward = library.registered(f"{name}_backward", self._launch_backward, parameters, list[Tensor])
        self.backward.register_fake(library.empty_gradients)
        self.backward.register_vmap(lambda *given: library.batched(self.backward, *given))
        self._apply = plain_apply(self._function())

    def __call__(self, *given: P.args, **named: P.kwargs) -> R:
        """Run the kernel if it is eligible, else the definition."""
        first: Any = given[self._first]
        if not is_launchable(first if isinstance(first, Tensor) else first[0]):
            return self.definition(*given, **named)
        arguments = self._complete(given, named)
        if not self.fits(*arguments):
            return self.definition(*given, **named)
        leaves, structure = flattened(arguments)
        is_direct = is_plain(leaves) and not is_watched()
        call = Call(structure)
        if self._arrange is not None and not (self._takes_any_shape and is_direct):
            arranged, taken, returned = self._arrange(*arguments)
            leaves, call = flattened(arranged)[0], Call(structure, taken, returned)
        return self._called(leaves, call, is_direct)  # type: ignore[no-any-return]

    def launched(self, *arguments: Any, taken: Shapes = (), returned: Shapes = (), connects: bool = False) -> Any:
        """Call the kernel, which must be eligible, with all its arguments, in which sequences of tensors are lists.

        The kernel takes its first tensors in the shapes `taken`, and its results are returned in the shapes `returned`;
        None keeps a shape. With `connects`, outputs without a gradient have a gradient of zero where an autograd
        function records the call. A key may be two numbers instead of a tensor.
        """
        leaves, structure = flattened(arguments)
        call = Call(structure, taken, returned, connects)
        return self._called(leaves, call, is_plain(leaves) and not is_watched())

    def _called(self, leaves: Sequence[Any], call: Call, is_direct: bool) -> Any:
        """Call the kernel as an operator of torch if torch must see it, else as an autograd function or directly."""
        if is_direct and torch.is_grad_enabled():
            for leaf in leaves:
                if isinstance(leaf, Tensor) and leaf.requires_grad:
                    return self._apply(*leaves, call)
        arguments = unflattened(reshaped(leaves, call.taken), call.structure)
        results = self._forward(*arguments) if is_direct else self.registered(*with_tensor_keys(arguments))
        if isinstance(results, Tensor):
            return reshaped([results], call.returned)[0]
        return tuple(reshaped(results, call.returned))

    def runs_kernel(self, *arguments: Any) -> bool:
        """Return whether a call with these arguments would run the kernel."""
        first = arguments[self._first]
        return is_launchable(first if isinstance(first, Tensor) else first[0]) and self.fits(*arguments)

    def fits(self, *arguments: Any) -> bool:
        """Return whether a call with these arguments, on which kernels can be launched, would run the kernel."""
        return self._is_eligible(arguments) and not is_transformed()

    @cached_property
    def _module(self) -> ModuleType:
        return import_module(f"concretely.kernel.{self.kernel}")

    @property
    def _forward(self) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(self._module, self.__name__)
        return function

    @cached_property
    def _backward(self) -> Any:
        return getattr(self._module, f"{self.__name__}_backward", None)

    def _complete(self, given: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        """Return all arguments in order, with defaults, and with sequences of tensors as lists."""
        if named:
            bound = self._signature.bind(*given, **named)
            bound.apply_defaults()
            given = bound.args
        arguments = [*given, *self._defaults[len(given) :]]
        if tuple not in map(type, arguments):
            return arguments
        return [list(argument) if isinstance(argument, tuple) else argument for argument in arguments]

    def _is_eligible(self, arguments: Sequence[Any]) -> bool:
        first = arguments[self._first]
        dtype = (first if isinstance(first, Tensor) else first[0]).dtype
        if dtype == torch.float64 and not self._takes_float64:
            return False
        if _DISABLED and not _DISABLED.isdisjoint((self.name, self.kernel)):
            return False
        return self._eligible is None or bool(self._eligible(*arguments))

    def _launch(self, *arguments: Any) -> Any:
        """Run the operator of torch: launch the kernel or, if it cannot run, call the definition."""
        first = arguments[self._first]
        first = first if isinstance(first, Tensor) else first[0]
        with launching(first.device):
            if is_launchable(first) and self._is_eligible(arguments):
                return self._forward(*arguments)
        return library.contiguous(self._defined(*arguments))

    def _launch_backward(self, by: list[Tensor | None], *given: Any) -> list[Tensor]:
        """Return the gradients that are needed, computed by the kernel."""
        *inputs, outputs, needs = given
        leaves, structure = flattened(inputs)
        with launching(leaves[needs.index(True)].device):
            pulled = self._pulled_by_kernel(by, leaves, structure, outputs, needs)
        # an operator of torch must return new memory, and no tensor twice
        taken = {library.memory(tensor) for tensor in (*by, *leaves, *outputs) if isinstance(tensor, Tensor)}
        gradients = []
        for leaf, gradient, needed in zip(leaves, pulled, needs, strict=True):
            if needed:
                gradient = torch.zeros_like(leaf) if gradient is None else gradient.contiguous()
                gradients.append(gradient.clone() if library.memory(gradient) in taken else gradient)
                taken.add(library.memory(gradient))
        return gradients

    def _save_registered(self, ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        """Save what the gradient of the operator of torch needs. The operator may have run the definition."""
        leaves, structure = flattened(inputs)
        first = next(leaf for leaf in leaves if isinstance(leaf, Tensor))
        ctx.by_kernel, ctx.is_direct = is_launchable(first) and self._is_eligible(inputs), False
        outputs = (output,) if isinstance(output, Tensor) else output
        kept = [tensor if place in self._saved else None for place, tensor in enumerate(outputs)]
        self._save(ctx, leaves, Call(structure), outputs, kept)

    def _save(
        self, ctx: Any, leaves: Sequence[Any], call: Call, outputs: Sequence[Any], kept: Sequence[Tensor | None]
    ) -> None:
        """Save what the gradient needs: all input tensors, and the outputs that are `kept`, as the kernel made them."""
        ctx.call = call
        ctx.others = [None if isinstance(leaf, Tensor) else (leaf,) for leaf in leaves]
        ctx.set_materialize_grads(False)
        if self._nondifferentiable and not call.connects:
            ctx.mark_non_differentiable(*[outputs[place] for place in self._nondifferentiable])
        ctx.save_for_backward(*[leaf for leaf in leaves if isinstance(leaf, Tensor)], *kept)

    def _pull(self, ctx: Any, by: Sequence[Tensor | None], needs: list[bool]) -> Sequence[Tensor | None]:
        """Return the gradients of all leaves of the arguments, or None for leaves without one."""
        if not any(gradient is not None for gradient in by):
            return [None] * len(needs)
        saved, call = iter(ctx.saved_tensors), ctx.call
        given = [next(saved) if other is None else other[0] for other in ctx.others]
        leaves, outputs = reshaped(given, call.taken), tuple(saved)
        if call.returned:
            by = reshaped(by, ctx.raw)
        is_direct = is_plain([*by, *leaves])
        # what was not arranged has no axis of members, which a batch of gradients would need
        by_kernel = ctx.by_kernel and (is_direct or not (self._takes_any_shape and ctx.is_direct))
        if torch.is_grad_enabled() or not by_kernel or self._backward is None:
            gradients = library.pulled_back(self._defined, by, with_tensor_keys(leaves), call.structure, needs)
        elif is_direct:
            gradients = self._pulled_by_kernel(by, leaves, call.structure, outputs, needs)
        else:
            inputs = unflattened(with_tensor_keys(leaves), call.structure)
            made = [leaves[0].new_empty(0) if output is None else output for output in outputs]
            left = iter(self.backward(list(by), *inputs, made, needs))
            gradients = [next(left) if needed else None for needed in needs]
        if call.connects:  # an output without a gradient may be all that is differentiated
            gradients = [
                torch.zeros_like(leaf) if needed and gradient is None else gradient
                for leaf, gradient, needed in zip(leaves, gradients, needs, strict=True)
            ]
        return reshaped(gradients, [shape and leaf.shape for leaf, shape in zip(given, call.taken, strict=False)])

    def _pull_nested(self, ctx: Any, *by: Tensor | None) -> tuple[Any, ...]:
        """Return the gradients for the operator of torch, which has a list of gradients for each list of tensors."""
        gradients = self._pull(ctx, by, list(flattened(ctx.needs_input_grad)[0]))
        return tuple(unflattened(gradients, ctx.call.structure))

    def _pulled_by_kernel(
        self, by: Sequence[Any], leaves: Sequence[Any], lengths: Any, outputs: Sequence[Any], needs: Sequence[bool]
    ) -> list[Tensor | None]:
        if lengths is None:
            gradients = self._backward(by, needs, leaves, outputs)
        else:
            nested = [any(need) if isinstance(need, list) else need for need in unflattened(needs, lengths)]
            gradients = joined(self._backward(by, nested, unflattened(leaves, lengths), outputs), lengths)
        return [gradient if needed else None for gradient, needed in zip_longest(gradients, needs)]

    def _function(self) -> type[torch.autograd.Function]:
        """Return the kernel as an autograd function, since torch's dispatcher takes longer than a small kernel."""
        operator = self

        class Kernel(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *given: Any) -> Any:
                leaves, call = given[:-1], given[-1]
                results = operator._forward(*unflattened(reshaped(leaves, call.taken), call.structure))
                outputs = (results,) if isinstance(results, Tensor) else results
                kept = [output.detach() if place in operator._saved else None for place, output in enumerate(outputs)]
                if call.returned:
                    ctx.raw = [output.shape for output in outputs]
                    outputs = tuple(map(library.as_shaped, outputs, call.returned))
                ctx.by_kernel = ctx.is_direct = True
                operator._save(ctx, leaves, call, outputs, kept)
                return outputs[0] if isinstance(results, Tensor) else outputs

            @staticmethod
            def backward(ctx: Any, *by: Tensor | None) -> Any:
                return *operator._pull(ctx, by, list(ctx.needs_input_grad[:-1])), None

        return Kernel


def plain_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Return how to call an autograd function on plain arguments (see `is_plain`).

    For these, torch's own `apply` does nothing more than that of its base class, which takes less time.
    """
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply


def is_transformed() -> bool:
    """Return whether `torch.func` or forward-mode differentiation is active, for which operators have no rules."""
    return forward_ad._current_level >= 0 or _has_derivative_on_stack()


def _has_derivative_on_stack() -> bool:
    stack = get_interpreter_stack()
    return bool(stack) and any(interpreter.key() in (TransformType.Grad, TransformType.Jvp) for interpreter in stack)


_has_derivative_on_stack._dynamo_marked_constant = True  # type: ignore[attr-defined]


def is_watched() -> bool:
    """Whether a mode of torch has to see every call: all but default devices and those with `sees_all = False`."""
    count = _len_torch_function_stack()
    if not count:
        return False
    modes = (_get_function_stack_at(index) for index in range(count))
    return any(getattr(mode, "sees_all", not isinstance(mode, DeviceContext)) for mode in modes)


def is_plain(leaves: Sequence[Any]) -> bool:
    """Return whether no compiler, transform or dispatch mode of torch must see a call as an operator."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    if torch._C._len_torch_dispatch_stack() or forward_ad._current_level >= 0:
        return False
    # tensor subclasses may represent something else
    return _PLAIN.issuperset(map(type, leaves)) or not any(
        issubclass(kind, Tensor) for kind in {type(leaf) for leaf in leaves} - _PLAIN
    )
