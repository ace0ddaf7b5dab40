"""Every kernel compiles for a GPU, though there may be none: its compiler is stricter than its interpreter."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, empty

from tests.cases import exhaustive
from tests.kernel import ROOM, module_of

SHARED_PARTS = ["native", "row", "category", "tile", "tree"]
SHARED_PARTS += ["launch", "layout", "operator", "library", "deferred", "__init__"]
"""Modules of which kernels are made, and those without any."""
OPERATIONS = sorted(path.stem for path in ROOM.glob("*.py") if path.stem not in SHARED_PARTS)
SIZES = [(2, 50, 200), (1, 1, 1), (3, 5, 7)]
"""Members, samples and units: what is 1 is a constant to the compiler, and of what 16 divides it knows."""
MANY = [48, 50, 200_000]
"""Samples of so many rows that programs have a warp each: quarters begin with the same point or not, or count far."""
SHARED = 227 * 1024
"""The bytes that a program can share on a GPU of compute capability 9.0."""
NUMBERS = 2**62, 2**62
"""A key of two numbers."""
HALF, DOUBLE = torch.bfloat16, torch.float64
NEEDS = [(True, True), (True, False), (False, True)]
PRODUCTS = ["tf32", "bfloat16"]


def key(members: int) -> Tensor:
    return empty(members, 2, dtype=torch.int64)


def pull(by: Tensor) -> tuple[tuple[Tensor], tuple[bool, ...]]:
    """The gradient of a result, and that all others are needed."""
    return (by,), (True,) * 10


def lengths(units: int) -> list[int]:
    """Lengths of rows: of a unit alone, of an eighth of all and of all."""
    return sorted({1, max(units // 8, 1), units})


def philox(kernels: Any) -> None:
    kernels.window_fractions(key(2), 6, torch.float32, True, 2, 3, 3, 12)
    for count in (1, 200):
        for signed in (True, False):
            kernels.fractions(key(2), count, torch.float32, signed)


def gumbel_softmax(kernels: Any) -> None:
    for shape in ((1, 1, 2), (3, 7), (64, 20, 8), (2, 5_000)):
        for dtype in (torch.float32, HALF):
            logits = empty(shape, dtype=dtype)
            for hard in (True, False):
                kernels.draw(logits, 0.5, NUMBERS, hard=hard)
            kernels.pull(logits, logits, 0.5)


def gate(kernels: Any) -> None:
    for points, units in ((1, 1), (50, 200), (600, 3), (4096, 1024), (2**19, 4096)):
        for dtype in (torch.float32, HALF):
            x, logits = empty(points, units, dtype=dtype), empty(units, dtype=dtype)
            for own in ((2**62, 2**62), key(1)):
                kernels.draw(x, logits, own, 0.5, (-0.1, 1.1), (-2.4, 2.4))
            for needs in NEEDS:
                kernels.pull(x, x, empty(points, units), logits.shape, 0.5, (-0.1, 1.1), needs)


def dropout(kernels: Any) -> None:
    for shape in ((1,), (50, 200), (4096, 1024), (2**19, 4096)):
        for dtype in (torch.float32, HALF):
            x = empty(shape, dtype=dtype)
            for own in ((2**62, 2**62), key(1)):
                kernels.draw(x, empty(1, dtype=dtype), own, 0.5, 0.5, 1.0)
            for needs in NEEDS:
                kernels.pull(x, x, empty(shape), empty(2), 0.5, needs)


def codebook(kernels: Any) -> None:
    for shape in ((1, 1, 2), (1, 7, 3), (2, 35, 8), (1, 3, 5_000), (1, 3, 20_000), (1, 1024, 8192)):
        logits, own = empty(shape), key(1)
        for temperature in (0.5, empty(())):
            for given in (own, (2**62, 2**62)):
                for keeps in (True, False):
                    kernels.draw(logits, given, 5, temperature, keeps=keeps)
                if shape[0] == 1:
                    more = {"bias": empty(shape[-1]), "table": empty(shape[-1], 64), "counts": empty(shape[-1])}
                    kernels.draw(logits[0], given, 0, temperature, keeps=True, **more)
            if shape[-1] <= 8192:
                kernels.pull(logits, logits, temperature)
        kernels.noise(own, 5, *shape)
    for high, deep, wide in ((1, 1, 1), (130, 70, 67), (4096, 256, 8192), (4096, 8192, 256)):
        a, b, out = empty(high, deep), empty(deep, wide), empty(high, wide)
        for right in (b, empty(wide, deep).mT):
            kernels.product(a, right)
            kernels.product(a, right, empty(wide))
        kernels.product(empty(deep, high).mT, b, None, out, adds=True)


def logistic(kernels: Any) -> None:
    for members, samples, units in SIZES:
        logits, temperature = empty(members, units), empty(members, dtype=DOUBLE)
        node = empty(members, samples, units)
        for squash in ("none", "unit", "bit", "corner"):
            for length in lengths(units):
                kernels.draw(logits, temperature, key(members), samples, squash, length)
                kernels.draw(logits[:1], temperature, NUMBERS, samples, squash, length)
            for needs in NEEDS if squash != "none" else [(True, False)]:
                by = (*(node if needed else None for needed in needs), None)
                kernels.draw_backward(by, (True,), (logits, temperature, None, samples, squash, 1), (node,))
        for length in lengths(units):
            kernels.score(node, logits, temperature, length)
            for needs in NEEDS:
                kernels.score_backward((node[..., ::length],), needs, (node, logits, temperature, length), ())
    kernels.score_backward((node,), (True, True), (node, logits.to(HALF), temperature, 1), ())
    kernels.draw(empty(1, 2, dtype=HALF), empty(1, dtype=DOUBLE), key(1), 2**30, "unit")
    for samples in MANY:
        logits, temperature = empty(8, 12_800), empty(8, dtype=DOUBLE)
        kernels.draw(logits, temperature, key(8), samples, "corner", 200)
        kernels.score(empty(8, samples, 12_800), logits, temperature, 200)


def bernoulli(kernels: Any) -> None:
    for members, samples, units in SIZES:
        logits, value = empty(members, units), empty(members, samples, units)
        for squash in ("bit", "corner"):
            for length in lengths(units):
                kernels.draw(logits, key(members), samples, squash, length)
                kernels.draw(logits[:1], NUMBERS, samples, squash, length)
                kernels.score(value, logits, squash, length)
                kernels.score_backward((value[..., ::length],), (False, True), (value, logits, squash, length), ())
    kernels.draw(empty(1, 2, dtype=HALF), key(1), 2**30, "bit")
    for samples in MANY:
        logits = empty(8, 12_800)
        kernels.draw(logits, key(8), samples, "corner", 200)
        kernels.score(empty(8, samples, 12_800), logits, "corner", 200)


def likelihood(kernels: Any) -> None:
    for members, samples, units in (*SIZES, (1, 5, 784)):
        logits, bits = empty(members, samples, units, units), empty(members, units, units)
        for cast in (bits, bits.bool()):
            kernels.log_likelihood(logits, cast)
            kernels.log_likelihood_backward(*pull(logits[..., 0]), (logits, cast, 1, 1), ())
    kernels.log_likelihood_backward(*pull(logits[..., 0]), (logits.to(HALF), bits, 1, 1), ())


def exp_concrete(kernels: Any) -> None:
    for (members, samples, units), n in zip(SIZES, (8, 1, 5), strict=True):
        logits, temperature = empty(members, units, n), empty(members, dtype=DOUBLE)
        node, corner = empty(members, samples, units, n), empty(members, samples, units, 3)
        for squash, value in (
            ("none", None),
            ("simplex", node),
            ("one-hot", node),
            *([("cube", corner)] if n == 8 else []),
        ):
            for length in lengths(units):
                kernels.draw(logits, temperature, key(members), samples, squash, length)
                kernels.draw(logits[:1], temperature, NUMBERS, samples, squash, length)
            for by in ((node, value), (node, None), (None, value)):
                if by != (None, None):
                    inputs = (logits, temperature, None, samples, squash, 1)
                    kernels.draw_backward((*by, None), (True,), inputs, (node,))
        for length in lengths(units):
            by, inputs = (node[:, :, ::length, 0],), (node, logits, temperature, length)
            for score, backward in (
                (kernels.score, kernels.score_backward),
                (kernels.score_gaussian, kernels.score_gaussian_backward),
            ):
                score(*inputs)
                for needs in NEEDS:
                    backward(by, needs, inputs, ())
            kernels.draw_gaussian(logits, temperature, key(members), samples, "none", length)
    kernels.draw_gaussian(logits, temperature, key(members), samples, "cube", units)
    kernels.score_backward((node[..., 0],), (True, True), (node, logits.to(HALF), temperature, 1), ())


def categorical(kernels: Any) -> None:
    for (members, samples, units), n in zip(SIZES, (8, 1, 5), strict=True):
        logits, value = empty(members, units, n), empty(members, samples, units, n)
        for squash in ("one-hot", *(["corner"] if n == 8 else [])):
            value = value if squash == "one-hot" else value[..., :3]
            for length in lengths(units):
                kernels.draw(logits, key(members), samples, squash, length)
                kernels.draw(logits[:1], NUMBERS, samples, squash, length)
                kernels.score(value, logits, squash, length)
                by = (value[:, :, ::length, 0],)
                kernels.score_backward(by, (False, True), (value, logits, squash, length), ())
    kernels.score_backward((value[..., 0],), (False, True), (value, logits.to(HALF), squash, 1), ())


def polynomial(kernels: Any) -> None:
    for members, one, other, width, columns in ((1, 1, 1, 1, 1), (2, 3, 4, 5, 200), (1, 17, 17, 33, 4096)):
        for dtype in (torch.float32, DOUBLE):
            left, right = empty(members, one, columns, dtype=dtype), empty(members, other, columns, dtype=dtype)
            out = empty(members, width, columns, dtype=dtype)
            kernels.product(left, right, width)
            kernels.product_backward(*pull(out), (left, right, width), ())
            kernels.correlation_backward(*pull(left), (out, right, one), ())


SUBSETS = [(1, 1, 1, 2, 1), (2, 3, 5, 7, 3), (1, 1, 64, 64, 10), (1, 1, 4096, 1024, 32), (1, 2, 3, 8000, 1)]
"""Members, samples, units, items and how many of them are chosen."""


def subset(kernels: Any) -> None:
    for members, samples, units, n, k in SUBSETS:
        for dtype in (torch.float32, HALF):
            kernels.choose(empty(members, units, n, dtype=dtype), empty(members, samples, units, 2, n), k)


def subset_concrete(kernels: Any) -> None:
    for members, samples, units, n, k in SUBSETS:
        for dtype in (torch.float32, HALF, torch.float16):
            logits, temperature = empty(members, units, n, dtype=dtype), empty(members, dtype=DOUBLE)
            inputs = logits, temperature, empty(members, samples, units, 2, n), k
            outputs = kernels.relax(*inputs)
            kernels.relax_backward((outputs[0], None), (True,), inputs, outputs)


def subset_marginal(kernels: Any) -> None:
    for members, _, units, n, k in SUBSETS:
        for dtype in (torch.float32, HALF):
            logits = empty(members, units, n, dtype=dtype)
            kernels.include_backward((kernels.include(logits, k),), (True,), (logits, k), ())


def affine(kernels: Any) -> None:
    for members, high, wide, deep in ((1, 1, 1, 1), (3, 5, 7, 9), (1, 100, 200, 784), (10, 50, 200, 784)):
        x, weight, out = empty(members, high, deep), empty(members, wide, deep), empty(members, high, wide)
        for product in PRODUCTS:
            kernels.affine(x, weight, out[:, 0], members == 1, product)
            kernels.gradients(out, x, weight, out, members == 1, product, high > 1)
        for tanh in (True, False):
            for each in (out, out.to(HALF)):
                kernels.before_tanh(each, each, tanh)
            kernels.affine(x.to(HALF), weight.to(HALF), out[:, 0], tanh, "bfloat16")
    for high in (500, 1_000, 1_200, 2_000, 5_000, 20_000):  # tiles of all sizes
        kernels.affine(empty(1, high, 784), empty(1, 200, 784), empty(1, 200), True, "tf32")


def convolution(kernels: Any) -> None:
    for members, points, inputs, outputs, side in (
        (1, 1, 1, 1, 1),
        (3, 5, 2, 7, 9),
        (2, 3, 32, 1, 14),
        (8, 320, 64, 32, 28),
    ):
        x = empty(members, points, side, side, inputs)
        for transposed in (True, False):
            channels = (inputs, outputs) if transposed else (outputs, inputs)
            weight, bias = empty(members, *channels, 3, 3), empty(members, outputs)
            for product, stride in (("tf32", 2), ("ieee", 1)):
                given = x, weight, bias if stride == 1 else None, stride, 1, 0, transposed, product
                kernels.convolution_backward((kernels.convolution(*given),), (True,) * 3, given, ())


def adam(kernels: Any) -> None:
    for members, shapes in ((1, [(1,)]), (3, [(5, 7), (1,), (2_000,)]), (2, [(200, 784), (200,)])):
        sizes = [empty(members, dtype=DOUBLE) for _ in range(4)]
        sums, step = empty(members, 4, dtype=DOUBLE), empty(members, dtype=torch.int64)
        tensors, decays = [empty(members, *shape) for shape in shapes], [len(shape) > 1 for shape in shapes]
        kernels.guard_(sums, step, tensors, empty(members), step, sizes[0])
        kernels.adam_(tensors, tensors, tensors, tensors, decays, *sizes, 0.9, 0.999, 1e-8)


def muon(kernels: Any) -> None:
    for members, shapes in ((1, [(1, 1)]), (3, [(5, 7), (7, 5)]), (2, [(200, 784), (784, 200), (200, 200)])):
        rate, matrices = empty(members, dtype=DOUBLE), [empty(members, *shape) for shape in shapes]
        kernels.momentum_(matrices, matrices, matrices, matrices, rate, rate, momentum=0.95)
        kernels.move_(matrices, matrices, [1.0] * len(matrices), rate)
    for size in (1, 5, 200):
        for product in ("ieee", "tf32"):
            kernels.polynomial(empty(2, size, size), (3.4, -4.7, 2.0), product)


def bits(kernels: Any) -> None:
    for members, points, width in ((1, 1, 1), (3, 5, 7), (1, 100, 784)):
        packed, index = empty(points, -(-width // 8), dtype=torch.uint8), key(members)
        kernels.unpack(packed, index, width)


def bound(kernels: Any) -> None:
    for members, samples, batch in SIZES:
        log_w = empty(members, samples, batch)
        for by in (log_w[:, 0], empty(1, 1).expand(members, batch)):
            kernels.bound_backward(*pull(by), (log_w, 1), (kernels.bound(log_w),))
        for added, subtracted in ((1, 1), (3, 2)):
            for averages in (True, False):
                terms = [log_w] * added, [log_w] * subtracted
                outputs = kernels.loss(*terms, [], [], averages)
                for signal in ([], terms[1]):
                    kernels.loss_backward(*pull(log_w[:, 0, 0]), (*terms, signal, [], averages, 1), outputs)
                for method in ("reinforce", "leave-one-out", "geometric"):
                    outputs = kernels.score_function_loss(*terms, method, averages)
                    given = (*terms, method, averages, 1), outputs
                    kernels.score_function_loss_backward(*pull(log_w[:, 0, 0]), *given)


def nvil(kernels: Any) -> None:
    for members, samples, batch in SIZES:
        signal, running = empty(members, samples, batch), empty(members)
        for how in ((True, True), (False, False)):
            kernels.normalize(signal, running, running, 0.8, *how)


def vimco(kernels: Any) -> None:
    for members, samples, batch in SIZES:
        for mean in ("geometric", "arithmetic"):
            kernels.vimco(empty(members, samples, batch), mean)


def affine_likelihood(kernels: Any) -> None:
    for members, samples, batch, wide, deep in ((1, 1, 1, 1, 1), (3, 5, 2, 7, 9), (1, 100, 4, 784, 200)):
        state, weight = empty(members, samples, batch, deep), empty(members, wide, deep)
        for product, dtype in zip(PRODUCTS, (torch.float32, HALF), strict=True):
            for slopes in (False, True):
                for each in (state, state.to(dtype)):
                    bits = empty(members, batch, wide)
                    kernels.affine_log_likelihood(each, weight, weight[..., 0], bits, slopes, product)
        for dtypes in ((torch.float32, torch.float32), (torch.float32, HALF), (HALF, HALF)):
            given, weighted = (state.flatten(1, 2).to(dtype) for dtype in dtypes)
            kernels.scale_rows(state.flatten(1, 2)[..., 0], given, given, weighted.dtype)
    for rows in (500, 1_000, 5_000):  # tiles of all sizes, and inputs that they divide
        state, weight = empty(1, 1, rows, 64), empty(1, 784, 64)
        bits = empty(1, rows, 784, dtype=torch.bool)
        kernels.affine_log_likelihood(state, weight, weight[..., 0], bits, True, "tf32")


def branches(given: Any, place: tuple[Any, ...]) -> set[Any]:
    """What a launch decides for a kernel, and where: its flags, words, dtypes, and if rows are of one unit."""
    if isinstance(given, dict | tuple | list):
        items = given.items() if isinstance(given, dict) else enumerate(given)
        return {each for key, value in items for each in branches(value, (*place, key))}
    if isinstance(given, int | float) and not isinstance(given, bool):
        return {(place, given == 1 and place[-1] == "LENGTH")}
    return {(place, given.dtype if isinstance(given, Tensor) else given)}


Launch = tuple[Any, str, tuple[Any, ...], dict[str, Any]]
"""A kernel, its name, its arguments and its constants."""


def cover(launches: list[Launch]) -> list[Launch]:
    """Few of the launches that take all branches of all: always the one that takes most of those still left."""
    taken = [(launch, branches(launch[2:], (launch[1],))) for launch in launches]
    left, chosen = set[Any]().union(*(each for _, each in taken)), list[Launch]()
    while left:
        launch, most = max(taken, key=lambda pair: len(pair[1] & left))
        chosen.append(launch)
        left -= most
    return chosen


def compile_all(whole: bool) -> None:
    """Compile what launches would run, or as many as take every branch, and print what does not compile."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    target = GPUTarget("cuda", 90, 32)
    driver.set_active(
        SimpleNamespace(
            get_current_device=lambda: 0, get_current_stream=lambda device: 0, get_current_target=lambda: target
        )
    )
    torch.set_default_device("meta")  # where tensors have no numbers, and take no room
    compiled = set()

    def fault(kernel: Any, name: str, arguments: tuple[Any, ...], constants: dict[str, Any]) -> str | None:
        try:
            shared = kernel.run(*arguments, grid=(1,), warmup=True, **constants).metadata.shared
        except Exception as error:
            while error.__cause__ is not None:
                error = error.__cause__
            return f"{name} with {constants} does not compile: {type(error).__name__}: {error}"
        return f"{name} with {constants} shares {shared} bytes of {SHARED}" if shared > SHARED else None

    def launch(kernel: Any, grid: Any) -> Any:
        def run(*arguments: Any, **constants: Any) -> None:
            name = f"{kernel.fn.__module__}.{kernel.fn.__name__}"
            compiled.add(name)
            launches.append((kernel, name, arguments, constants))

        return run

    launches: list[Launch] = []
    with mock.patch.object(JITFunction, "__getitem__", launch):
        for operation in OPERATIONS:
            kernels = import_module(f"concretely.kernel.{module_of(operation)}")
            globals()[operation](kernels)
            launched = re.findall(r"^\s+(_\w+)\[.*\]\(", Path(kernels.__file__).read_text(), re.MULTILINE)
            for name in {f"{kernels.__name__}.{each}" for each in launched} - compiled:
                print(f"{name} is launched, but was not compiled")
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda launched: fault(*launched), launches if whole else cover(launches)))
    for each in dict.fromkeys(found):
        if each is not None:
            print(each)


@pytest.mark.slow
@pytest.mark.unchecked
@pytest.mark.parametrize("which", ["branches", *exhaustive("all")])
def test_all_kernels_compile_for_a_gpu(which: str) -> None:
    pytest.importorskip("triton", reason="there is no compiler of kernels")
    # on its own, as it replaces what this process interprets
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    call = [sys.executable, "-m", "tests.kernel.test_compiles", which]
    root = Path(__file__).parents[2]
    done = subprocess.run(call, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert not done.stdout, done.stdout
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    compile_all(sys.argv[1] == "all")
