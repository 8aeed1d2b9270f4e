# SPDX-License-Identifier: MIT
"""The Triton FP8 GEMM kernel with scales by blocks of K; the schedule is that of `gemm_kernel`."""

import triton
import triton.language as tl

from turbo_gemm.triton.gemm_fp8_kernel import load_pair, load_scales, row_corner
from turbo_gemm.triton.gemm_kernel import store_tile, tile_position


@triton.jit
def spread_scales(a_scales, b_scales, R: tl.constexpr, C: tl.constexpr, SHARED_R: tl.constexpr, SHARED_C: tl.constexpr):
    """a_scales[m] * b_scales[n] in the least shape that broadcasts to [R, C]."""
    if SHARED_R % R == 0 and SHARED_C % C == 0:
        product = a_scales * b_scales
    elif SHARED_R % R == 0:
        product = (a_scales * b_scales)[None, :]
    elif SHARED_C % C == 0:
        product = (a_scales * b_scales)[:, None]
    else:
        product = a_scales[:, None] * b_scales[None, :]
    return product


@triton.jit
def seed_of(acc, zero):
    """Zeros to begin a sum with, which nobody can compute before `acc` is there. zero: 0, unknown to the compiler."""
    return (acc.to(tl.int32, bitcast=True) & zero).to(tl.float32, bitcast=True)


@triton.jit
def sum_fp8_blocks(
    a, b, a_scale, b_scale, row0, col0, M, N, first, K, nothing, stride_am, stride_bn, stride_asm, stride_ask,
    stride_bsn, stride_bsk,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SCALE_M: tl.constexpr, SCALE_N: tl.constexpr,
    SCALE_K: tl.constexpr, DESC_AB: tl.constexpr, EDGE_M: tl.constexpr, EDGE_N: tl.constexpr, MASK_K: tl.constexpr,
    WIDE: tl.constexpr, HALVES: tl.constexpr, rows=None, b_first=0
):  # fmt: skip
    """The sum of scaled blocks of the tile at (row0, col0): the main loop of `gemm_fp8_block_kernel`.

    The K of the sum are the columns from `first` on of A and of B transposed; the scales are those of these columns.
    rows, b_first: see `load_pair`; SCALE_M is 1 with rows, which name scales too. nothing: 0, unknown to the compiler.
    Returns the sum twice; with HALVES == 2 that of the upper and that of the lower half.
    """
    WALK_BLOCKS: tl.constexpr = SCALE_K % BLOCK_K != 0
    STEPS: tl.constexpr = (SCALE_K + BLOCK_K - 1) // BLOCK_K
    R: tl.constexpr = BLOCK_M // HALVES
    if WALK_BLOCKS:
        k_steps = tl.cdiv(K, SCALE_K) * STEPS
    else:
        k_steps = tl.cdiv(K, BLOCK_K)
    acc = tl.zeros((R, BLOCK_N), dtype=tl.float32)
    if HALVES == 2:
        lower = tl.zeros((R, BLOCK_N), dtype=tl.float32)
        next_lower = load_scales(a_scale, row0 + R, M, stride_asm, R, SCALE_M, EDGE_M)
    if DESC_AB:
        next_a = load_scales(a_scale, row0, M, stride_asm, R, SCALE_M, EDGE_M)
        next_b = load_scales(b_scale, col0, N, stride_bsn, BLOCK_N, SCALE_N, EDGE_N)
    a_corner = None
    b_corner = None
    if not DESC_AB:
        a_corner = row_corner(a, row0, stride_am, rows)
        b_corner = row_corner(b, col0, stride_bn)
    for step in range(k_steps):
        if WALK_BLOCKS:
            k0 = (step // STEPS) * SCALE_K + (step % STEPS) * BLOCK_K
            k_end = tl.minimum(K, (step // STEPS + 1) * SCALE_K)
        else:
            k0 = step * BLOCK_K
            k_end = K
        if DESC_AB:
            a_scales, b_scales = next_a, next_b
            g = (tl.minimum(k0 + BLOCK_K, K - 1) // SCALE_K).to(tl.int64)
            next_a = load_scales(a_scale + g * stride_ask, row0, M, stride_asm, R, SCALE_M, EDGE_M)
            next_b = load_scales(b_scale + g * stride_bsk, col0, N, stride_bsn, BLOCK_N, SCALE_N, EDGE_N)
            if HALVES == 2:
                lower_scales = next_lower
                next_lower = load_scales(a_scale + g * stride_ask, row0 + R, M, stride_asm, R, SCALE_M, EDGE_M)
        else:
            g = (k0 // SCALE_K).to(tl.int64)
            a_scales = load_scales(a_scale + g * stride_ask, row0, M, stride_asm, R, SCALE_M, EDGE_M, rows)
            b_scales = load_scales(b_scale + g * stride_bsk, col0, N, stride_bsn, BLOCK_N, SCALE_N, EDGE_N)
        if HALVES == 2:
            lower_block = a.load([row0 + R, first + k0])
        a_block, b_block = load_pair(
            a, b, a_corner, b_corner, row0, col0, first + k0, M, N, first + k_end, stride_am, stride_bn, R, BLOCK_N,
            BLOCK_K, DESC_AB, EDGE_M, EDGE_N, MASK_K, WIDE, rows, b_first
        )  # fmt: skip
        partial = tl.dot(a_block, b_block)
        acc += partial * spread_scales(a_scales, b_scales, R, BLOCK_N, SCALE_M, SCALE_N)
        if HALVES == 2:
            partial = tl.dot(lower_block, b_block, seed_of(acc, nothing))
            lower += partial * spread_scales(lower_scales, b_scales, R, BLOCK_N, SCALE_M, SCALE_N)
    if HALVES == 1:
        lower = acc
    return acc, lower


@triton.jit
def gemm_fp8_block_kernel(
    a, b, c, bias, a_scale, b_scale, M, N, K, stride_am, stride_bn, stride_cm, stride_cn, stride_bias,
    stride_asm, stride_ask, stride_bsn, stride_bsk,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, XCDS: tl.constexpr,
    SCALE_M: tl.constexpr, SCALE_N: tl.constexpr, SCALE_K: tl.constexpr, DESC_AB: tl.constexpr,
    DESC_C: tl.constexpr, ACCUMULATE: tl.constexpr, EDGES: tl.constexpr, MASK_K: tl.constexpr, WIDE: tl.constexpr,
    FLATTEN: tl.constexpr, SUBTILE: tl.constexpr, HALVES: tl.constexpr
):  # fmt: skip
    """C = (A * A_scale) (B * B_scale) (+ bias) (+ C), a scale for each SCALE_K of K; such blocks are numbered g.

        C[m, n] = round(sum_g a_scale[m, g] b_scale[n, g] * (sum_{k in g} A[m, k] B[k, n])  + bias[n]  + ...)

    a, b, c, bias  as in `gemm_fp8_kernel`
    a_scale        float32 multipliers, at (m // SCALE_M) * stride_asm + g * stride_ask
    b_scale        float32 multipliers, at (n // SCALE_N) * stride_bsn + g * stride_bsk

    Accumulation: each step of BLOCK_K by itself, scaled and added in float32, k ascending; one rounding of the end.
    Where BLOCK_K does not divide SCALE_K, each block of SCALE_K is walked by itself, with MASK_K.
    With DESC_AB the scales of a step are loaded in the step before: they are read too early in their own to be hidden.
    HALVES: 2 computes the upper and the lower half of the tile one after the other, the lower from a seed that depends
    on the upper's sum. One half's partial sums are then live at a time (128x128 with 4 warps on sm_90: 242 registers,
    so two programs a multiprocessor); free to overlap both, ptxas spilled 25, which serialises the matrix units.
    Everything else is as in `gemm_fp8_kernel`. Deterministic.
    Source: written for this library.
    """
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    num_tiles = tiles_m * tiles_n
    programs = tl.num_programs(0)
    MASK_MN: tl.constexpr = EDGES and not DESC_C  # descriptors cut off edges by themselves
    R: tl.constexpr = BLOCK_M // HALVES

    done = tl.program_id(0) - programs  # a counter of the epilogue's own: see gemm_kernel
    for tile in tl.range(tl.program_id(0), num_tiles, programs, flatten=FLATTEN):
        tile_m, tile_n = tile_position(tile, num_tiles, tiles_m, tiles_n, GROUP_M, XCDS)
        row0 = tile_m * BLOCK_M
        col0 = tile_n * BLOCK_N
        nothing = tile // 1073741824  # 0, unknown to the compiler
        acc, lower = sum_fp8_blocks(
            a, b, a_scale, b_scale, row0, col0, M, N, 0, K, nothing, stride_am, stride_bn, stride_asm, stride_ask,
            stride_bsn, stride_bsk, BLOCK_M, BLOCK_N, BLOCK_K, SCALE_M, SCALE_N, SCALE_K, DESC_AB, EDGES, EDGES,
            MASK_K, WIDE, HALVES
        )  # fmt: skip

        done += programs
        tile_m, tile_n = tile_position(done, num_tiles, tiles_m, tiles_n, GROUP_M, XCDS)
        row0 = tile_m * BLOCK_M
        col0 = tile_n * BLOCK_N
        zero = (done // 1073741824) * 16  # always 0, unknown to the compiler: see gemm_kernel
        store_tile(
            acc, c, bias, zero, row0, col0, M, N, stride_cm, stride_cn, stride_bias, R, BLOCK_N, SUBTILE,
            ACCUMULATE, DESC_C, MASK_MN, WIDE
        )  # fmt: skip
        if HALVES == 2:
            store_tile(
                lower, c, bias, zero, row0 + R, col0, M, N, stride_cm, stride_cn, stride_bias, R, BLOCK_N, SUBTILE,
                ACCUMULATE, DESC_C, MASK_MN, WIDE
            )  # fmt: skip
