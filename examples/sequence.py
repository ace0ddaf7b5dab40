"""A hidden Markov model with a draw at each step, and a recurrent network that infers its states.

The sequences come from a known hidden Markov model, so the exact negative log-likelihood is known too. Run it with
`python examples/sequence.py`.
"""

import torch
from torch import Tensor, nn

import concretely as c

LENGTH, STATES, SYMBOLS = 10, 3, 5


class Generative(nn.Module):
    """A chain of states, each of which emits one symbol."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(STATES))
        self.transition, self.emission = nn.Linear(STATES, STATES, bias=False), nn.Linear(STATES, SYMBOLS, bias=False)

    def forward(self, draw: c.Draw, x: Tensor | None = None) -> Tensor:
        emitted, logits = [], self.first
        for t in range(LENGTH):
            state = draw(f"z{t}", c.OneHotCategorical(logits=logits))
            seen = None if x is None else x[:, t]
            emitted.append(draw(f"x{t}", c.OneHotCategorical(logits=self.emission(state)), observed=seen))
            logits = self.transition(state)
        return torch.stack(emitted, 1) if x is None else x


class Inference(nn.Module):
    """States from the symbols that follow and the state before."""

    def __init__(self) -> None:
        super().__init__()
        self.summary = nn.GRU(SYMBOLS, 32, batch_first=True)
        self.head = nn.Linear(32 + STATES, STATES)

    def forward(self, draw: c.Draw, x: Tensor) -> None:
        backwards, _ = self.summary(x.flip(1))
        state = x.new_zeros(len(x), STATES)
        for t in range(LENGTH):
            summary = c.tile(backwards[:, LENGTH - 1 - t], state)
            state = draw(f"z{t}", c.OneHotCategorical(logits=self.head(torch.cat([summary, state], -1))))


def build() -> c.Model:
    return c.Model(Generative(), Inference())


def exact_nll(model: Generative, x: Tensor) -> float:
    """Return the negative log-likelihood of sequences by the forward algorithm."""
    transition, emission = model.transition.weight.T.log_softmax(-1), model.emission.weight.T.log_softmax(-1)
    forward = model.first.log_softmax(-1)
    for t in range(LENGTH):
        forward = forward + x[:, t] @ emission.T
        if t < LENGTH - 1:
            forward = (forward.unsqueeze(-1) + transition).logsumexp(1)
    return -forward.logsumexp(-1).mean().item()


@torch.no_grad()
def true_model() -> Generative:
    """Return the model that the data come from: states that stay, and two likely symbols for each."""
    model = Generative()
    model.transition.weight.copy_(3 * torch.eye(STATES))
    model.emission.weight.copy_(3 * torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 2]]))
    return model


def main(steps: int = 1000) -> dict[str, float]:
    torch.manual_seed(0)
    truth = true_model()
    noise = torch.Generator().manual_seed(0)
    train, test = (c.run(truth, mode=c.mode.Discrete(), samples=m, generator=noise).output for m in (5000, 1000))
    run = c.fit(build, train, estimator=c.VIMCO(), samples=8, steps=steps, lr=1e-2, schedule="linear")
    rate = train.mean((0, 1))
    with torch.no_grad():
        found = {
            "independent symbols": -(test * rate.log()).sum((1, 2)).mean().item(),
            "learned": exact_nll(run.model.p, test),
            "learned, by c.evaluate": c.evaluate(run.model, test, samples=50).nll,
            "truth": exact_nll(truth, test),
        }
    for name, nll in found.items():
        print(f"{name}: {nll:.3f} nats a sequence")
    return found


if __name__ == "__main__":
    main()
