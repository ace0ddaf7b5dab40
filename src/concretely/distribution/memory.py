"""Squashed values remember the node they came from.

A float32 below one ends at 1 − 6e-8, where a log-odds of 17 already lands; a colder or surer variable rounds all its
draws there, and scores of the rounded values are wrong without a sign of it. So a drawn value carries its node as
the attribute `node`. The memory belongs to that very tensor: what is computed from it starts without one.
"""

import torch
from torch import Tensor


def remember(value: Tensor, node: Tensor) -> Tensor:
    """The value, carrying its node."""
    value.node = node  # type: ignore[attr-defined]
    if not torch.compiler.is_compiling():
        value.node_version = _version(value)  # type: ignore[attr-defined]
    return value


def recall(value: Tensor) -> Tensor | None:
    """The node of a value, or None if it carries none or was changed in place since."""
    node: Tensor | None = getattr(value, "node", None)
    if node is None or (not torch.compiler.is_compiling() and value.node_version != _version(value)):  # type: ignore[attr-defined]
        return None
    return node


def _version(value: Tensor) -> int:
    return 0 if value.is_inference() else value._version
