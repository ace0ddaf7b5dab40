"""A logistic draw in one pass, and its gradient in another."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..operator import rows
from ..philox.naive import quarter
from ..philox.triton import logistic, words

BLOCK = 256


@triton.jit
def sigmoid(node):
    """The sigmoid, precise at both ends."""
    small = tl.exp(-tl.abs(node))
    return tl.where(node < 0, small, 1.0) / (1 + small)


@triton.jit
def softplus(size):
    """The logarithm of one plus the exponential of a number that is not positive."""
    small = tl.exp(size)
    total = 1 + small
    # log1p, by the rounding error of the sum
    return tl.where(total == 1, small, tl.log(total) * (small / (total - 1)))


@triton.jit
def _draw(
    logits, temperature, key, node, value, log_density,
    units, total, quarter, logits_stride,
    SQUASH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    four = words(key, member, place)
    warmth = tl.load(temperature + member)
    log_warmth = tl.log(warmth).to(tl.float32)
    warmth = warmth.to(tl.float32)
    for k in tl.static_range(4):
        element = k * quarter + place
        mask = (place < quarter) & (element < total)
        noise = logistic(four[k])
        logit = tl.load(logits + member * logits_stride + element % units, mask=mask).to(tl.float32)
        found = (logit + noise) / warmth
        at = member * total + element
        tl.store(node + at, found, mask=mask)
        size = tl.abs(noise)
        tl.store(log_density + at, log_warmth - size - 2 * softplus(-size), mask=mask)
        if SQUASH == "corner":
            tl.store(value + at, 2 * sigmoid(found) - 1, mask=mask)
        if SQUASH == "unit":
            inside = tl.minimum(tl.maximum(sigmoid(found), 1.1754943508222875e-38), 0.99999994)
            tl.store(value + at, inside, mask=mask)


def draw(logits: Tensor, temperature: Tensor, key: Tensor, samples: int, squash: str) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes, values and log densities."""
    members, units = logits.shape
    node = torch.empty((members, samples, units), dtype=torch.float32, device=logits.device)
    value = torch.empty_like(node) if squash != "none" else node.new_empty((members, 0))
    log_density = torch.empty_like(node)
    total, logits = samples * units, rows(logits)
    if node.numel():
        grid = (triton.cdiv(quarter(total), BLOCK), members)
        _draw[grid](
            logits, temperature.contiguous(), key.contiguous(), node, value, log_density,
            units, total, quarter(total), logits.stride(0), SQUASH=squash, BLOCK=BLOCK,
        )  # fmt: skip
    return node, value, log_density


@triton.jit
def _draw_backward(
    by_node, by_value, node, temperature, by_logits, units, samples, node_stride, value_stride,
    NODE: tl.constexpr, VALUE: tl.constexpr, SQUASH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    unit = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = unit < units
    total = tl.zeros((BLOCK,), tl.float32)
    element = unit
    for _ in range(samples):
        if NODE:
            total += tl.load(by_node + member * node_stride + element, mask=mask, other=0.0).to(tl.float32)
        if VALUE:
            low = sigmoid(-tl.abs(tl.load(node + member * samples * units + element, mask=mask, other=0.0)))
            slope = low * (1 - low) * (2 if SQUASH == "corner" else 1)
            total += slope * tl.load(by_value + member * value_stride + element, mask=mask, other=0.0).to(tl.float32)
        element += units
    tl.store(by_logits + member * units + unit, total / tl.load(temperature + member).to(tl.float32), mask=mask)


def draw_backward(
    by_node: Tensor | None, by_value: Tensor | None, node: Tensor, temperature: Tensor, squash: str
) -> Tensor:
    """The gradient of the logits, over all samples."""
    members, samples, units = node.shape
    found = torch.empty((members, units), dtype=torch.float32, device=node.device)
    by = [None if each is None else rows(each) for each in (by_node, by_value)]
    node = node.contiguous()
    if found.numel():
        grid = (triton.cdiv(units, BLOCK), members)
        _draw_backward[grid](
            by[0] if by[0] is not None else node, by[1] if by[1] is not None else node, node,
            temperature.contiguous(), found, units, samples, *(0 if each is None else each.stride(0) for each in by),
            NODE=by[0] is not None, VALUE=by[1] is not None, SQUASH=squash, BLOCK=BLOCK,
        )  # fmt: skip
    return found
