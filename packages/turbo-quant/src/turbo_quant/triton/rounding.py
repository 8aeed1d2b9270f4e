# SPDX-License-Identifier: MIT
"""Device code that all kernels of the wheel share: amax, scales, and codes of the 8-bit and 4-bit formats.

A format is told by its mantissa bits, the exponent of its smallest normal value (LOWEST) and whether it is FNUZ (no
negative zero, 0x80 is NaN). |x| travels as the integer that its bits are: it orders as the numbers do, infinity above
all finite values and NaN above infinity, so one integer maximum finds amax and whether the block is finite.

NATIVE: the target's own cast rounds to nearest even in this format. Elsewhere the code comes from float addition: with
ulp the format's spacing at |v|, |v| + 2^23 ulp is rounded to a multiple of ulp, and its low bits count the ulps. What
makes a code of the count is begun with: an even number of ulps, which changes no rounding.
"""

import triton
import triton.language as tl

__all__ = [
    "INFINITE",
    "decode",
    "divide",
    "encode",
    "encode_pair",
    "encode_stochastic",
    "exponent_scale",
    "float_scale",
    "largest_magnitude",
    "magnitude",
    "own_magnitude",
    "power_of_two",
    "rotate",
    "widened_magnitude",
]

INFINITE: tl.constexpr = tl.constexpr(0x7F800000)


@triton.jit
def magnitude(x):
    """|x| of a float32 tile as the integer of its bits."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def own_magnitude(x):
    """|x| as the integer of its own 16 or 32 bits; of one type they order as the numbers do."""
    if x.dtype == tl.float32:
        return magnitude(x)
    else:
        return x.to(tl.int16, bitcast=True) & 0x7FFF


@triton.jit
def widened_magnitude(bits, dtype: tl.constexpr):
    """`magnitude` of what `own_magnitude` gave for that type, or of a maximum of it."""
    if dtype == tl.float32:
        return bits
    else:
        return bits.to(tl.int16).to(dtype, bitcast=True).to(tl.float32).to(tl.int32, bitcast=True)


@triton.jit
def largest_magnitude(x, AXIS: tl.constexpr):
    """The maximum of `magnitude` along a dimension, which stays."""
    return widened_magnitude(tl.max(own_magnitude(x), AXIS, keep_dims=True), x.dtype)


@triton.jit
def divide(a, b):
    """a / b rounded once, by fused corrections: for NVIDIA, where `tl.div_rn` calls a function.

    The hardware's 1 / b is within 2 ulp for 2^-126 <= |b| <= 2^126; a Newton step rounds it to nearest, except where
    all digits of b are ones, and a / b corrected by its remainder is then right (Markstein). For a = 1, 240, 448 and
    57344 times a power of two, all digits of b and all 1 / b within 4 ulp were tried: only a = 1 over all ones fails.
    1 / b, a / b and the remainder, about 2^-24 a, must be no subnormals.
    """
    inverse = 1.0 / b
    inverse = tl.fma(tl.fma(-b, inverse, tl.full(b.shape, 1.0, tl.float32)), inverse, inverse)
    quotient = inverse * a
    return tl.fma(tl.fma(-b, quotient, tl.full(b.shape, 0.0, tl.float32) + a), inverse, quotient)


@triton.jit
def float_scale(amax, largest, floor, QUICK: tl.constexpr):
    """scale and scale_inv, float32, of blocks with that amax (int32). Where it is not finite: something finite, NaN.

    With this scale |x scale| stays below the middle between the largest value and the next, so nothing need be clamped.
    QUICK: with `divide`, by the digits of amax; its exponent is taken from that of the quotient. amax must then be of
    16 bits and floor a power of two times ``largest``, so that the digits of scale are never all ones: no integer 7 2^i
    or 15 2^i is that near to twice an integer of 11 bits without being equal.
    """
    finite = amax < INFINITE
    divisor = tl.maximum(tl.where(finite, amax, 0).to(tl.float32, bitcast=True), floor)
    if QUICK:
        bits = divisor.to(tl.int32, bitcast=True)
        exponent = (bits & INFINITE) - (127 << 23)  # of floor, normal, or more
        digits = divide(largest, (bits - exponent).to(tl.float32, bitcast=True))
        scale = (digits.to(tl.int32, bitcast=True) - exponent).to(tl.float32, bitcast=True)
        inverse = divide(1.0, scale)
    else:
        scale = tl.div_rn(largest, divisor)
        inverse = tl.div_rn(1.0, scale)
    return scale, tl.where(finite, inverse, float("nan"))


@triton.jit
def exponent_scale(amax, MANTISSA: tl.constexpr, E_MAX: tl.constexpr):
    """The E8M0 byte (int32; 255 where amax is not finite) of blocks with that amax (int32), and 2^(127 - byte).

    Of what is not finite the power of two means nothing, but is finite.
    """
    binade = tl.maximum((amax + (1 << (22 - MANTISSA))) & INFINITE, E_MAX << 23)  # at most 255 << 23: byte 254 is unmet
    factor = ((254 << 23) - binade + (E_MAX << 23)).to(tl.float32, bitcast=True)
    return tl.where(amax < INFINITE, (binade >> 23) - E_MAX, 255), factor


@triton.jit
def power_of_two(byte):
    """2^(byte - 127), float32, of an E8M0 byte (int32): 2^-127 is a subnormal, 255 is NaN."""
    bits = tl.where(byte == 0, 1 << 22, byte << 23)
    return tl.where(byte == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def _binade(size, LOWEST: tl.constexpr):
    """Exponent bits of 2^e, e the exponent of |v|, at least LOWEST."""
    return tl.maximum(size & INFINITE, (127 + LOWEST) << 23)


@triton.jit
def _with_sign(code, bits, MANTISSA: tl.constexpr, FNUZ: tl.constexpr):
    sign = (bits >> (28 if MANTISSA == 1 else 24)) & (8 if MANTISSA == 1 else 0x80)
    if FNUZ:
        sign = tl.where(code == 0, 0, sign)
    return (code | sign).to(tl.uint8)


@triton.jit
def encode(v, MANTISSA: tl.constexpr, LOWEST: tl.constexpr, FNUZ: tl.constexpr, NATIVE: tl.constexpr):
    """Codes, uint8, of a float32 tile in an 8-bit format: to nearest even. |v| must round to a value of the format."""
    if NATIVE:
        if MANTISSA == 3:
            code = v.to(tl.float8e4b8 if FNUZ else tl.float8e4nv)
        else:
            code = v.to(tl.float8e5b16 if FNUZ else tl.float8e5)
        return code.to(tl.uint8, bitcast=True)
    else:
        bits = v.to(tl.int32, bitcast=True)
        size = bits & 0x7FFFFFFF
        binade = _binade(size, LOWEST)
        FIRST: tl.constexpr = (-((127 + LOWEST) << MANTISSA)) % 128
        grid = (binade + (((23 - MANTISSA) << 23) + FIRST)).to(tl.float32, bitcast=True)
        ulps = (size.to(tl.float32, bitcast=True) + grid).to(tl.int32, bitcast=True)  # the low bits
        code = ((binade >> (23 - MANTISSA)) + ulps) & 0x7F
        return _with_sign(code, bits, MANTISSA, FNUZ)


@triton.jit
def _biased_e2m1(v, ODD: tl.constexpr):
    """The e2m1 code of v, float16 or float32, as a number; plus 2^10 or 2^23, the lowest bit being 1, unless ODD.

    The code of |v| is round(min(2 |v|, |v| + 2, |v| / 2 + 4)), and adding a large number rounds. A bias of 4 comes with
    it, which goes with the sign: -4, or +4 and so 8 too many, for the code's sign.
    """
    size = tl.abs(v)
    if v.dtype == tl.float16:
        ONE: tl.constexpr = 1024.0
        sign = (v.to(tl.int16, bitcast=True) ^ size.to(tl.int16, bitcast=True) ^ -0x3C00).to(tl.float16, bitcast=True)
    else:
        ONE: tl.constexpr = 8388608.0
        sign = ((v.to(tl.int32, bitcast=True) & -0x80000000) ^ -0x3F800000).to(tl.float32, bitcast=True)
    BASE: tl.constexpr = ONE if ODD else ONE + 4.0
    low = tl.fma(size, tl.full(v.shape, 2.0, v.dtype), tl.full(v.shape, BASE, v.dtype))
    middle = size + tl.full(v.shape, BASE + 2.0, v.dtype)
    high = tl.fma(size, tl.full(v.shape, 0.5, v.dtype), tl.full(v.shape, BASE + 4.0, v.dtype))
    code = tl.minimum(tl.minimum(low, middle), high)
    if ODD:
        code -= tl.full(v.shape, ONE - 4.0, v.dtype)
    return code + sign


@triton.jit
def encode_pair(low, high):
    """Bytes of two e2m1 codes, of float16 or float32 values that round to one of the format's; to nearest even."""
    byte = tl.fma(_biased_e2m1(high, True), tl.full(high.shape, 16.0, high.dtype), _biased_e2m1(low, False))
    return byte.to(tl.int16 if low.dtype == tl.float16 else tl.int32, bitcast=True).to(tl.uint8)


@triton.jit
def encode_stochastic(v, word, MANTISSA: tl.constexpr, LOWEST: tl.constexpr, LARGEST: tl.constexpr):
    """Codes, as of `encode`: floor(|v| / ulp) and one more where u < what is left, u of the 32-bit words.

    LARGEST is the code of the largest value.
    """
    bits = v.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    binade = _binade(size, LOWEST)
    per_ulp = ((254 << 23) - binade + (MANTISSA << 23)).to(tl.float32, bitcast=True)
    steps = size.to(tl.float32, bitcast=True) * per_ulp
    whole = steps.to(tl.int32)
    u = (word >> 8).to(tl.float32) * 5.9604644775390625e-08  # 2^-24
    up = (u < steps - whole.to(tl.float32)).to(tl.int32)
    code = whole + up + (binade >> (23 - MANTISSA)) - ((127 + LOWEST) << MANTISSA)
    return _with_sign(tl.minimum(code, LARGEST), bits, MANTISSA, False)


@triton.jit
def decode(code, MANTISSA: tl.constexpr, LOWEST: tl.constexpr, FNUZ: tl.constexpr, NATIVE: tl.constexpr):
    """float32 values of codes (uint8), exact; e2m1 codes stand in the low 4 bits."""
    if NATIVE:
        if MANTISSA == 3:
            value = code.to(tl.float8e4b8 if FNUZ else tl.float8e4nv, bitcast=True)
        else:
            value = code.to(tl.float8e5b16 if FNUZ else tl.float8e5, bitcast=True)
        return value.to(tl.float32)
    else:
        bits = code.to(tl.int32)
        size = bits & (7 if MANTISSA == 1 else 0x7F)
        signed = (size << (23 - MANTISSA)) | ((bits - size) << (28 if MANTISSA == 1 else 24))
        # as a float32 it has the right digits and an exponent too low by 126 + LOWEST, subnormals included
        value = signed.to(tl.float32, bitcast=True) * (2.0 ** (126 + LOWEST))
        if FNUZ:
            value = tl.where(bits == 0x80, float("nan"), value)
        elif MANTISSA == 3:
            value = tl.where(size == 0x7F, float("nan"), value)
        elif MANTISSA == 2:
            value = tl.where(size > 0x7C, float("nan"), tl.where(size == 0x7C, value * float("inf"), value))
        return value


@triton.jit
def _butterfly(bits, STRIDE: tl.constexpr):
    """(a, b) -> (a + b, a - b) for elements STRIDE apart of float32 bits [ROWS, WIDTH].

    A neighbour comes as the pair's sum less the element, in integers: exact, and the layout stays.
    """
    ROWS: tl.constexpr = bits.shape[0]
    WIDTH: tl.constexpr = bits.shape[1]
    pairs = tl.reshape(bits, [ROWS, WIDTH // (2 * STRIDE), 2, STRIDE])
    other = tl.sum(pairs, 2, keep_dims=True) - pairs
    second = tl.arange(0, 2)[None, None, :, None] == 1
    own = tl.where(second, pairs ^ -2147483648, pairs).to(tl.float32, bitcast=True)
    return tl.reshape((other.to(tl.float32, bitcast=True) + own).to(tl.int32, bitcast=True), [ROWS, WIDTH])


@triton.jit
def rotate(x, sign_mask, FORWARD: tl.constexpr):
    """y = H D x / 4 of each 16 neighbours along the last dimension of a float32 tile; backward x = D H y / 4.

    D holds the signs of ``sign_mask``, H is the Hadamard matrix in Sylvester order, applied as butterflies of stride 1,
    2, 4, 8.
    """
    flip = (((sign_mask >> (tl.arange(0, x.shape[1]) % 16)) & 1) << 31)[None, :]
    bits = x.to(tl.int32, bitcast=True)
    if FORWARD:
        bits ^= flip
    bits = _butterfly(_butterfly(_butterfly(_butterfly(bits, 1), 2), 4), 8)
    y = bits.to(tl.float32, bitcast=True) * 0.25
    if not FORWARD:
        y = (y.to(tl.int32, bitcast=True) ^ flip).to(tl.float32, bitcast=True)
    return y
