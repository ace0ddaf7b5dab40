"""The parents of a node are found however its parameters were computed from them."""

import pytest
import torch
from torch import Tensor, nn

import concretely as c


@pytest.mark.unchecked
@pytest.mark.parametrize("way", ["vmap", "script", "compile", "view", "len"])
def test_parents_are_found_where_functions_hide_them(way: str) -> None:
    decoder = nn.Linear(2, 4)
    scripted = torch.jit.script(double) if way == "script" else None
    compiled = torch.compile(lambda z: torch.where(z > 0.5, 1.0, -1.0), backend="eager", fullgraph=True)

    def program(draw: c.Draw, x: Tensor) -> None:
        z = draw("z", c.Bernoulli(logits=x))
        if way == "vmap":
            logits = torch.vmap(decoder)(z)
        elif way == "script":
            logits = scripted(z)  # type: ignore[misc]
        elif way == "compile":
            logits = compiled(z)
        elif way == "view":
            logits = torch.zeros(len(x), 4)
            logits[:, 0].copy_(z[:, 0])
        else:
            logits = torch.zeros(len(z), 4)  # only the shape of z
        draw("y", c.Bernoulli(logits=logits))

    parents = c.run(program, torch.zeros(6, 2), mode=c.mode.Discrete()).parents
    assert parents["y"] == (() if way == "len" else ("z",))


def double(z: Tensor) -> Tensor:
    """A function to compile."""
    return z * 2
