# SPDX-License-Identifier: MIT
"""The Triton MX GEMM kernel: the persistent schedule of `gemm_kernel`, with a scale for each 32 of K."""

import triton
import triton.language as tl

from turbo_gemm.triton.gemm_fp8_kernel import load_rows, row_corner
from turbo_gemm.triton.gemm_kernel import store_tile, tile_position


@triton.jit
def sum_mx(
    a, b, a_scale, b_scale, row0, col0, M, N, K, stride_am, stride_bn, stride_asm, stride_bsn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, FORMAT_A: tl.constexpr,
    FORMAT_B: tl.constexpr, EDGE_M: tl.constexpr, EDGE_N: tl.constexpr, WIDE: tl.constexpr, rows=None
):  # fmt: skip
    """The sum over K, a multiple of BLOCK_K, of the tile at (row0, col0): the main loop of `gemm_mx_kernel`.

    rows: see `load_pair`, of the scales of A too.
    """
    BYTES_A: tl.constexpr = BLOCK_K // 2 if FORMAT_A == "e2m1" else BLOCK_K
    BYTES_B: tl.constexpr = BLOCK_K // 2 if FORMAT_B == "e2m1" else BLOCK_K
    SCALES: tl.constexpr = BLOCK_K // 32
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    a_corner = row_corner(a, row0, stride_am, rows)
    b_corner = row_corner(b, col0, stride_bn)
    a_scale_corner = row_corner(a_scale, row0, stride_asm, rows)
    b_scale_corner = row_corner(b_scale, col0, stride_bsn)
    for step in range(K // BLOCK_K):
        a_block = load_rows(
            a_corner + step * BYTES_A, M - row0, 0, stride_am, BLOCK_M, BYTES_A, False, EDGE_M, False, WIDE, rows
        )
        b_block = load_rows(
            b_corner + step * BYTES_B, N - col0, 0, stride_bn, BLOCK_N, BYTES_B, True, EDGE_N, False, WIDE
        )
        a_scales = load_rows(
            a_scale_corner + step * SCALES, M - row0, 0, stride_asm, BLOCK_M, SCALES, False, EDGE_M, False, WIDE, rows
        )
        b_scales = load_rows(
            b_scale_corner + step * SCALES, N - col0, 0, stride_bsn, BLOCK_N, SCALES, False, EDGE_N, False, WIDE
        )
        acc = tl.dot_scaled(a_block, a_scales, FORMAT_A, b_block, b_scales, FORMAT_B, acc)
    return acc


@triton.jit
def gemm_mx_kernel(
    a, b, c, bias, a_scale, b_scale, M, N, K, stride_am, stride_bn, stride_cm, stride_cn, stride_bias,
    stride_asm, stride_bsn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, XCDS: tl.constexpr,
    FORMAT_A: tl.constexpr, FORMAT_B: tl.constexpr, ACCUMULATE: tl.constexpr, EDGES: tl.constexpr,
    WIDE: tl.constexpr, FLATTEN: tl.constexpr, SUBTILE: tl.constexpr
):  # fmt: skip
    """C = (A * A_scale) (B * B_scale) (+ bias) (+ C), blocks of 32 along K.

        C[m, n] = round(sum_k A[m, k] 2^(a_scale[m, k // 32] - 127) * B[k, n] 2^(b_scale[n, k // 32] - 127)
                        + bias[n]  + (C[m, n] if ACCUMULATE))

    a, b              [M, K], [N, K]        bytes; strides (stride, 1); e4m3, e5m2, or two e2m1 a byte, the first low
    a_scale, b_scale  [M, K/32], [N, K/32]  E8M0 bytes; strides (stride, 1); 255 is NaN
    c, bias                                 as in `gemm_kernel`

    BLOCK_K divides K. Accumulation: float32. Scaled matrix instructions where the device has them (gfx950); elsewhere
    Triton widens the operands to 16 bits, scales them there, exactly short of overflow, and multiplies those.
    Deterministic. Source: written for this library; formats after OCP Microscaling Formats v1.0.
    """
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    num_tiles = tiles_m * tiles_n
    programs = tl.num_programs(0)

    done = tl.program_id(0) - programs  # a counter of the epilogue's own: see gemm_kernel
    for tile in tl.range(tl.program_id(0), num_tiles, programs, flatten=FLATTEN):
        tile_m, tile_n = tile_position(tile, num_tiles, tiles_m, tiles_n, GROUP_M, XCDS)
        row0 = tile_m * BLOCK_M
        col0 = tile_n * BLOCK_N
        acc = sum_mx(
            a, b, a_scale, b_scale, row0, col0, M, N, K, stride_am, stride_bn, stride_asm, stride_bsn, BLOCK_M,
            BLOCK_N, BLOCK_K, FORMAT_A, FORMAT_B, EDGES, EDGES, WIDE
        )  # fmt: skip

        done += programs
        tile_m, tile_n = tile_position(done, num_tiles, tiles_m, tiles_n, GROUP_M, XCDS)
        row0 = tile_m * BLOCK_M
        col0 = tile_n * BLOCK_N
        zero = (done // 1073741824) * 16  # always 0, unknown to the compiler: see gemm_kernel
        store_tile(
            acc, c, bias, zero, row0, col0, M, N, stride_cm, stride_cn, stride_bias, BLOCK_M, BLOCK_N, SUBTILE,
            ACCUMULATE, False, EDGES, WIDE
        )  # fmt: skip
