# SPDX-License-Identifier: MIT
"""The Triton FP8 GEMM kernel with scales in its epilogue, and the loads that FP8 and MX kernels share.

The schedule is that of `gemm_kernel`.
"""

import triton
import triton.language as tl

from turbo_gemm.triton.gemm_kernel import NARROW_BYTES, store_tile, tile_position


@triton.jit
def load_scales(base, first, count, stride, R: tl.constexpr, SHARED: tl.constexpr, MASK: tl.constexpr, rows=None):
    """Scales of R rows from `first`: one scalar when all of them share it, else [R]; zeros past the last row.

    Each SHARED consecutive rows of the matrix have one scale, `stride` elements after the one before.
    rows: [R] int64, which rows they are, each with a scale of its own, in place of those from `first`; or None.
    """
    if rows is not None:
        scales = tl.load(base + rows * stride)
    elif SHARED % R == 0:
        scales = tl.load(base + (first // SHARED).to(tl.int64) * stride)
    else:
        row = first + tl.arange(0, R)
        pointers = base + (row // SHARED).to(tl.int64) * stride
        if MASK:
            scales = tl.load(pointers, mask=row < count, other=0.0)
        else:
            scales = tl.load(pointers)
    return scales


@triton.jit
def load_rows(
    base, rows_left, k_left, stride, R: tl.constexpr, K: tl.constexpr, T: tl.constexpr, EDGE_R: tl.constexpr,
    MASK_K: tl.constexpr, WIDE: tl.constexpr, rows=None
):  # fmt: skip
    """The [R, K] block with corner `base` of rows with unit stride, as [K, R] when T; zeros from k_left on.

    Past the last row that row is read again, in place of a mask: what it gives is never stored, and a mask that varies
    along both dimensions would break 16-byte loads up into bytes.
    rows: [R] int64, which rows they are, in place of the first R, and none past the last; or None.
    """
    r = tl.arange(0, R)
    k = tl.arange(0, K)
    if rows is not None:
        r = rows
    elif EDGE_R:
        r = tl.minimum(r, rows_left - 1)
    if rows is not None or WIDE:
        r = r.to(tl.int64)
    else:
        tl.assume(stride >= 0)
        tl.assume(stride <= NARROW_BYTES // R)
    if T:
        pointers = base + (k[:, None] + r[None, :] * stride)
        mask = (k < k_left)[:, None]
    else:
        pointers = base + (r[:, None] * stride + k[None, :])
        mask = (k < k_left)[None, :]
    if MASK_K:
        block = tl.load(pointers, mask=mask, other=0.0)
    else:
        block = tl.load(pointers)
    return block


@triton.jit
def load_pair(
    a, b, a_corner, b_corner, row0, col0, k0, M, N, k_end, stride_am, stride_bn, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, DESC_AB: tl.constexpr, EDGE_M: tl.constexpr, EDGE_N: tl.constexpr,
    MASK_K: tl.constexpr, WIDE: tl.constexpr, rows=None, b_first=0
):  # fmt: skip
    """Blocks [BLOCK_M, BLOCK_K] of A and [BLOCK_K, BLOCK_N] of B at (row0, k0) and (k0, col0), zeros from k_end on.

    rows: see `load_rows`, of A; `a_corner` is then that of all of A.
    b_first: rows that the descriptor of B transposed has before those of B.
    """
    if DESC_AB:
        a_block = a.load([row0, k0])
        b_block = b.load([b_first + col0, k0]).T
    else:
        a_block = load_rows(
            a_corner + k0, M - row0, k_end - k0, stride_am, BLOCK_M, BLOCK_K, False, EDGE_M, MASK_K, WIDE, rows
        )
        b_block = load_rows(
            b_corner + k0, N - col0, k_end - k0, stride_bn, BLOCK_N, BLOCK_K, True, EDGE_N, MASK_K, WIDE
        )
    return a_block, b_block


@triton.jit
def row_corner(x, row0, stride, rows=None):
    """Where row `row0` of x begins; x itself when `rows` says which rows are meant."""
    if rows is None:
        x = x + row0.to(tl.int64) * stride
    return x


@triton.jit
def sum_fp8(
    a, b, row0, col0, M, N, first, K, stride_am, stride_bn, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, PROMOTE: tl.constexpr, DESC_AB: tl.constexpr, EDGE_M: tl.constexpr, EDGE_N: tl.constexpr,
    MASK_K: tl.constexpr, WIDE: tl.constexpr, rows=None, b_first=0
):  # fmt: skip
    """sum_k A[m, k] B[k, n] of the tile at (row0, col0): the main loop of `gemm_fp8_kernel`.

    The K of the sum are the columns from `first` on of A and of B transposed. rows, b_first: see `load_pair`.
    """
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    a_corner = None
    b_corner = None
    if not DESC_AB:
        a_corner = row_corner(a, row0, stride_am, rows)
        b_corner = row_corner(b, col0, stride_bn)
    for step in range(tl.cdiv(K, BLOCK_K)):
        a_block, b_block = load_pair(
            a, b, a_corner, b_corner, row0, col0, first + step * BLOCK_K, M, N, first + K, stride_am, stride_bn,
            BLOCK_M, BLOCK_N, BLOCK_K, DESC_AB, EDGE_M, EDGE_N, MASK_K, WIDE, rows, b_first
        )  # fmt: skip
        acc = tl.dot(a_block, b_block, acc, max_num_imprecise_acc=PROMOTE)
    return acc


@triton.jit
def gemm_fp8_kernel(
    a, b, c, bias, a_scale, b_scale, M, N, K, stride_am, stride_bn, stride_cm, stride_cn, stride_bias,
    stride_asm, stride_bsn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, XCDS: tl.constexpr,
    PROMOTE: tl.constexpr, DESC_AB: tl.constexpr, DESC_C: tl.constexpr, ACCUMULATE: tl.constexpr,
    EDGES: tl.constexpr, MASK_K: tl.constexpr, WIDE: tl.constexpr, FLATTEN: tl.constexpr, SUBTILE: tl.constexpr
):  # fmt: skip
    """C = (A * A_scale) (B * B_scale) (+ bias) (+ C), one scale a row of A and a column of B.

        C[m, n] = round(sum_k A[m, k] B[k, n] * a_scale[m] * b_scale[n]  + bias[n]  + (C[m, n] if ACCUMULATE))

    a        [M, K]  FP8; strides (stride_am, 1). With DESC_AB a descriptor, block [BLOCK_M, BLOCK_K].
    b        [N, K]  FP8 (that is B transposed); strides (stride_bn, 1); with DESC_AB a descriptor. e4m3 and e5m2 mix.
    c        [M, N]  fp16, bf16 or fp32; any strides. With DESC_C a descriptor, block [BLOCK_M, BLOCK_N / SUBTILE].
    bias     [N]     fp16, bf16 or fp32, any stride; or None.
    a_scale  [M]     float32 multipliers, any stride; 0 is one scale for the tensor.
    b_scale  [N]     likewise.

    Accumulation: float32, k ascending; scales, bias and the old C in float32; one rounding. PROMOTE: NVIDIA's sm_90
    keeps 14 bits of a sum of FP8 products, so such a sum is added to a float32 accumulator every PROMOTE of k; None: it
    is not, or the matrix units add in float32.
    EDGES, MASK_K: the blocks do not divide M and N, or K.
    Everything else is as in `gemm_kernel`. Deterministic.
    Source: written for this library.
    """
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    num_tiles = tiles_m * tiles_n
    programs = tl.num_programs(0)
    MASK_MN: tl.constexpr = EDGES and not DESC_C  # descriptors cut off edges by themselves

    done = tl.program_id(0) - programs  # a counter of the epilogue's own: see gemm_kernel
    for tile in tl.range(tl.program_id(0), num_tiles, programs, flatten=FLATTEN):
        tile_m, tile_n = tile_position(tile, num_tiles, tiles_m, tiles_n, GROUP_M, XCDS)
        row0 = tile_m * BLOCK_M
        col0 = tile_n * BLOCK_N
        acc = sum_fp8(
            a, b, row0, col0, M, N, 0, K, stride_am, stride_bn, BLOCK_M, BLOCK_N, BLOCK_K, PROMOTE, DESC_AB, EDGES,
            EDGES, MASK_K, WIDE
        )  # fmt: skip

        done += programs
        tile_m, tile_n = tile_position(done, num_tiles, tiles_m, tiles_n, GROUP_M, XCDS)
        row0 = tile_m * BLOCK_M
        col0 = tile_n * BLOCK_N
        zero = (done // 1073741824) * 16  # always 0, unknown to the compiler: see gemm_kernel
        acc *= load_scales(a_scale, row0, M, stride_asm, BLOCK_M, 1, EDGES)[:, None]
        acc *= load_scales(b_scale, col0, N, stride_bsn, BLOCK_N, 1, EDGES)[None, :]
        store_tile(
            acc, c, bias, zero, row0, col0, M, N, stride_cm, stride_cn, stride_bias, BLOCK_M, BLOCK_N, SUBTILE,
            ACCUMULATE, DESC_C, MASK_MN, WIDE
        )  # fmt: skip
