# SPDX-License-Identifier: MIT
"""The Triton kernels of a fused expert MLP: its first projection with the gate, the gradient of its second through it.

Their stages are those of `grouped_gemm_kernel`; gates are those of `turbo_core.triton.gates`. Names as there.
"""

import triton
import triton.language as tl

from turbo_core.triton.gates import activate
from turbo_gemm.developer import load_block, tile_of_program
from turbo_grouped_gemm.triton.grouped_gemm_kernel import rows_of_tile, sum_product
from turbo_grouped_gemm.triton.groups_kernel import (
    count_tiles,
    edge_block,
    find_tile,
    load_groups,
    load_row_block,
    next_tile,
    number_tiles,
    store_rows,
)


@triton.jit
def load_factor(probs, row0, limit, owned, stride_probs, R: tl.constexpr):
    """Of each row of a tile its factor [R], float32: one without probs, with them zeros for rows of no group."""
    factor = tl.full((R,), 1.0, tl.float32)
    if probs is not None:
        r = tl.arange(0, R)
        place = (row0 + r).to(tl.int64)
        kept = r < tl.where(owned, limit - row0, 0)
        factor = tl.load(probs + place * stride_probs, mask=kept, other=0.0).to(tl.float32)
    return factor


@triton.jit
def halves_of(x, R: tl.constexpr, C: tl.constexpr):
    """The left and the right half of the columns of x [R, C]."""
    return tl.split(tl.permute(tl.reshape(x, (R, 2, C // 2)), (0, 2, 1)))


@triton.jit
def store_gated(
    gate, up, pre, out, factor, row0, limit_row, col0, low, S, F, limit, alpha, ACTIVATION: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr, SUBTILE: tl.constexpr, EDGE: tl.constexpr
):  # fmt: skip
    """Round gate and up [R, C], store them as columns of pre, and their activation as those of out; see `store_rows`.

    pre [S, 2F] or None, out [S, F]: contiguous. The activation is that of the rounded gate and up. SUBTILE: slices.
    """
    if SUBTILE > 1:
        HALF: tl.constexpr = C // 2
        gate_left, gate_right = halves_of(gate, R, C)
        up_left, up_right = halves_of(up, R, C)
        store_gated(
            gate_left, up_left, pre, out, factor, row0, limit_row, col0, low, S, F, limit, alpha, ACTIVATION, R, HALF,
            SUBTILE // 2, EDGE
        )  # fmt: skip
        store_gated(
            gate_right, up_right, pre, out, factor, row0, limit_row, col0 + HALF, low - HALF, S, F, limit, alpha,
            ACTIVATION, R, HALF, SUBTILE // 2, EDGE
        )  # fmt: skip
    else:
        gate = gate.to(out.dtype.element_ty)
        up = up.to(out.dtype.element_ty)
        if pre is not None:
            store_rows(gate, pre, None, row0, 0, limit_row, col0, low, S, F, 2 * F, 1, 1, R, C, 1, False, EDGE)
            store_rows(up, pre + F, None, row0, 0, limit_row, col0, low, S, F, 2 * F, 1, 1, R, C, 1, False, EDGE)
        act, _, second, _ = activate(gate.to(tl.float32), up.to(tl.float32), limit, alpha, ACTIVATION)
        result = act * second * factor[:, None]
        store_rows(result, out, None, row0, 0, limit_row, col0, low, S, F, F, 1, 1, R, C, 1, False, EDGE)


@triton.jit
def store_dgated(
    dout, pre, dpre, out, factor, row0, limit_row, col0, low, S, F, limit, alpha, ACTIVATION: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr, SUBTILE: tl.constexpr, EDGE: tl.constexpr, MASK_F: tl.constexpr
):  # fmt: skip
    """Store the gradients of gate and up of dout [R, C], and out again where it is not None.

    Returns dout act(gate) up summed over the columns that are the tile's own, float32 [R].
    dout is zeros from column F on. pre and dpre [S, 2F], out [S, F]: contiguous. pre is read without masks, which took
    scalar registers that there were not: past the last row and column of a tile those again, whose results are not
    stored; rows of no group are zeros in it.
    """
    if SUBTILE > 1:
        HALF: tl.constexpr = C // 2
        left, right = halves_of(dout, R, C)
        sums = store_dgated(
            left, pre, dpre, out, factor, row0, limit_row, col0, low, S, F, limit, alpha, ACTIVATION, R, HALF,
            SUBTILE // 2, EDGE, MASK_F
        )  # fmt: skip
        sums += store_dgated(
            right, pre, dpre, out, factor, row0, limit_row, col0 + HALF, low - HALF, S, F, limit, alpha,
            ACTIVATION, R, HALF, SUBTILE // 2, EDGE, MASK_F
        )  # fmt: skip
    else:
        r = tl.arange(0, R)
        n = tl.arange(0, C)
        rows = row0 + tl.minimum(r, limit_row - 1 - row0)
        columns = col0 + n
        if MASK_F:
            columns = tl.minimum(columns, F - 1)
        at = pre + (rows.to(tl.int64)[:, None] * (2 * F) + columns.to(tl.int64)[None, :])
        gate = tl.load(at).to(tl.float32)
        up = tl.load(at + F).to(tl.float32)
        act, slope, second, up_slope = activate(gate, up, limit, alpha, ACTIVATION)
        result = act * second
        terms = dout * result
        if EDGE:
            terms = tl.where((n >= low)[None, :], terms, 0.0)
        sums = tl.sum(terms, 1)
        result *= factor[:, None]
        dout *= factor[:, None]
        if out is not None:
            store_rows(result, out, None, row0, 0, limit_row, col0, low, S, F, F, 1, 1, R, C, 1, False, EDGE)
        dgate = dout * slope * second
        store_rows(dgate, dpre, None, row0, 0, limit_row, col0, low, S, F, 2 * F, 1, 1, R, C, 1, False, EDGE)
        dup = dout * act * up_slope
        store_rows(dup, dpre + F, None, row0, 0, limit_row, col0, low, S, F, 2 * F, 1, 1, R, C, 1, False, EDGE)
    return sums


@triton.jit
def store_partial(sums, partials, tile_n, row0, limit_row, S, R: tl.constexpr):
    """The sums of a tile's rows as row tile_n of partials [tiles, S]."""
    r = tl.arange(0, R)
    place = tile_n.to(tl.int64) * S + row0 + r
    tl.store(partials + place, sums, mask=r < limit_row - row0)


@triton.jit(do_not_specialize=["S", "X_ROWS"])
def grouped_gated_kernel(
    x, w, pre, out, probs, lens, offs, x_idx, counter, G, S, X_ROWS, F, K, limit, alpha, stride_xm, stride_xk,
    stride_wg, stride_wk, stride_wn, stride_probs, stride_lens, stride_offs, stride_x_idx, ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_G: tl.constexpr, GROUP_M: tl.constexpr,
    XCDS: tl.constexpr, UPCAST: tl.constexpr, EDGE: tl.constexpr, MASK_F: tl.constexpr, MASK_K: tl.constexpr,
    WIDE: tl.constexpr, SUBTILE: tl.constexpr
):  # fmt: skip
    """pre[s] = X[x_idx[s]] W[g] and out[s] = act(gate) up probs[s] for the rows s of group g, zeros for others.

    x        [X_ROWS, K]  fp16, bf16 or fp32; any strides, in elements.
    w        [G, K, 2F]   likewise; the gate's columns, then up's.
    pre      [S, 2F]      fp16, bf16 or fp32, contiguous; or None.
    out      [S, F]       likewise, of one dtype with pre.
    probs    [S]          any of the three dtypes, any stride; or None.
    lens     [G], offs [G+1] or None, x_idx [S] or None, counter [1] or None: see `grouped_gemm_kernel`.

    A program computes BLOCK_F columns of the gate and the same of up, in two sums, so that nothing is read again.
    Accumulation, order, masks and determinism: those of `grouped_gemm_kernel`. Source: written for this library.
    """
    tiles_n = tl.cdiv(F, BLOCK_F)
    k_blocks = tl.cdiv(K, BLOCK_K)
    first, size, following = load_groups(lens, offs, G, S, stride_lens, stride_offs, BLOCK_G)
    head, ends = number_tiles(first, size, following, G, S, tiles_n, BLOCK_M, BLOCK_G, True)
    num_tiles = count_tiles(head, ends)

    tile = tl.program_id(0)
    while tile < num_tiles:
        number = tile
        if counter is None:
            number = tile_of_program(tile, num_tiles, XCDS)
        group, row0, limit_row, tile_n, owned = find_tile(
            number, head, ends, first, size, G, S, tiles_n, BLOCK_M, GROUP_M
        )
        col0, low = edge_block(tile_n, F, BLOCK_F, MASK_F)
        gate = tl.zeros((BLOCK_M, BLOCK_F), dtype=tl.float32)
        up = tl.zeros((BLOCK_M, BLOCK_F), dtype=tl.float32)
        x_corner, rows = rows_of_tile(x, x_idx, row0, limit_row, X_ROWS, stride_xm, stride_x_idx, BLOCK_M)
        gate_corner = w + group.to(tl.int64) * stride_wg + col0.to(tl.int64) * stride_wn
        up_corner = gate_corner + F * tl.cast(stride_wn, tl.int64)
        for k_block in range(tl.where(owned & (X_ROWS > 0), k_blocks, 0)):
            k_left = K - k_block * BLOCK_K
            x_block = load_row_block(x_corner, rows, k_left, stride_xm, stride_xk, BLOCK_K, MASK_K, WIDE, BLOCK_M)
            gate_block = load_block(
                gate_corner, 0, k_left, F - col0, stride_wk, stride_wn, BLOCK_K, BLOCK_F, MASK_K, MASK_F, WIDE
            )
            up_block = load_block(
                up_corner, 0, k_left, F - col0, stride_wk, stride_wn, BLOCK_K, BLOCK_F, MASK_K, MASK_F, WIDE
            )
            x_corner += BLOCK_K * tl.cast(stride_xk, tl.int64)
            gate_corner += BLOCK_K * tl.cast(stride_wk, tl.int64)
            up_corner += BLOCK_K * tl.cast(stride_wk, tl.int64)
            if UPCAST:
                x_block = x_block.to(tl.float32)
                gate_block = gate_block.to(tl.float32)
                up_block = up_block.to(tl.float32)
            gate = tl.dot(x_block, gate_block, gate, input_precision="ieee")
            up = tl.dot(x_block, up_block, up, input_precision="ieee")
        factor = load_factor(probs, row0, limit_row, owned, stride_probs, BLOCK_M)
        store_gated(
            gate, up, pre, out, factor, row0, limit_row, col0, low, S, F, limit, alpha, ACTIVATION, BLOCK_M, BLOCK_F,
            SUBTILE, EDGE
        )  # fmt: skip
        tile = next_tile(tile, counter)


@triton.jit(do_not_specialize=["S", "DY_ROWS"])
def grouped_dgated_kernel(
    dy, w, pre, dpre, out, probs, partials, lens, offs, dy_idx, counter, G, S, DY_ROWS, F, N, limit, alpha, stride_ym,
    stride_yn, stride_wg, stride_wn, stride_wf, stride_probs, stride_lens, stride_offs, stride_dy_idx,
    ACTIVATION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_G: tl.constexpr, GROUP_M: tl.constexpr, XCDS: tl.constexpr, UPCAST: tl.constexpr, EDGE: tl.constexpr,
    MASK_F: tl.constexpr, MASK_K: tl.constexpr, WIDE: tl.constexpr, SUBTILE: tl.constexpr
):  # fmt: skip
    """dout[s] = dY[dy_idx[s]] W[g] for the rows s of group g, taken through the gate and not stored itself.

        dgate = dout probs act'(gate) up      dup = dout probs act(gate)      partials[t, s] = sum of dout act(gate) up

    dy        [DY_ROWS, N]  fp16, bf16 or fp32; any strides, in elements.
    w         [G, N, F]     likewise: the second projection's matrices, transposed by their strides.
    pre       [S, 2F]       gate and up, contiguous, as `grouped_gated_kernel` leaves it: zeros in rows of no group.
    dpre      [S, 2F]       dgate and dup, likewise; zeros for rows of no group.
    out       [S, F]        act(gate) up probs once more, likewise; or None.
    partials  [tiles, S]    float32, the sum over the columns of each tile; or None.
    others: see `grouped_gated_kernel`. dout is float32 throughout.
    """
    tiles_n = tl.cdiv(F, BLOCK_F)
    first, size, following = load_groups(lens, offs, G, S, stride_lens, stride_offs, BLOCK_G)
    head, ends = number_tiles(first, size, following, G, S, tiles_n, BLOCK_M, BLOCK_G, True)
    num_tiles = count_tiles(head, ends)

    tile = tl.program_id(0)
    while tile < num_tiles:
        number = tile
        if counter is None:
            number = tile_of_program(tile, num_tiles, XCDS)
        group, row0, limit_row, tile_n, owned = find_tile(
            number, head, ends, first, size, G, S, tiles_n, BLOCK_M, GROUP_M
        )
        col0, low = edge_block(tile_n, F, BLOCK_F, MASK_F)
        dy_corner, rows = rows_of_tile(dy, dy_idx, row0, limit_row, DY_ROWS, stride_ym, stride_dy_idx, BLOCK_M)
        w_corner = w + group.to(tl.int64) * stride_wg + col0.to(tl.int64) * stride_wf
        dout = sum_product(
            dy_corner, rows, w_corner, owned & (DY_ROWS > 0), N, F - col0, stride_ym, stride_yn, stride_wn, stride_wf,
            BLOCK_M, BLOCK_F, BLOCK_K, UPCAST, MASK_F, MASK_K, WIDE
        )  # fmt: skip
        factor = load_factor(probs, row0, limit_row, owned, stride_probs, BLOCK_M)
        sums = store_dgated(
            dout, pre, dpre, out, factor, row0, limit_row, col0, low, S, F, limit, alpha, ACTIVATION, BLOCK_M, BLOCK_F,
            SUBTILE, EDGE, MASK_F
        )  # fmt: skip
        if partials is not None:
            store_partial(sums, partials, tile_n, row0, limit_row, S, BLOCK_M)
        tile = next_tile(tile, counter)
