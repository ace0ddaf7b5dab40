"""Finds the layer that makes a training step not finite."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn


def first_nonfinite_layer(model: nn.Module, loss: Callable[[], Tensor]) -> str:
    """The first layer whose output is not finite or, if all outputs are, the layer with the largest gradient."""
    found: list[str] = []

    def look(name: str, module: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, Tensor) and not bool(torch.isfinite(output).all()):
            found.append(name)

    hooks = [module.register_forward_hook(partial(look, name)) for name, module in model.named_modules() if name]
    try:
        model.zero_grad()
        loss().backward()
    except ValueError:  # a later layer may refuse what is not finite
        if not found:
            raise
    finally:
        for hook in hooks:
            hook.remove()
    if found:
        return found[0]
    # a gradient that is not finite counts as larger than any that is
    norms = {name: p.grad.norm().nan_to_num(torch.inf) for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return max(norms, key=lambda name: float(norms[name])).rpartition(".")[0]
