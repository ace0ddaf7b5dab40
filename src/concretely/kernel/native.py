"""Functions built on single instructions of an NVIDIA GPU, with precise replacements on other devices."""

import torch
import triton
import triton.language as tl


@triton.jit
def _compiled():
    """Do nothing. The type of this function shows whether Triton compiles or interprets functions."""


NATIVE = tl.constexpr(isinstance(_compiled, triton.JITFunction) and torch.version.hip is None)
"""Whether these instructions exist. They exist neither in the interpreter nor on AMD GPUs."""


SMALLEST = tl.constexpr(9.860761315262648e-32)
"""The smallest value on the unit interval and on the simplex, as in `functional.edge`."""
LARGEST_BELOW_ONE = tl.constexpr(0.99999994)
"""1 - 2⁻²⁴, the largest float32 below 1."""
LOG_2_BY_EXPONENT = tl.constexpr(8.262958320e-08)
"""The logarithm of 2, divided by 2²³, the unit of an exponent in the bits of a float32."""


@triton.jit
def _instruction(x, CODE: tl.constexpr):
    """Apply an instruction to float32 numbers."""
    return tl.inline_asm_elementwise(CODE, "=f,f", [x], tl.float32, True, 1)


@triton.jit
def exp(x):
    """Return the exponential, or 0 where it would be subnormal."""
    power = x * 1.4426950408889634  # 1 / log 2
    return _instruction(power, "ex2.approx.ftz.f32 $0, $1;") if NATIVE else tl.exp2(power)


@triton.jit
def log2(x):
    """Return the base-2 logarithm of a positive normal number. Results below 1 have an error of up to 2⁻²²."""
    return _instruction(x, "lg2.approx.ftz.f32 $0, $1;") if NATIVE else tl.log2(x)


@triton.jit
def log(x):
    """Return the natural logarithm of a positive normal number, with the relative error of `log2`."""
    return log2(x) * 0.6931471805599453  # log 2


@triton.jit
def precise_log(x):
    """Return the natural logarithm of a positive normal number, precise to the last place."""
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - 0x3F2AAAAB) & -0x800000
    m = (bits - exponent).to(tl.float32, bitcast=True) - 1  # from -1/3 to 1/3
    s = m * m
    even = ((-0.130310059 * s - 0.121483363) * s - 0.166846052) * s - 0.2499962
    odd = (0.140869141 * s + 0.139814854) * s + 0.200120345
    rest = ((odd * m + even) * m + 0.333331972) * m - 0.5
    return exponent.to(tl.float32) * LOG_2_BY_EXPONENT + (rest * s + m)


@triton.jit
def reciprocal(x):
    """Return one over a normal number, with an error of up to one unit in the last place."""
    return _instruction(x, "rcp.approx.ftz.f32 $0, $1;") if NATIVE else 1 / x


@triton.jit
def rough_log1p(small):
    """Return log(1 + small) for a nonnegative number, with a relative error of up to 2⁻¹⁸ even for tiny numbers."""
    series = (((0.2 * small - 0.25) * small + 0.33333333) * small - 0.5) * small * small + small
    return tl.where(small < 0.0625, series, log(1 + small))


@triton.jit
def product(x, FACTOR: tl.constexpr):
    """Return the upper and the lower 32-bit word of a product of two words."""
    if NATIVE:
        # the compiler does not see that one instruction gives both words
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
    """Return a nonnegative number with the sign of another."""
    sign = number.to(tl.int32, bitcast=True) & -0x80000000
    return (size.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)


@triton.jit
def difference(scale, x, y):
    """Return scale · x - y with one rounding, since the difference may be much smaller than its terms."""
    if NATIVE:
        # the product of a fused multiplication is exact, and the scale is a sum of two numbers
        high = scale.to(tl.float32)
        low = (scale - high.to(tl.float64)).to(tl.float32)
        result = tl.fma(x, high, -y)
        result = tl.where(tl.abs(result) < float("inf"), tl.fma(x, low, result), result)
    else:
        result = (scale * x.to(tl.float64) - y.to(tl.float64)).to(tl.float32)
    return result


@triton.jit
def whole_difference(scale, x, y):
    """Return scale · x - y as a number and its rounding error, since differences of results may be smaller still."""
    high = scale.to(tl.float32)
    low = (scale - high.to(tl.float64)).to(tl.float32)
    result = tl.fma(x, high, -y)
    total = y + result
    gone = total - y
    rest = tl.fma(x, high, -total) - ((y - (total - gone)) + (result - gone))
    return result, tl.fma(x, low, rest)


@triton.jit
def sigmoid(node):
    """Return the sigmoid, precise at both ends."""
    small = exp(-tl.abs(node))
    return tl.where(node < 0, small, 1.0) * reciprocal(1 + small)


@triton.jit
def tanh_half(node):
    """Return the hyperbolic tangent of one half of a number."""
    small = exp(-tl.abs(node))
    return signed_as((1 - small) / (1 + small), node)  # divided, as a reciprocal would be rounded once more


@triton.jit
def log1p(small):
    """Return log(1 + small) for a nonnegative number, corrected by the rounding error of the sum."""
    total = 1 + small
    return tl.where(total == 1, small, tl.log(total) * (small / (total - 1)))


@triton.jit
def times(one, other):
    """Return the product of two numbers."""
    return one * other


@triton.jit
def both(one, other):
    """Return (1 + one)(1 + other) - 1, computed so that small numbers are not lost."""
    return one + other + one * other
