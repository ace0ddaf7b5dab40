"""Fast GPU instructions and functions built from them, with exact fallbacks elsewhere."""

import torch
import triton
import triton.language as tl


@triton.jit
def _compiled():
    """Do nothing; the type of this function shows whether Triton compiles or interprets."""


NATIVE = tl.constexpr(isinstance(_compiled, triton.JITFunction) and torch.version.hip is None)
"""Whether PTX instructions are available: not in the interpreter and not on AMD GPUs."""


@triton.jit
def exp(x):
    """Return the exponential, with subnormal results flushed to 0."""
    power = x * 1.4426950408889634  # 1 / log 2
    if NATIVE:
        result = tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [power], tl.float32, True, 1)
    else:
        result = tl.exp2(power)
    return result


@triton.jit
def log2(x):
    """Return log2 of a positive normal number; results below 1 have an absolute error up to 2⁻²²."""
    if NATIVE:
        result = tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    else:
        result = tl.log2(x)
    return result


@triton.jit
def log(x):
    """Return the natural logarithm of a positive normal number."""
    return log2(x) * 0.6931471805599453  # log 2


@triton.jit
def precise_log(x):
    """Return the natural logarithm of a positive normal number to the last place."""
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - 0x3F2AAAAB) & -0x800000
    m = (bits - exponent).to(tl.float32, bitcast=True) - 1  # from -1/3 to 1/3
    s = m * m
    even = ((-0.130310059 * s - 0.121483363) * s - 0.166846052) * s - 0.2499962
    odd = (0.140869141 * s + 0.139814854) * s + 0.200120345
    rest = ((odd * m + even) * m + 0.333331972) * m - 0.5
    return exponent.to(tl.float32) * 8.262958320e-08 + (rest * s + m)  # log 2, by 2²³


@triton.jit
def reciprocal(x):
    """Return the reciprocal of a normal number with an error of one unit in the last place."""
    if NATIVE:
        result = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    else:
        result = 1 / x
    return result


@triton.jit
def rough_log1p(small):
    """Return log1p of a nonnegative number with a relative error of 2⁻¹⁸."""
    series = (((0.2 * small - 0.25) * small + 0.33333333) * small - 0.5) * small * small + small
    return tl.where(small < 0.0625, series, log(1 + small))


@triton.jit
def product(x, FACTOR: tl.constexpr):
    """Return the upper and the lower word of a product of words."""
    if NATIVE:
        # one instruction for both words
        upper, lower = tl.inline_asm_elementwise(
            "{ .reg .b64 both; mul.wide.u32 both, $2, $3; mov.b64 {$1, $0}, both; }",
            "=r,=r,r,r", [x, tl.full((), FACTOR, tl.uint32)], (tl.uint32, tl.uint32), True, 1,
        )  # fmt: skip
    else:
        both = x.to(tl.uint64) * FACTOR
        upper, lower = (both >> 32).to(tl.uint32), both.to(tl.uint32)
    return upper, lower


@triton.jit
def signed_as(size, number):
    """Copy the sign of a number to a nonnegative number."""
    sign = number.to(tl.int32, bitcast=True) & -0x80000000
    return (size.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)


@triton.jit
def difference(scale, x, y):
    """Return scale * x - y with one rounding, as the terms may cancel."""
    if NATIVE:
        # fma has an exact product; the float64 scale is a sum of two float32 numbers
        high = scale.to(tl.float32)
        low = (scale - high.to(tl.float64)).to(tl.float32)
        result = tl.fma(x, high, -y)
        result = tl.where(tl.abs(result) < float("inf"), tl.fma(x, low, result), result)
    else:
        result = (scale * x.to(tl.float64) - y.to(tl.float64)).to(tl.float32)
    return result


@triton.jit
def whole_difference(scale, x, y):
    """Return scale * x - y as a rounded number and its rounding error."""
    high = scale.to(tl.float32)
    low = (scale - high.to(tl.float64)).to(tl.float32)
    result = tl.fma(x, high, -y)
    total = y + result
    gone = total - y
    rest = tl.fma(x, high, -total) - ((y - (total - gone)) + (result - gone))
    return result, tl.fma(x, low, rest)


@triton.jit
def sigmoid(node):
    """Return the sigmoid, precise in both tails."""
    small = exp(-tl.abs(node))
    return tl.where(node < 0, small, 1.0) * reciprocal(1 + small)


@triton.jit
def tanh_half(node):
    """Return tanh of half a number."""
    small = exp(-tl.abs(node))
    return signed_as((1 - small) / (1 + small), node)  # a reciprocal would round twice


@triton.jit
def log1p(small):
    """Return log1p of a nonnegative number, corrected for the rounding error of the sum."""
    total = 1 + small
    return tl.where(total == 1, small, tl.log(total) * (small / (total - 1)))


@triton.jit
def times(one, other):
    """Return the product of two numbers, for `tl.reduce`."""
    return one * other


@triton.jit
def both(one, other):
    """Return (1 + a)(1 + b) - 1, which keeps the precision of small a and b."""
    return one + other + one * other
