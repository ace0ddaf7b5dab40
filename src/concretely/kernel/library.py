"""Functions as custom operators of torch: their schemas, and how `vmap` adds its batch to the member axis."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from types import UnionType
from typing import Any, Literal, NamedTuple, get_args, get_origin

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

NAMESPACE = "concretely"

Shapes = Sequence[Sequence[int] | None]


class Call(NamedTuple):
    """How a kernel is called, besides the leaves of its arguments (see `Operator.launched`)."""

    structure: list[int | None] | None
    taken: Shapes = ()
    returned: Shapes = ()
    connects: bool = False


def registered(name: str, function: Callable[..., Any], parameters: Sequence[inspect.Parameter], returned: Any) -> Any:
    """Register a function as an operator of torch, with a schema for these parameters."""

    def run(*given: Any) -> Any:
        return function(*given)

    run.__signature__ = inspect.Signature(parameters, return_annotation=returned)  # type: ignore[attr-defined]
    schema = torch.library.infer_schema(run, mutates_args=())
    return torch.library.custom_op(f"{NAMESPACE}::{name}", run, mutates_args=(), schema=schema)


def parameter(name: str, annotation: Any) -> inspect.Parameter:
    """Return a parameter of an operator."""
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation)


def schema_type(annotation: Any) -> Any:
    """Convert an annotation to a type that a schema supports, without shapes and literals."""
    if getattr(annotation, "array_type", None) is Tensor:
        return Tensor
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return type(arguments[0])
    if origin in (list, Sequence):
        return list[schema_type(arguments[0])]  # type: ignore[misc]
    if origin is tuple:
        return tuple[tuple(map(schema_type, arguments))]  # type: ignore[misc]
    if origin is UnionType:
        kinds = [schema_type(kind) for kind in arguments if kind is not type(None)]
        return kinds[0] | None if len(kinds) < len(arguments) else kinds[0]
    return annotation


def contiguous(results: Any) -> Any:
    """Make the results of a definition contiguous, as those of an operator of torch must be."""
    return tree_map(lambda tensor: tensor.contiguous(), results)


def memory(tensor: Tensor) -> int:
    """Return the address of the memory of a tensor."""
    return tensor.untyped_storage().data_ptr()


def batched(call: Callable[..., Any], info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
    """Run an operator once for a `vmap` batch, whose axis is merged into the member axis."""
    size = info.batch_size
    stacked = (_stacked(argument, dim, size) for argument, dim in zip(arguments, in_dims, strict=True))
    results = tree_map(lambda tensor: tensor.unflatten(0, (size, -1)), call(*stacked))
    return results, tree_map(lambda tensor: 0, results)


def batched_in_front(
    call: Callable[..., Tensor], info: Any, in_dims: tuple[Any, ...], tensor: Tensor, *options: Any
) -> tuple[Tensor, int | None]:
    """Run an operator of one tensor, with any number of batch axes, once for a `vmap` batch, as the first of them."""
    if in_dims[0] is None:
        return call(tensor, *options), None
    return call(tensor.movedim(in_dims[0], 0), *options), 0


def _stacked(argument: Any, dim: Any, size: int) -> Any:
    """Merge the batch axis of a tensor, or of each in a list, into the member axis. Return other values unchanged."""
    if isinstance(argument, list):
        dims = [dim] * len(argument) if dim is None else dim
        return [_stacked(part, own, size) for part, own in zip(argument, dims, strict=True)]
    if not isinstance(argument, Tensor):
        return argument
    lead = argument.expand(size, *argument.shape) if dim is None else argument.movedim(dim, 0)
    return lead.flatten(0, 1)


def flattened(arguments: Sequence[Any]) -> tuple[Sequence[Any], list[int | None] | None]:
    """Return the leaves of arguments, and the length of each that is a list, or None if none is."""
    lengths = [len(argument) if isinstance(argument, list) else None for argument in arguments]
    if lengths.count(None) == len(lengths):
        return arguments, None
    return joined(arguments, lengths), lengths


def joined(arguments: Iterable[Any], lengths: Sequence[int | None]) -> list[Any]:
    """Return the leaves of arguments, of which some are lists of these lengths. None stands for a list of None."""
    leaves: list[Any] = []
    for argument, length in zip_longest(arguments, lengths):
        if length is None:
            leaves.append(argument)
        else:
            leaves += [None] * length if argument is None else argument
    return leaves


def unflattened(leaves: Sequence[Any], lengths: list[int | None] | None) -> Sequence[Any]:
    """Return the arguments with these leaves."""
    if lengths is None:
        return leaves
    arguments: list[Any] = []
    start = 0
    for length in lengths:
        arguments.append(leaves[start] if length is None else list(leaves[start : start + length]))
        start += 1 if length is None else length
    return arguments


def reshaped(leaves: Sequence[Any], shapes: Shapes) -> Sequence[Any]:
    """Return leaves, of which the first are reshaped to these shapes, unless either is None."""
    if not shapes:
        return leaves
    result = list(leaves)
    for place, shape in enumerate(shapes):
        leaf = result[place]
        if shape is not None and leaf is not None and leaf.shape != shape:
            result[place] = leaf.reshape(*shape) if shape else leaf.reshape(())  # numbers are parsed in less time
    return result


def as_shaped(made: Tensor, shape: Sequence[int] | None) -> Tensor:
    """Reshape a tensor that nothing else refers to. Where possible, the result is not a view.

    Autograd does not allow views that a function returns to be modified in place.
    """
    if shape is None or made.shape == shape:
        return made
    if not made.is_contiguous():
        return made.reshape(shape)
    return made.resize_(*shape) if shape else made.resize_(())


def with_tensor_keys(leaves: Sequence[Any]) -> Sequence[Any]:
    """Return leaves in which keys of two numbers are tensors, as definitions and operators of torch take them."""
    if tuple not in map(type, leaves):
        return leaves
    device = next(leaf.device for leaf in leaves if isinstance(leaf, Tensor))
    return [torch.tensor([leaf], device=device) if type(leaf) is tuple else leaf for leaf in leaves]


def pulled_back(
    defined: Callable[..., Any], by: Sequence[Tensor | None], leaves: Sequence[Any], structure: Any, needs: list[bool]
) -> list[Tensor | None]:
    """Return the gradients of leaves, by differentiating a definition."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # one argument may depend on another, through which no gradient must pass here
        leaves = [
            leaf if not needed else leaf.view_as(leaf) if leaf.requires_grad else leaf.detach().requires_grad_()
            for leaf, needed in zip(leaves, needs, strict=True)
        ]
        output = defined(*unflattened(leaves, structure))
        outputs = (output,) if isinstance(output, Tensor) else output
        pairs = [
            (head, gradient)
            for head, gradient in zip(outputs, by, strict=True)
            if gradient is not None and head.requires_grad
        ]
        wanted = [leaf for leaf, needed in zip(leaves, needs, strict=True) if needed]
        if not pairs or not wanted:
            return [None] * len(needs)
        heads, slopes = zip(*pairs, strict=True)
        gradients = iter(torch.autograd.grad(heads, wanted, slopes, create_graph=again, allow_unused=True))
    return [next(gradients) if needed else None for needed in needs]


def empty_gradients(by: list[Tensor | None], *given: Any) -> list[Tensor]:
    """Return the gradients that are needed as empty tensors, as a compiler expects them of the backward operator."""
    *inputs, _, needs = given
    return [
        torch.empty_like(leaf, memory_format=torch.contiguous_format)
        for leaf, needed in zip(flattened(inputs)[0], needs, strict=True)
        if needed
    ]
