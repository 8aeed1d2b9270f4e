# SPDX-License-Identifier: MIT
"""The Triton GEMM kernel: persistent, grouped, XCD-aware, with bias and accumulation fused into its epilogue.

The stages above it (order of tiles, loads, epilogue) serve the FP8 and MX kernels too.

One source for every target. What differs between targets is data: the rows of `gemm_tiles.py`.

Names: M, N, K are the sizes of C[M, N] = A[M, K] B[K, N], whatever the storage order of A and B.
"""

import triton
import triton.language as tl

from turbo_core.triton.order import xcd_order

NARROW_BYTES: tl.constexpr = tl.constexpr(2**30)  # two dimensions of a block together stay under 2**31 bytes


@triton.jit
def tile_of_program(tile, num_tiles, XCDS: tl.constexpr):
    """The tile, in the order of `grouped_order`, that this program takes as number `tile` of the launch.

    Programs walk `tile = program, program + programs, ...`, so the tiles [w * programs, (w + 1) * programs) are one
    wave. Within a wave neighbouring tiles, which share rows of A or columns of B, go to one XCD (`xcd_order`).
    """
    if XCDS > 1:
        program = tl.program_id(0)
        wave_start = tile - program
        wave_size = tl.minimum(num_tiles - wave_start, tl.num_programs(0))
        tile = wave_start + xcd_order(program, wave_size, XCDS)
    return tile


@triton.jit
def grouped_order(tile, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """(row, column) of a tile: GROUP_M rows of tiles are walked column by column.

    So a wave covers a near-square patch of C, and its A and B panels stay in L2.
    """
    tiles_per_group = GROUP_M * tiles_n
    first_m = (tile // tiles_per_group) * GROUP_M
    rows = tl.minimum(tiles_m - first_m, GROUP_M)
    within = tile % tiles_per_group
    return first_m + within % rows, within // rows


@triton.jit
def tile_position(tile, num_tiles, tiles_m, tiles_n, GROUP_M: tl.constexpr, XCDS: tl.constexpr):
    """(row, column) of the tile that this program takes as number `tile` of the launch."""
    return grouped_order(tile_of_program(tile, num_tiles, XCDS), tiles_m, tiles_n, GROUP_M)


@triton.jit
def block_pointers(base, zero, stride_r, stride_c, R: tl.constexpr, C: tl.constexpr, WIDE: tl.constexpr):
    """Pointers of an [R, C] block whose corner `base` points at. For `zero` see gemm_kernel.

    The corner is one 64-bit scalar, so a tensor of any size is in reach; offsets inside the block are 32-bit, which
    AMD's buffer instructions need, unless WIDE says that a block may span more than NARROW_BYTES along a dimension.
    The assumptions are what the launcher checked before it passed WIDE = False.
    """
    r = tl.arange(0, R) + zero
    c = tl.arange(0, C)
    if WIDE:
        r = r.to(tl.int64)
        c = c.to(tl.int64)
    else:
        item: tl.constexpr = base.dtype.element_ty.primitive_bitwidth // 8
        tl.assume(stride_r >= 0)
        tl.assume(stride_r <= NARROW_BYTES // (R * item))
        tl.assume(stride_c >= 0)
        tl.assume(stride_c <= NARROW_BYTES // (C * item))
    return base + (r[:, None] * stride_r + c[None, :] * stride_c)


@triton.jit
def both_negative(r, c):
    """The mask (r < 0)[:, None] & (c < 0)[None, :], by the sign bit of r & c.

    The plain form keeps a mask for every row and column, each a pair of scalar registers on AMD, until they
    are combined, and ran out of scalar registers; this one keeps integers and makes each mask where it is used.
    """
    return (r[:, None] & c[None, :]) < 0


@triton.jit
def load_block(
    base, zero, rows_left, cols_left, stride_r, stride_c, R: tl.constexpr, C: tl.constexpr, MASK_R: tl.constexpr,
    MASK_C: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """The [R, C] block with corner `base`; what lies past the last row or column of the matrix reads as zero."""
    pointers = block_pointers(base, zero, stride_r, stride_c, R, C, WIDE)
    r = tl.arange(0, R) + zero
    c = tl.arange(0, C)
    if MASK_R and MASK_C:
        block = tl.load(pointers, mask=both_negative(r - rows_left, c - cols_left), other=0.0)
    elif MASK_R:
        block = tl.load(pointers, mask=(r < rows_left)[:, None], other=0.0)
    elif MASK_C:
        block = tl.load(pointers, mask=(c < cols_left)[None, :], other=0.0)
    else:
        block = tl.load(pointers)
    return block


@triton.jit
def add_bias(acc, bias, col0, N, stride_bias, C: tl.constexpr):
    """acc [R, C] + bias [N] from column col0 on, in float32; zeros past the last column."""
    n = col0 + tl.arange(0, C)
    return acc + tl.load(bias + n.to(tl.int64) * stride_bias, mask=n < N, other=0.0).to(tl.float32)[None, :]


@triton.jit
def finish_block(
    acc, c, bias, zero, row0, col0, M, N, stride_cm, stride_cn, stride_bias, R: tl.constexpr, C: tl.constexpr,
    ACCUMULATE: tl.constexpr, DESC_C: tl.constexpr, MASK_MN: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """Add bias and the old C in float32, round once, store the [R, C] block at (row0, col0)."""
    if bias is not None:
        acc = add_bias(acc, bias, col0, N, stride_bias, C)
    if DESC_C:
        c.store([row0, col0], acc.to(c.dtype))
    else:
        corner = c + row0.to(tl.int64) * stride_cm + col0.to(tl.int64) * stride_cn
        if ACCUMULATE:
            old = load_block(
                corner, zero, M - row0, N - col0, stride_cm, stride_cn, R, C, MASK_MN, MASK_MN, WIDE
            )  # fmt: skip
            acc += old.to(tl.float32)
        pointers = block_pointers(corner, zero, stride_cm, stride_cn, R, C, WIDE)
        value = acc.to(c.dtype.element_ty)
        if MASK_MN:
            r = tl.arange(0, R) + zero
            n = tl.arange(0, C)
            tl.store(pointers, value, mask=both_negative(r - (M - row0), n - (N - col0)))
        else:
            tl.store(pointers, value)


@triton.jit
def store_tile(
    acc, c, bias, zero, row0, col0, M, N, stride_cm, stride_cn, stride_bias, R: tl.constexpr, C: tl.constexpr,
    SUBTILE: tl.constexpr, ACCUMULATE: tl.constexpr, DESC_C: tl.constexpr, MASK_MN: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """`finish_block` of the whole tile, or of its left and its right half."""
    if SUBTILE == 2:
        HALF: tl.constexpr = C // 2
        left, right = tl.split(tl.permute(tl.reshape(acc, (R, 2, HALF)), (0, 2, 1)))
        finish_block(
            left, c, bias, zero, row0, col0, M, N, stride_cm, stride_cn, stride_bias, R, HALF,
            ACCUMULATE, DESC_C, MASK_MN, WIDE
        )  # fmt: skip
        finish_block(
            right, c, bias, zero, row0, col0 + HALF, M, N, stride_cm, stride_cn, stride_bias, R, HALF,
            ACCUMULATE, DESC_C, MASK_MN, WIDE
        )  # fmt: skip
    else:
        finish_block(
            acc, c, bias, zero, row0, col0, M, N, stride_cm, stride_cn, stride_bias, R, C,
            ACCUMULATE, DESC_C, MASK_MN, WIDE
        )  # fmt: skip


@triton.jit
def gemm_kernel(
    a, b, c, bias, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, stride_bias,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, XCDS: tl.constexpr,
    A_T: tl.constexpr, B_T: tl.constexpr, DESC_AB: tl.constexpr, DESC_C: tl.constexpr, UPCAST: tl.constexpr,
    ACCUMULATE: tl.constexpr, MASK_MN: tl.constexpr, MASK_K: tl.constexpr, WIDE: tl.constexpr,
    FLATTEN: tl.constexpr, SUBTILE: tl.constexpr
):  # fmt: skip
    """C = A B (+ bias) (+ C).

        C[m, n] = round(sum_k A[m, k] * B[k, n]  + bias[n]  + (C[m, n] if ACCUMULATE))

    a      [M, K]  fp16, bf16 or fp32; strides (stride_am, stride_ak), any, in elements. With DESC_AB a descriptor of
                   [M, K] (block [BLOCK_M, BLOCK_K]), or of the stored [K, M] (block [BLOCK_K, BLOCK_M]) when A_T.
    b      [K, N]  likewise; with DESC_AB a descriptor of [K, N], or of the stored [N, K] when B_T.
    c      [M, N]  fp16, bf16 or fp32; any strides. With DESC_C a descriptor, block [BLOCK_M, BLOCK_N / SUBTILE].
    bias   [N]     any of the three dtypes, any stride; or None.

    Accumulation: float32, k ascending in steps of BLOCK_K; bias and the old C are added in float32; one rounding.
    16-bit operands of one dtype go to the matrix units as they are; float32 operands and (UPCAST) those of two dtypes
    are multiplied as float32 with input_precision="ieee", never tf32 or xf32.
    Offsets are 64-bit: tensors may hold more than 2**31 elements. Past the edge of A and B zeros are read, from both,
    so a NaN or infinity beyond K of one operand never meets the other.
    Deterministic: one program writes an element of C, in one order of k; no atomics.
    Launch: a one-dimensional grid of any size from 1 up; each program walks tiles program, program + programs, ...
    MASK_MN, MASK_K: M, N or K may not be multiples of the block. WIDE: see load_block. FLATTEN: fuse the tile loop and
    the k loop, so that loads of the next tile start under the epilogue. SUBTILE (1 or 2): store C in that
    many column slices, which divides the shared memory that the store needs.
    Source: written for this library; the schedule is the textbook persistent, grouped GEMM.
    """
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    num_tiles = tiles_m * tiles_n
    k_blocks = tl.cdiv(K, BLOCK_K)
    programs = tl.num_programs(0)

    # The epilogue recomputes its position from a counter of its own: a value that lives across the flattened loop's
    # seam would keep the compiler from fusing the two loops.
    done = tl.program_id(0) - programs
    for tile in tl.range(tl.program_id(0), num_tiles, programs, flatten=FLATTEN):
        tile_m, tile_n = tile_position(tile, num_tiles, tiles_m, tiles_n, GROUP_M, XCDS)
        row0 = tile_m * BLOCK_M
        col0 = tile_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        if not DESC_AB:
            a_corner = a + row0.to(tl.int64) * stride_am
            b_corner = b + col0.to(tl.int64) * stride_bn
        for k_block in range(k_blocks):
            k0 = k_block * BLOCK_K
            if DESC_AB:
                if A_T:
                    a_block = a.load([k0, row0]).T
                else:
                    a_block = a.load([row0, k0])
                if B_T:
                    b_block = b.load([col0, k0]).T
                else:
                    b_block = b.load([k0, col0])
            else:
                a_block = load_block(
                    a_corner, 0, M - row0, K - k0, stride_am, stride_ak, BLOCK_M, BLOCK_K, MASK_MN, MASK_K, WIDE
                )
                b_block = load_block(
                    b_corner, 0, K - k0, N - col0, stride_bk, stride_bn, BLOCK_K, BLOCK_N, MASK_K, MASK_MN, WIDE
                )
                a_corner += BLOCK_K * tl.cast(stride_ak, tl.int64)
                b_corner += BLOCK_K * tl.cast(stride_bk, tl.int64)
            if UPCAST:
                a_block = a_block.to(tl.float32)
                b_block = b_block.to(tl.float32)
            acc = tl.dot(a_block, b_block, acc, input_precision="ieee")

        done += programs
        tile_m, tile_n = tile_position(done, num_tiles, tiles_m, tiles_n, GROUP_M, XCDS)
        row0 = tile_m * BLOCK_M
        col0 = tile_n * BLOCK_N
        # Always 0 (2**30 tiles would be more of C than memory holds), but the compiler cannot know. Without it, it
        # computes the offsets of C's elements before the loops and holds them in registers all along: 32 of the 256
        # at 256x256 on AMD, which then spill.
        zero = (done // 1073741824) * 16
        store_tile(
            acc, c, bias, zero, row0, col0, M, N, stride_cm, stride_cn, stride_bias, BLOCK_M, BLOCK_N, SUBTILE,
            ACCUMULATE, DESC_C, MASK_MN, WIDE
        )  # fmt: skip
