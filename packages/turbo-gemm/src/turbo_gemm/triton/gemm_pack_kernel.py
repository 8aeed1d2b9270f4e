# SPDX-License-Identifier: MIT
"""The kernel behind `gemm_pack`."""

import triton
import triton.language as tl


@triton.jit
def pack_rows_kernel(
    x, out, rows, cols, padded, stride_r, stride_c, stride_or, stride_b, stride_ob, R: tl.constexpr, C: tl.constexpr,
    WIDE: tl.constexpr
):  # fmt: skip
    """out[b, r, c] = x[b, r, c] for c < cols, 0 for cols <= c < padded: bytes of any layout into rows of unit stride.

    x    [B, rows, cols]    bytes; any strides. out  [B, rows, padded]  bytes; strides (stride_ob, stride_or, 1).
    One program for each [R, C] block, the B matrices along the second axis. Exact, deterministic.
    Source: written for this library.
    """
    x += tl.program_id(1).to(tl.int64) * stride_b
    out += tl.program_id(1).to(tl.int64) * stride_ob
    blocks_c = tl.cdiv(padded, C)
    row0 = (tl.program_id(0) // blocks_c) * R
    col0 = (tl.program_id(0) % blocks_c) * C
    r = tl.arange(0, R)
    c = tl.arange(0, C)
    if WIDE:
        r = r.to(tl.int64)
        c = c.to(tl.int64)
    corner = x + row0.to(tl.int64) * stride_r + col0.to(tl.int64) * stride_c
    inside = (r < rows - row0)[:, None] & (c < cols - col0)[None, :]
    block = tl.load(corner + (r[:, None] * stride_r + c[None, :] * stride_c), mask=inside, other=0)
    pointers = out + row0.to(tl.int64) * stride_or + col0 + (r[:, None] * stride_or + c[None, :])
    tl.store(pointers, block, mask=(r < rows - row0)[:, None] & (c < padded - col0)[None, :])
