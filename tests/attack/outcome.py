"""What an attacked function may do: return, or say one sentence in our words."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import concretely

PACKAGE = Path(concretely.__file__).parent

T = TypeVar("T")


def sentence_of(act: Callable[..., T], *arguments: Any, **options: Any) -> T | str:
    """Return the result of a function, or the sentence of its error. Errors of other types are bugs, and raised."""
    try:
        return act(*arguments, **options)
    except (ValueError, OSError) as error:
        caught = error
    sentence, place = str(caught), traceback.extract_tb(caught.__traceback__)[-1]
    own = PACKAGE in Path(place.filename).parents
    assert own or isinstance(caught, OSError), f"Python's words, not ours: {sentence}"
    assert sentence.count("\n") in (0, 2), sentence  # a notation is shown with a mark below
    assert 10 < len(sentence) < 4_000, sentence
    return sentence
