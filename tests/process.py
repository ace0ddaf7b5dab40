"""Processes that tests start: a server imports once what all of them need, and forks them."""

from multiprocessing import get_context
from multiprocessing.context import ForkServerContext

PRELOADED = [
    "pytest",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "concretely.cli",
    "concretely.experiment.search",
    "concretely.report.page",
    "concretely.report.table",
    "concretely.training.fit",
    "tests.attack.work",
    "tests.cli.doomed",
    "tests.experiment.child",
    "tests.training.child",
    "tests.training.own",
    "tests.training.ranks",
]
"""What any test needs in a process, as a session of tests has one server."""


def forked() -> ForkServerContext:
    """How to start processes that need not import anything."""
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context
