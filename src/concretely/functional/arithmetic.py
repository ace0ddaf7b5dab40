"""Arithmetic that neither overflows nor cancels: dtypes, temperatures, affine maps, and recovery of the noise.

`is_hidden` and `bool_or_none` handle tensors whose data cannot be read: in a compiler, CUDA graph capture, trace or
`vmap`. `torch.set_float32_matmul_precision` sets the precision of affine maps. At "highest" no kernel computes them.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Size, Tensor, nn
from torch.autograd import forward_ad
from torch.nn.functional import linear

from ..kernel.deferred import is_deferring
from ..kernel.operator import Arranged, is_plain, operator


def is_traced(value: Tensor) -> bool:
    """Return whether operations on a tensor are recorded, to run later on other data: by a compiler or a trace."""
    return (
        torch.compiler.is_compiling()
        or (value.is_cuda and torch.cuda.is_current_stream_capturing())
        or torch._C._get_tracing_state() is not None
    )


def is_hidden(value: Tensor) -> bool:
    """Return whether the data of a tensor cannot be read, or would differ in later calls (see `bool_or_none`)."""
    # a subclass with its own dispatch, such as a fake tensor, may have no data
    if is_traced(value) or type(value).__torch_dispatch__ is not Tensor.__torch_dispatch__ or value.is_meta:
        return True
    try:
        value.data_ptr()
    except RuntimeError:  # inside vmap
        return True
    return False


def bool_or_none(condition: Tensor) -> bool | None:
    """Return the value of a condition, or None inside compilation, graph capture, `torch.jit.trace` or `vmap`."""
    if is_traced(condition):
        return None
    try:
        return bool(condition)
    except RuntimeError:  # vmap, and tensors without storage
        return None


def is_finite(value: Tensor) -> bool | None:
    """Return whether all entries are finite, in one pass, or None if they cannot be read (see `bool_or_none`).

    In rare cases it is False although all entries are finite, because their sum overflows.
    """
    if is_hidden(value):
        return None
    try:
        return math.isfinite(value.detach().sum(dtype=compute_dtype(value.dtype)).item())
    except RuntimeError:  # tensors without storage
        return None


def has_nan(value: Tensor) -> bool | None:
    """Return whether any entry is NaN, or None if they cannot be read (see `bool_or_none`)."""
    if is_hidden(value):
        return None
    try:
        return not torch.equal(value, value)  # only NaN differs from itself
    except RuntimeError:  # recorded by `make_fx`
        return None


def is_undifferentiated(value: Tensor) -> bool:
    """Return whether nothing differentiates or records operations on a tensor, so that faster ones may replace them."""
    return is_plain((value,)) and not (value.requires_grad and torch.is_grad_enabled())


WIDE = torch.float64


class _Saturate(torch.autograd.Function):
    """A conversion that clamps to the finite range of the narrower dtype, forwards and backwards."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, dtype: torch.dtype) -> Tensor:
        return _saturated(value, dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, torch.dtype], output: Tensor) -> None:
        ctx.dtype, ctx.target = inputs[0].dtype, inputs[1]

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor, None]:
        return cast(grad[0], ctx.dtype), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return cast(tangent, ctx.target)


class _CompiledSaturate(torch.autograd.Function):
    """The same for compilers, which do not trace a function with a tangent."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = value.dtype
        return _saturated(value, dtype)

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor, None]:
        return cast(grad[0], ctx.dtype), None


def _saturated(value: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype.itemsize < value.dtype.itemsize:
        edge = torch.finfo(dtype).max
        value = torch.where(value.isinf(), value, value.clamp(-edge, edge))  # infinities stay
    return value.to(dtype)


def cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a tensor to a dtype. Conversions from and to float16 clamp finite numbers, so that none overflows."""
    if value.dtype == dtype:
        return value
    if torch.float16 in (value.dtype, dtype):
        function = _CompiledSaturate if torch.compiler.is_compiling() else _Saturate
        saturated: Tensor = function.apply(value, dtype)  # type: ignore[no-untyped-call]
        return saturated
    return value.to(dtype)


def to_float64(value: Tensor) -> Tensor:
    """Convert to float64."""
    return cast(value, WIDE)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of noise and intermediate results: at least float32."""
    return dtype if dtype.itemsize > 2 else torch.float32


def unpack(packed: UInt8[Tensor, "*batch bytes"], width: int) -> UInt8[Tensor, "*batch {width}"]:
    """Unpack bytes into bits, the highest bit first.

    >>> unpack(torch.tensor([160], dtype=torch.uint8), 3)
    tensor([1, 0, 1], dtype=torch.uint8)
    """
    places = 7 - torch.arange(8, dtype=torch.uint8, device=packed.device)  # no copy from the host
    return ((packed.unsqueeze(-1) >> places) & 1).flatten(-2)[..., :width]


Temperature = float | Tensor
"""A temperature given as a number stays a Python float, so that it is not rounded."""


def divide(total: Tensor, temperature: Temperature, limit: Callable[[Tensor], Tensor]) -> Tensor:
    """Divide `total` by the temperature, or return `limit(total)` where it is zero. May modify `total` in place.

    >>> divide(torch.tensor([-1.0, 2.0]), 0.0, torch.sign)
    tensor([-1.,  1.])
    """
    if isinstance(temperature, Tensor):
        positive, infinite = temperature > 0, total.isinf()
        divisor = torch.where(positive, temperature, 1)  # the gradients of a quotient by 0 would be NaN
        # so would the temperature's where its factor overflows, as beside the lowest float32 logit at temperature 0.5
        fixed = total / divisor.detach()
        is_steep = (fixed.detach() / divisor.detach()).isinf()
        quotient = torch.where(is_steep, fixed, torch.where(is_steep, 0, total) / divisor)
        return torch.where(positive & ~infinite, quotient, limit(total.detach()))
    return total.div_(temperature) if temperature > 0 else limit(total.detach())


def log_temperature(temperature: Temperature, like: Tensor) -> Temperature:
    """Return the logarithm of a temperature, for arithmetic with a tensor."""
    if isinstance(temperature, Tensor):
        return temperature.log()
    if torch.compiler.is_compiling():
        return filled((), temperature, like.device).log()
    return math.log(temperature) if temperature > 0 else -math.inf


def filled(shape: Sequence[int], number: float, device: torch.device) -> Tensor:
    """Return a float64 tensor filled with a number."""
    if torch.compiler.is_compiling():  # a compiled program would be compiled again for each number that fills a tensor
        return torch.ones(shape, dtype=WIDE, device=device) * number
    return torch.full(shape, number, dtype=WIDE, device=device)


@lru_cache(maxsize=1024)
def scalar(number: float) -> Tensor:
    """Return a number as a tensor on the CPU, for plain operations on tensors anywhere.

    Torch converts a Python number at every operation, which takes longer than an operation on a small tensor.
    """
    with torch.inference_mode(False):
        return torch.tensor(number, dtype=WIDE, device="cpu")


def plus(value: Tensor, number: float) -> Tensor:
    """Return the sum of a tensor, with at least one axis, and a number."""
    return value + (scalar(number) if is_plain((value,)) else number)


def over_categories(temperature: Temperature) -> Temperature:
    """Add a category axis to a temperature tensor."""
    return temperature.unsqueeze(-1) if isinstance(temperature, Tensor) else temperature


def as_precise(temperature: Temperature) -> Temperature:
    """Convert a temperature tensor to float64."""
    return to_float64(temperature) if isinstance(temperature, Tensor) else temperature


MILD = 2.0
"""Up to this temperature the terms of a log density have one sign, so that float32 suffices for their sum."""


def invert_noise(value: Tensor, logits: Tensor, temperature: Temperature, *, up_to_shift: bool = False) -> Tensor:
    """Return temperature times value minus logits, computed in float64 since the terms may cancel.

    The result is the noise that the value was made from. With `up_to_shift`, subtract its smallest entry over the last
    axis, so that a large constant common to all categories does not cost precision.

    >>> invert_noise(torch.tensor(1e4), torch.tensor(9999.0), 1.0)
    tensor(1.)
    """
    narrow = is_narrow(value, logits, temperature)
    if narrow and not torch.compiler.is_compiling():
        result: Tensor = _InvertNoise.apply(value, logits, temperature, up_to_shift)  # type: ignore[no-untyped-call]
        return result
    if narrow and not up_to_shift and is_exact(value, logits, temperature):
        return temperature * value - logits
    noise = temperature * to_float64(value) - to_float64(logits)
    noise = noise - noise.detach().amin(-1, keepdim=True) if up_to_shift else noise
    return noise.to(torch.float32) if narrow else noise


def is_transformed() -> bool:
    """Return whether a compiler, a transform of `torch.func` or `torch.jit.trace` is active."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return True
    return torch._C._get_tracing_state() is not None


def is_seen(value: Tensor) -> bool:
    """Return whether anything but autograd must see operations on a tensor: a transform, a mode or a subclass."""
    if is_transformed() or type(value) not in _PLAIN or forward_ad._current_level >= 0:
        return True
    return bool(torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack())


_PLAIN = frozenset((Tensor, nn.Parameter))


def is_forward_differentiated() -> bool:
    """Return whether forward-mode differentiation is active."""
    return forward_ad._current_level >= 0


def is_narrow(value: Tensor, logits: Tensor, temperature: Temperature) -> bool:
    """Return whether float32 noise suffices for the log density."""
    is_mild = isinstance(temperature, float) and temperature <= MILD
    return is_mild and value.dtype.itemsize < 8 and logits.dtype.itemsize < 8


def is_exact(value: Tensor, logits: Tensor, temperature: Temperature) -> bool:
    """Return whether float32 gives the noise as precisely as float64: a product with a power of two is not rounded."""
    is_power = type(temperature) is float and math.frexp(temperature)[0] == 0.5
    return is_power and value.dtype == logits.dtype == torch.float32


def wide_noise(value: Tensor, logits: Tensor, temperature: float) -> Tensor:
    """Return temperature times value minus logits in float64, for inputs of a narrower dtype."""
    return torch.add(-to_float64(logits), value, alpha=temperature)


def sum_to(value: Tensor, shape: Size) -> Tensor:
    """Sum a gradient over the axes that broadcasting added to a shape, without a call of torch if there are none."""
    return value if value.shape == shape else value.sum_to_size(shape)


def append_axes(value: Tensor, axes: int) -> Tensor:
    """Append axes of length 1. An index of None has no rule for batches of gradients."""
    return value.view(*value.shape, *(1,) * axes) if axes else value


def save_noise(ctx: Any, value: Tensor, logits: Tensor, temperature: float) -> None:
    """Save the temperature, shapes and dtypes, which the derivatives of `invert_noise` need."""
    ctx.temperature = temperature
    ctx.value, ctx.logits = (value.shape, value.dtype), (logits.shape, logits.dtype)


def noise_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of the value and the logits, from the gradient of the noise."""
    by_value = by_logits = None
    if ctx.needs_input_grad[0]:
        by_value = cast(sum_to(ctx.temperature * grad, ctx.value[0]), ctx.value[1])
    if ctx.needs_input_grad[1]:
        by_logits = cast(-sum_to(grad, ctx.logits[0]), ctx.logits[1])
    return by_value, by_logits


def noise_tangent(ctx: Any, by_value: Tensor | None, by_logits: Tensor | None) -> Tensor:
    """Return the tangent of the noise, from the tangents of the value and the logits."""
    moved = 0 if by_value is None else ctx.temperature * by_value.to(torch.float32)
    drawn = 0 if by_logits is None else by_logits.to(torch.float32)
    shape = torch.broadcast_shapes(ctx.value[0], ctx.logits[0])
    return torch.as_tensor(moved - drawn).expand(shape)


class _InvertNoise(torch.autograd.Function):
    """`invert_noise` with a float32 result, computed in float64."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, logits: Tensor, temperature: float, up_to_shift: bool) -> Tensor:
        noise = wide_noise(value, logits, temperature)
        return (noise.sub_(noise.amin(-1, keepdim=True)) if up_to_shift else noise).to(torch.float32)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float, bool], output: Tensor) -> None:
        save_noise(ctx, *inputs[:3])

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor | None, ...]:
        return *noise_gradients(ctx, grad[0]), None, None

    @staticmethod
    def jvp(ctx: Any, *tangent: Tensor | None) -> Tensor:
        return noise_tangent(ctx, *tangent[:2])


FEW = 256
"""Up to this number of rows per member, neither bfloat16 products nor a fused likelihood are faster."""

PRODUCTS = {"high": "tf32", "medium": "bfloat16"}
"""The rounding of factors in kernels, for each matmul precision of torch."""


def may_multiply(x: Tensor, weight: Tensor) -> bool:
    """Return whether kernels can compute a product.

    They require float32 weights, float32 or bfloat16 inputs and a matmul precision of "high" or "medium". They run
    neither under autocast nor under `torch.compile`.
    """
    if torch.compiler.is_compiling() or weight.dtype != torch.float32 or x.dtype not in (torch.float32, torch.bfloat16):
        return False
    return torch.get_float32_matmul_precision() in PRODUCTS and not torch.is_autocast_enabled(x.device.type)


def product_of(rows: int) -> str:
    """Return the rounding of the factors of a product with this number of rows per member."""
    return PRODUCTS.get(torch.get_float32_matmul_precision() if rows > FEW else "high", "ieee")


def _arrange_affine(x: Tensor, weight: Tensor, bias: Tensor, tanh: bool, product: str, deferred: bool) -> Arranged:
    if weight.dim() == 3:
        return (x, weight, bias, tanh, product_of(x.shape[1]), is_deferring()), (), ()
    rows = math.prod(x.shape[:-1])
    taken = (1, rows, x.shape[-1]), (1, *weight.shape), (1, *bias.shape)
    return (x, weight, bias, tanh, product_of(rows), is_deferring()), taken, [(*x.shape[:-1], len(bias))]


@operator(
    "affine",
    kernel="affine",
    eligible=lambda x, weight, *_: may_multiply(x, weight),
    arrange=_arrange_affine,
    saved=[0],
)
def affine(
    x: Float[Tensor, "*rows inputs"],
    weight: Float[Tensor, "*members outputs inputs"],
    bias: Float[Tensor, "*members outputs"],
    tanh: bool,
    product: str = "ieee",
    deferred: bool = False,
) -> Float[Tensor, "*rows outputs"]:
    """Apply an affine map to rows, and tanh if requested. With a member axis, each member has its own weights.

    With bfloat16 products the output of tanh is bfloat16. If `deferred`, the gradient of the weight may stay a pair of
    factors that the optimizer multiplies (see `kernel.deferred`).
    """
    x = x if x.dtype == weight.dtype else x.to(weight.dtype)
    total = linear(x, weight, bias) if weight.dim() == 2 else torch.baddbmm(bias.unsqueeze(1), x, weight.mT)
    result = total.tanh() if tanh else total
    return result.bfloat16() if tanh and product == "bfloat16" else result
