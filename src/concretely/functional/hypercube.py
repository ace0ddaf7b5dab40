"""The corners of a hypercube as the states of an n-ary unit."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor


def corners(n: int, *, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "n bits"]:
    """Return the corners of the hypercube as rows: the bits of the state, highest first, as -1 and +1.

    >>> corners(4, dtype=torch.float32, device=torch.device("cpu"))
    tensor([[-1., -1.],
            [-1.,  1.],
            [ 1., -1.],
            [ 1.,  1.]])
    """
    return corner_of(torch.arange(n, device=device), n, dtype=dtype)


def corner_of(category: Int64[Tensor, "*shape"], n: int, *, dtype: torch.dtype) -> Float[Tensor, "*shape bits"]:
    """Return the rows of `corners` at these indices. (Indexing by a single one would read it on the host.)"""
    digit = torch.arange(
        int(n).bit_length() - 2, -1, -1, device=category.device
    )  # torch.jit.trace has tensors as sizes
    return (2 * (category.unsqueeze(-1) >> digit & 1) - 1).to(dtype)


def category_of(corner: Float[Tensor, "*shape bits"]) -> Int64[Tensor, "*shape"]:
    """Return the index of a corner among the rows of `corners`."""
    place = 2 ** torch.arange(corner.shape[-1] - 1, -1, -1, device=corner.device)
    return ((corner > 0) * place).sum(-1)


def mean_corner(weight: Float[Tensor, "*shape n"]) -> Float[Tensor, "*shape bits"]:
    """Return the weighted mean of the corners. The weights must sum to one.

    >>> mean_corner(torch.tensor([0.0, 0.5, 0.0, 0.5]))
    tensor([0., 1.])
    """
    if weight.is_cuda and torch.get_float32_matmul_precision() != "highest":  # TF32 rounds the products
        return mean_corner_by_sums(weight)
    place = "cpu" if weight.is_meta else weight.device.type  # meta tensors have no autocast
    with torch.autocast(place, enabled=False):  # half precision could leave the cube
        return weight @ corners(weight.shape[-1], dtype=weight.dtype, device=weight.device)


def mean_corner_by_sums(weight: Float[Tensor, "*shape n"]) -> Float[Tensor, "*shape bits"]:
    """Return the weighted mean of the corners without a matrix product."""
    digits = range(int(weight.shape[-1]).bit_length() - 1)
    halves = [weight.unflatten(-1, (2**digit, 2, -1)).sum((-3, -1)) for digit in digits]
    return torch.stack([half[..., 1] - half[..., 0] for half in halves], -1)


def corner_weights(point: Float[Tensor, "*shape bits"]) -> Float[Tensor, "*shape n"]:
    """Return weights of the corners, multilinear in the point, for which the weighted mean is the point."""
    weight = torch.ones_like(point[..., :1])
    for bit in point.unbind(-1):
        weight = torch.stack([weight * (1 - bit.unsqueeze(-1)) / 2, weight * (1 + bit.unsqueeze(-1)) / 2], -1)
        weight = weight.flatten(-2)
    return weight
