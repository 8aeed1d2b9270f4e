# SPDX-License-Identifier: MIT
"""The Triton kernels of grouped FP8 and MX products: C[r] = A[r] B[g] for the rows r of group g.

Who owns which rows is found out as in `grouped_gemm_kernel`; the main loops are those of turbo-gemm's kernels.

    a         [A_ROWS, K]  payload; strides (stride_am, 1)
    b         [G, N, K]    payload, that is B transposed; strides (stride_bg, stride_bn, 1). DESC_AB: descriptors of a
                           and of b as [G N, K]; not with a_idx
    all others             as in `grouped_gemm_kernel`: C is zeros where no group's row is

Sums are float32, k ascending; scales and bias in float32; one rounding. Rows of no group are not read, nor their
scales. Deterministic: one program writes an element. No row count is compiled in. EDGES, MASK_K: the blocks do not
divide N, or K. Source: written for this library.
"""

import triton
import triton.language as tl

from turbo_gemm.developer import add_bias, load_scales, sum_fp8, sum_fp8_blocks, sum_mx, tile_of_program
from turbo_grouped_gemm.triton.grouped_gemm_kernel import place_rows
from turbo_grouped_gemm.triton.groups_kernel import (
    count_tiles,
    find_tile,
    load_groups,
    next_tile,
    number_tiles,
    store_rows,
)

__all__ = ["grouped_gemm_fp8_block_kernel", "grouped_gemm_fp8_kernel", "grouped_gemm_mx_kernel"]


@triton.jit
def gathered_rows(a_idx, row0, limit, A_ROWS, stride_a_idx, R: tl.constexpr):
    """Rows of A that the R rows from row0 name, int64 [R]; None without a_idx."""
    rows = None
    if a_idx is not None:
        rows = place_rows(a_idx, row0, limit, A_ROWS, stride_a_idx, R)
    return rows


@triton.jit
def matrix_of_group(b, group, stride_bg, DESC_AB: tl.constexpr):
    """B of a group; a descriptor is of all of them."""
    if not DESC_AB:
        b += group.to(tl.int64) * stride_bg
    return b


@triton.jit
def store_tile_of_group(
    acc, c, bias, out_idx, group, row0, limit, col0, owned, C_ROWS, N, stride_cm, stride_cn, stride_bias_g,
    stride_bias_n, stride_out_idx, R: tl.constexpr, C: tl.constexpr, SUBTILE: tl.constexpr, EDGES: tl.constexpr
):  # fmt: skip
    """Add the group's bias, round once, store; rows of no group are zeros."""
    if bias is not None:
        group_bias = bias + group.to(tl.int64) * stride_bias_g
        acc = add_bias(acc, group_bias, col0, tl.where(owned, N, 0), stride_bias_n, C)
    store_rows(
        acc, c, out_idx, row0, 0, limit, col0, 0, C_ROWS, N, stride_cm, stride_cn, stride_out_idx, R, C, SUBTILE, False,
        EDGES
    )  # fmt: skip


@triton.jit(do_not_specialize=["S", "A_ROWS", "C_ROWS"])
def grouped_gemm_fp8_kernel(
    a, b, c, bias, a_scale, b_scale, lens, offs, a_idx, out_idx, counter, G, S, A_ROWS, C_ROWS, N, K,
    stride_am, stride_bg, stride_bn, stride_cm, stride_cn, stride_bias_g, stride_bias_n, stride_asm, stride_bsg,
    stride_bsn, stride_lens, stride_offs, stride_a_idx, stride_out_idx,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_G: tl.constexpr, GROUP_M: tl.constexpr,
    XCDS: tl.constexpr, PROMOTE: tl.constexpr, DESC_AB: tl.constexpr, EDGES: tl.constexpr, MASK_K: tl.constexpr,
    WIDE: tl.constexpr, SUBTILE: tl.constexpr
):  # fmt: skip
    """C[s, n] = round(sum_k A[a_idx[s], k] B[g, n, k] * a_scale[a_idx[s]] * b_scale[g, n]  + bias[g, n])

    a_scale, b_scale  [A_ROWS], [G, N]  float32 multipliers, any strides; strides of 0: one scale for the tensor
    PROMOTE: see turbo-gemm's `gemm_fp8_kernel`.
    """
    tiles_n = tl.cdiv(N, BLOCK_N)
    first, size, following = load_groups(lens, offs, G, S, stride_lens, stride_offs, BLOCK_G)
    head, ends = number_tiles(first, size, following, G, S, tiles_n, BLOCK_M, BLOCK_G, out_idx is None)
    num_tiles = count_tiles(head, ends)
    tile = tl.program_id(0)
    while tile < num_tiles:
        number = tile
        if counter is None:
            number = tile_of_program(tile, num_tiles, XCDS)
        group, row0, limit, tile_n, owned = find_tile(number, head, ends, first, size, G, S, tiles_n, BLOCK_M, GROUP_M)
        col0 = tile_n * BLOCK_N
        read = owned & (A_ROWS > 0)
        rows = gathered_rows(a_idx, row0, limit, A_ROWS, stride_a_idx, BLOCK_M)
        acc = sum_fp8(
            a, matrix_of_group(b, group, stride_bg, DESC_AB), row0, col0, limit, N, 0, tl.where(read, K, 0), stride_am,
            stride_bn, BLOCK_M, BLOCK_N, BLOCK_K, PROMOTE, DESC_AB, True, EDGES, MASK_K, WIDE, rows, group * N
        )  # fmt: skip
        # what belongs to no group has no scales to be read, and stays zeros
        if a_idx is None:
            a_scales = load_scales(a_scale, row0, tl.where(read, limit, 0), stride_asm, BLOCK_M, 1, True)
        else:
            named = tl.arange(0, BLOCK_M) < tl.where(read, BLOCK_M, 0)
            a_scales = tl.load(a_scale + rows * stride_asm, mask=named, other=0.0)
        group_scale = b_scale + group.to(tl.int64) * stride_bsg
        acc *= a_scales[:, None]
        acc *= load_scales(group_scale, col0, tl.where(read, N, 0), stride_bsn, BLOCK_N, 1, True)[None, :]
        store_tile_of_group(
            acc, c, bias, out_idx, group, row0, limit, col0, owned, C_ROWS, N, stride_cm, stride_cn, stride_bias_g,
            stride_bias_n, stride_out_idx, BLOCK_M, BLOCK_N, SUBTILE, EDGES
        )  # fmt: skip
        tile = next_tile(tile, counter)


@triton.jit(do_not_specialize=["S", "A_ROWS", "C_ROWS", "stride_ask"])
def grouped_gemm_fp8_block_kernel(
    a, b, c, bias, a_scale, b_scale, lens, offs, a_idx, out_idx, counter, G, S, A_ROWS, C_ROWS, N, K,
    stride_am, stride_bg, stride_bn, stride_cm, stride_cn, stride_bias_g, stride_bias_n, stride_asm, stride_ask,
    stride_bsg, stride_bsn, stride_bsk, stride_lens, stride_offs, stride_a_idx, stride_out_idx,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_G: tl.constexpr, GROUP_M: tl.constexpr,
    XCDS: tl.constexpr, SCALE: tl.constexpr, DESC_AB: tl.constexpr, EDGES: tl.constexpr, MASK_K: tl.constexpr,
    WIDE: tl.constexpr, HALVES: tl.constexpr, SUBTILE: tl.constexpr
):  # fmt: skip
    """C[s, n] = round(sum_i a_scale[r, i] b_scale[g, n // SCALE, i] * (sum_{k in i} A[r, k] B[g, n, k])  + bias[g, n])

    r: a_idx[s]; i: blocks of SCALE columns
    a_scale, b_scale  [A_ROWS, blocks], [G, ceil(N / SCALE), blocks]  float32 multipliers, any strides
    HALVES: see turbo-gemm's `gemm_fp8_block_kernel`.
    """
    tiles_n = tl.cdiv(N, BLOCK_N)
    R: tl.constexpr = BLOCK_M // HALVES
    first, size, following = load_groups(lens, offs, G, S, stride_lens, stride_offs, BLOCK_G)
    head, ends = number_tiles(first, size, following, G, S, tiles_n, BLOCK_M, BLOCK_G, out_idx is None)
    num_tiles = count_tiles(head, ends)
    tile = tl.program_id(0)
    while tile < num_tiles:
        number = tile
        if counter is None:
            number = tile_of_program(tile, num_tiles, XCDS)
        group, row0, limit, tile_n, owned = find_tile(number, head, ends, first, size, G, S, tiles_n, BLOCK_M, GROUP_M)
        col0 = tile_n * BLOCK_N
        k_sum = tl.where(owned & (A_ROWS > 0), K, 0)
        rows = gathered_rows(a_idx, row0, limit, A_ROWS, stride_a_idx, BLOCK_M)
        group_scale = b_scale + group.to(tl.int64) * stride_bsg
        nothing = tile // 1073741824  # 0, unknown to the compiler
        acc, lower = sum_fp8_blocks(
            a, matrix_of_group(b, group, stride_bg, DESC_AB), a_scale, group_scale, row0, col0, limit, N, 0, k_sum,
            nothing, stride_am, stride_bn, stride_asm, stride_ask, stride_bsn, stride_bsk, BLOCK_M, BLOCK_N, BLOCK_K, 1,
            SCALE, SCALE, DESC_AB, True, EDGES, MASK_K, WIDE, HALVES, rows, group * N
        )  # fmt: skip
        store_tile_of_group(
            acc, c, bias, out_idx, group, row0, limit, col0, owned, C_ROWS, N, stride_cm, stride_cn, stride_bias_g,
            stride_bias_n, stride_out_idx, R, BLOCK_N, SUBTILE, EDGES
        )  # fmt: skip
        if HALVES == 2:
            store_tile_of_group(
                lower, c, bias, out_idx, group, row0 + R, limit, col0, owned, C_ROWS, N, stride_cm, stride_cn,
                stride_bias_g, stride_bias_n, stride_out_idx, R, BLOCK_N, SUBTILE, EDGES
            )  # fmt: skip
        tile = next_tile(tile, counter)


@triton.jit(do_not_specialize=["S", "A_ROWS", "C_ROWS"])
def grouped_gemm_mx_kernel(
    a, b, c, bias, a_scale, b_scale, lens, offs, a_idx, out_idx, counter, G, S, A_ROWS, C_ROWS, N, K,
    stride_am, stride_bg, stride_bn, stride_cm, stride_cn, stride_bias_g, stride_bias_n, stride_asm, stride_bsg,
    stride_bsn, stride_lens, stride_offs, stride_a_idx, stride_out_idx,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_G: tl.constexpr, GROUP_M: tl.constexpr,
    XCDS: tl.constexpr, FORMAT_A: tl.constexpr, FORMAT_B: tl.constexpr, EDGES: tl.constexpr, WIDE: tl.constexpr,
    SUBTILE: tl.constexpr
):  # fmt: skip
    """C[s, n] = round(sum_k A[r, k] 2^(a_scale[r, k // 32] - 127) B[g, n, k] 2^(b_scale[g, n, k // 32] - 127)  + ...)

    r                 a_idx[s]
    a, b              bytes of e4m3 or e5m2, or of two e2m1, the first low
    a_scale, b_scale  [A_ROWS, K / 32], [G, N, K / 32]  E8M0 bytes, no gaps

    BLOCK_K divides K, which counts elements, not bytes.
    """
    tiles_n = tl.cdiv(N, BLOCK_N)
    first, size, following = load_groups(lens, offs, G, S, stride_lens, stride_offs, BLOCK_G)
    head, ends = number_tiles(first, size, following, G, S, tiles_n, BLOCK_M, BLOCK_G, out_idx is None)
    num_tiles = count_tiles(head, ends)
    tile = tl.program_id(0)
    while tile < num_tiles:
        number = tile
        if counter is None:
            number = tile_of_program(tile, num_tiles, XCDS)
        group, row0, limit, tile_n, owned = find_tile(number, head, ends, first, size, G, S, tiles_n, BLOCK_M, GROUP_M)
        col0 = tile_n * BLOCK_N
        k_sum = tl.where(owned & (A_ROWS > 0), K, 0)
        rows = gathered_rows(a_idx, row0, limit, A_ROWS, stride_a_idx, BLOCK_M)
        acc = sum_mx(
            a, matrix_of_group(b, group, stride_bg, False), a_scale, matrix_of_group(b_scale, group, stride_bsg, False),
            row0, col0, limit, N, k_sum, stride_am, stride_bn, stride_asm, stride_bsn, BLOCK_M, BLOCK_N, BLOCK_K,
            FORMAT_A, FORMAT_B, True, EDGES, WIDE, rows
        )  # fmt: skip
        store_tile_of_group(
            acc, c, bias, out_idx, group, row0, limit, col0, owned, C_ROWS, N, stride_cm, stride_cn, stride_bias_g,
            stride_bias_n, stride_out_idx, BLOCK_M, BLOCK_N, SUBTILE, EDGES
        )  # fmt: skip
        tile = next_tile(tile, counter)
