"""Functions built on single instructions of an NVIDIA GPU, with precise replacements everywhere else."""

import torch
import triton
import triton.language as tl


@triton.jit
def _compiled():
    """A function whose type tells whether functions are compiled or interpreted."""


NATIVE = tl.constexpr(isinstance(_compiled, triton.JITFunction) and torch.version.hip is None)
"""Whether these instructions exist: they do neither in the interpreter nor on other GPUs."""


@triton.jit
def _instruction(x, CODE: tl.constexpr):
    """An instruction on float32 numbers."""
    return tl.inline_asm_elementwise(CODE, "=f,f", [x], tl.float32, True, 1)


@triton.jit
def exp(x):
    """The exponential, 0 where it would not be a normal number."""
    power = x * 1.4426950408889634  # 1 / log 2
    return _instruction(power, "ex2.approx.ftz.f32 $0, $1;") if NATIVE else tl.exp2(power)


@triton.jit
def log2(x):
    """The logarithm to the base of 2 of a positive normal number; where it is less than 1, up to 2⁻²² off."""
    return _instruction(x, "lg2.approx.ftz.f32 $0, $1;") if NATIVE else tl.log2(x)


@triton.jit
def log(x):
    """The natural logarithm of such a number."""
    return log2(x) * 0.6931471805599453  # log 2


@triton.jit
def precise_log(x):
    """The natural logarithm of a positive normal number, precise to the last place."""
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
    """One over a normal number, a unit off in the last place."""
    return _instruction(x, "rcp.approx.ftz.f32 $0, $1;") if NATIVE else 1 / x


@triton.jit
def rough_log1p(small):
    """The logarithm of one plus a number that is not negative, up to 2⁻¹⁸ of it off; what is small is not lost."""
    series = (((0.2 * small - 0.25) * small + 0.33333333) * small - 0.5) * small * small + small
    return tl.where(small < 0.0625, series, log(1 + small))


@triton.jit
def product(x, FACTOR: tl.constexpr):
    """The upper and the lower word of a product of words."""
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
    """A number that is not negative, with the sign of another."""
    sign = number.to(tl.int32, bitcast=True) & -0x80000000
    return (size.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)


@triton.jit
def difference(scale, x, y):
    """One number times another, less a third, with one rounding: the terms may be large, and the difference small."""
    if NATIVE:
        # the product of a fused multiplication is exact, and the scale is a sum of two numbers
        high = scale.to(tl.float32)
        low = (scale - high.to(tl.float64)).to(tl.float32)
        found = tl.fma(x, high, -y)
        found = tl.where(tl.abs(found) < float("inf"), tl.fma(x, low, found), found)
    else:
        found = (scale * x.to(tl.float64) - y.to(tl.float64)).to(tl.float32)
    return found


@triton.jit
def whole_difference(scale, x, y):
    """The same as a number and its rounding error, since differences of such differences may be smaller still."""
    high = scale.to(tl.float32)
    low = (scale - high.to(tl.float64)).to(tl.float32)
    found = tl.fma(x, high, -y)
    total = y + found
    gone = total - y
    rest = tl.fma(x, high, -total) - ((y - (total - gone)) + (found - gone))
    return found, tl.fma(x, low, rest)


@triton.jit
def sigmoid(node):
    """The sigmoid, precise at both ends."""
    small = exp(-tl.abs(node))
    return tl.where(node < 0, small, 1.0) * reciprocal(1 + small)


@triton.jit
def tanh_half(node):
    """The hyperbolic tangent of one half of a number."""
    small = exp(-tl.abs(node))
    return signed_as((1 - small) / (1 + small), node)  # divided, as a reciprocal would be rounded once more


@triton.jit
def log1p(small):
    """The logarithm of one plus a number that is not negative, by the rounding error of the sum."""
    total = 1 + small
    return tl.where(total == 1, small, tl.log(total) * (small / (total - 1)))


@triton.jit
def times(one, other):
    """The product of two numbers."""
    return one * other


@triton.jit
def both(one, other):
    """The product of two numbers, all kept less 1 so that nothing small is lost."""
    return one + other + one * other
