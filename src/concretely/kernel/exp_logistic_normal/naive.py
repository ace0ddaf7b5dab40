"""The definition of its draw, and of its log density."""

from functools import partial

from ..exp_concrete import naive

draw = partial(naive.draw, normal=True)
draw_backward = naive.draw_backward
score = partial(naive.score, normal=True)
score_backward = partial(naive.score_backward, normal=True)
