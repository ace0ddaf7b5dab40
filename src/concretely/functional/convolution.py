"""Convolutions of images, for members that each have their own weights."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import conv2d, conv_transpose2d

from ..kernel.layout import convolved_size
from ..kernel.operator import operator

Sides = int | Sequence[int]
"""One number for both sides of an image, or one for each."""


def _is_eligible(x: Tensor, weight: Tensor, bias: Tensor | None, *options: Any) -> bool:
    if x.shape[-1] != weight.shape[1 if options[3] else 2] or min(convolved_size(x, weight, *options[:4])) < 1:
        return False  # torch says what is wrong
    return x.dtype == weight.dtype == torch.float32 and 0 < x.numel() < 2**31


@operator("convolution", kernel="convolution", eligible=_is_eligible)
def convolution(
    x: Float[Tensor, "members points height width inputs"],
    weight: Float[Tensor, "members _ _ kernel_height kernel_width"],
    bias: Float[Tensor, "members outputs"] | None,
    stride: int,
    padding: int,
    extra: int,
    transposed: bool,
    product: str = "ieee",
) -> Float[Tensor, "members points _ _ outputs"]:
    """Convolve the images of every member with its own weights, or apply the transpose of a convolution.

    The channels of images are along their last axis, unlike in torch; weights have the shapes that they have in torch.
    `extra` is the `output_padding` of a transposed convolution, and `product` the rounding of the factors of products.
    """
    together = x.permute(1, 0, 4, 2, 3).flatten(1, 2), weight.flatten(0, 1), None if bias is None else bias.flatten()
    options: dict[str, Any] = {"stride": stride, "padding": padding, "groups": len(x)}
    out = conv_transpose2d(*together, output_padding=extra, **options) if transposed else conv2d(*together, **options)
    result: Tensor = out.unflatten(1, (len(x), -1)).permute(1, 0, 3, 4, 2)
    return result


def of_member(function: Any, *given: Any, **named: Any) -> Tensor | None:
    """Return the result of `conv2d` or `conv_transpose2d` by `convolution`, or None if it has no such options.

    Inside `vmap`, it is computed for all members at once. As in torch, `torch.backends.cudnn.allow_tf32` sets the
    precision.
    """
    x, weight, bias, *sides, groups = (_of_transposed if function is conv_transpose2d else _of_plain)(*given, **named)
    options = [_one(side) for side in sides]
    if None in options or options[-1] != 1 or groups != 1 or x.dim() != 4:
        return None
    pixels = x.permute(0, 2, 3, 1).contiguous()  # here, so that the gradient of the weights needs no second copy
    lead = [None if tensor is None else tensor.unsqueeze(0) for tensor in (pixels, weight, bias)]
    product = "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"
    arguments: Any = *lead, *options[:-1], function is conv_transpose2d, product
    return convolution(*arguments).squeeze(0).permute(0, 3, 1, 2)


def is_supported(module: nn.Module) -> bool:
    """Return whether `of_member` computes the convolution of a module."""
    if not isinstance(module, nn.Conv2d | nn.ConvTranspose2d) or module.padding_mode != "zeros":
        return False
    sides = module.stride, module.padding, module.output_padding, module.dilation
    return module.groups == 1 and None not in map(_one, sides) and _one(module.dilation) == 1


def _of_plain(
    x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> tuple[Any, ...]:
    """Return the arguments of `conv2d` in the order of `conv_transpose2d`, with the groups at the end."""
    return x, weight, bias, stride, padding, 0, dilation, groups


def _of_transposed(
    x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, extra: Any = 0, groups: int = 1,
    dilation: Any = 1,
) -> tuple[Any, ...]:  # fmt: skip
    """Return the arguments of `conv_transpose2d`, with the groups at the end."""
    return x, weight, bias, stride, padding, extra, dilation, groups


def _one(sides: Sides | str) -> int | None:
    """Return the number for both sides, or None if there is none."""
    if isinstance(sides, int):
        return sides
    return None if isinstance(sides, str) or len(set(sides)) != 1 else sides[0]
