"""What goes wrong in a step: noticed without asking the device, kept from doing harm, and traced to a layer."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Fault:
    """Keeps an optimiser from taking a step whose gradient is not finite, and any step after it."""

    def __init__(self, device: torch.device) -> None:
        self.first = torch.full((), -1, dtype=torch.int64, device=device)
        """The first step with a fault, minus one if there is none."""

    def look(self, optimizer: torch.optim.Optimizer, loss: Tensor, step: int) -> None:
        """Look at the gradients of a step that is about to be taken."""
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        finite = torch.isfinite(nn.utils.get_total_norm(gradients)) & torch.isfinite(loss.detach())
        found = torch.where(finite, -1, step)
        self.first = torch.where(self.first < 0, found, self.first)
        # what fused optimisers look at before they change anything, made for automatic mixed precision
        optimizer.found_inf = (self.first >= 0).float()  # type: ignore[attr-defined]


def culprit(model: nn.Module, loss: Callable[[], Tensor]) -> str:
    """The layer whose output is the first not to be finite or, if all are, that with the largest gradient."""
    found: list[str] = []

    def look(name: str) -> Callable[[nn.Module, object, object], None]:
        def hook(module: nn.Module, inputs: object, output: object) -> None:
            if isinstance(output, Tensor) and not bool(torch.isfinite(output).all()):
                found.append(name)

        return hook

    hooks = [module.register_forward_hook(look(name)) for name, module in model.named_modules() if name]
    try:
        model.zero_grad()
        loss().backward()
    except ValueError:  # what is not finite may be refused further on
        if not found:
            raise
    finally:
        for hook in hooks:
            hook.remove()
    if found:
        return found[0]
    # a gradient that is not finite counts as larger than any that is
    norms = {name: p.grad.norm().nan_to_num(torch.inf) for name, p in model.named_parameters() if p.grad is not None}
    return max(norms, key=lambda name: float(norms[name])).rpartition(".")[0]
