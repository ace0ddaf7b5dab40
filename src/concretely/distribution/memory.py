"""Squashed values remember the node they came from.

A float32 below one ends at 1 − 6e-8, where a log-odds of 17 already lands; a colder or surer variable rounds all its
draws there, and scores of the rounded values are wrong without a sign of it. So a drawn value carries its node as
the attribute `node`. The memory belongs to that very tensor: what is computed from it starts without one.
"""

import torch
from torch import Tensor
from torch.distributions.constraints import Constraint


def remember(value: Tensor, node: Tensor, *, support: Constraint) -> Tensor:
    """The value, carrying its node and the set it was squashed into."""
    value.node = node  # type: ignore[attr-defined]
    value.node_support = support  # type: ignore[attr-defined]
    if not torch.compiler.is_compiling():
        value.node_stamp = value.clone() if value.is_inference() else value._version  # type: ignore[attr-defined]
    return value


def recall(value: Tensor, *, support: Constraint) -> Tensor | None:
    """The node of a value, or None if it carries none, was squashed otherwise, or was changed in place since."""
    node: Tensor | None = getattr(value, "node", None)
    if node is None or value.node_support is not support or not _is_unchanged(value):  # type: ignore[attr-defined]
        return None
    return node


def _is_unchanged(value: Tensor) -> bool:
    """Whether a value is as it was drawn; inference mode counts no changes, so that a copy tells."""
    if torch.compiler.is_compiling():
        return True
    stamp: Tensor | int = value.node_stamp  # type: ignore[attr-defined]
    return torch.equal(value, stamp) if isinstance(stamp, Tensor) else stamp == value._version
