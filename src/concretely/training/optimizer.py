"""Optimisers of one run, where torch has none that can be kept from taking a step."""

from typing import Any

import torch

from ..kernel.adam import Pace, State
from ..kernel.muon import muon_


class Muon(torch.optim.Adam):
    """Muon for the first group, which has matrices alone, and Adam for the others."""

    found_inf: torch.Tensor
    """One if no step may be taken, and else zero."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take a step."""
        group = self.param_groups[0]
        states, gradients = [], []
        for matrix in group["params"]:
            if not self.state[matrix]:
                names = ("exp_avg", "exp_avg_sq")
                self.state[matrix] = {"step": torch.zeros(()), **{name: torch.zeros_like(matrix) for name in names}}
            kept = self.state[matrix]
            kept["step"] += 1
            parts = (matrix, kept["exp_avg"], kept["exp_avg_sq"])
            states.append(State(*(each.unsqueeze(0) for each in parts)))
            gradients.append(matrix.grad.unsqueeze(0))
            matrix.grad = None  # Adam leaves alone what has none
        one = self.found_inf.new_ones(1, dtype=torch.float64)
        muon_(states, gradients, Pace(group["lr"] * (1 - self.found_inf) * one, group["weight_decay"] * one, one, one))
        return super().step(closure)
