# SPDX-License-Identifier: MIT
"""Device code of RMSNorm and LayerNorm, forward and backward: one template for both, CENTER tells them apart.

Forward, for each row of D elements (x, residual, y, s in one dtype):

    s    = x + residual, rounded to x's dtype (x itself without a residual)
    mean = sum(s) / D (CENTER; else 0)          rstd = (sum((s - mean)^2) / D + eps)^-1/2
    y    = (s - mean) * rstd * w + beta         w = gamma, 1 + gamma (ZERO_CENTERED), or 1 without gamma

Backward, with xhat = (s - mean) * rstd:

    c1 = sum(w dy xhat) / D                     c2 = sum(w dy) / D (CENTER; else 0)
    dx = rstd (w dy - xhat c1 - c2) + ds        ds: what reaches s on its other path
    dgamma = sum over rows of dy xhat           dbeta = sum over rows of dy

Tensors: x, residual, dy, ds, s [rows, D], last stride 1, any row stride; y, dx, s (written) [rows, D] contiguous;
gamma, beta [D]; mean, rstd float32 [rows]. All arithmetic is float32, rounded once. dgamma and dbeta take two passes:
each program sums its own rows in registers, in order, into partials float32 [programs, D]; `column_sum_kernel` adds
those in order. No atomics: bit-equal from run to run on one device.

A tile is BLOCK_R rows of BLOCK_D columns. The forward keeps a row in registers as KEPT tiles and reads it once, or
(KEPT = 0) walks it in tiles to its end and back. WHOLE: a tile of the backward spans the row, which then is read once;
otherwise c1 and c2 come from `norm_terms_kernel`, which reads dy and s once more.

Source: RMSNorm, Zhang and Sennrich 2019 (arXiv 1910.07467); LayerNorm, Ba et al. 2016 (arXiv 1607.06450); moments of
blocks joined as by Chan, Golub and LeVeque 1979.
"""

import triton
import triton.language as tl

__all__ = ["column_sum_kernel", "norm_backward_kernel", "norm_forward_kernel", "norm_terms_kernel"]


@triton.jit
def _load(pointer, offsets, mask, MASKED: tl.constexpr):
    """A float32 tile; zeros outside the mask."""
    if MASKED:
        return tl.load(pointer + offsets, mask=mask, other=0.0).to(tl.float32)
    return tl.load(pointer + offsets).to(tl.float32)


@triton.jit
def _store(pointer, offsets, value, mask, MASKED: tl.constexpr, STREAM: tl.constexpr = False):
    """STREAM: not to push what will be read again out of the caches."""
    CACHE: tl.constexpr = ".cs" if STREAM else ""
    if MASKED:
        tl.store(pointer + offsets, value.to(pointer.dtype.element_ty), mask=mask, cache_modifier=CACHE)
    else:
        tl.store(pointer + offsets, value.to(pointer.dtype.element_ty), cache_modifier=CACHE)


@triton.jit
def _load_hinted(pointer, offsets, mask, MASKED: tl.constexpr, EVICT: tl.constexpr):
    """As `_load`, and when the caches should forget it: "evict_last" if it will be read again soon."""
    if MASKED:
        return tl.load(pointer + offsets, mask=mask, other=0.0, eviction_policy=EVICT).to(tl.float32)
    return tl.load(pointer + offsets, eviction_policy=EVICT).to(tl.float32)


@triton.jit
def _load_kept(pointer, offsets, mask, MASKED: tl.constexpr, STREAM: tl.constexpr, ONE: tl.constexpr):
    """A tile in its own dtype. STREAM: L1 is for the weights; a row of several tiles would fill it, and goes past."""
    EVICT: tl.constexpr = "evict_first" if STREAM and ONE else ""
    CACHE: tl.constexpr = ".cg" if STREAM and not ONE else ""
    if MASKED:
        return tl.load(pointer + offsets, mask=mask, other=0.0, eviction_policy=EVICT, cache_modifier=CACHE)
    return tl.load(pointer + offsets, eviction_policy=EVICT, cache_modifier=CACHE)


@triton.jit
def _widen(tile, PACKED: tl.constexpr):
    """The tile in float32. PACKED (NVIDIA): anew at each use, so that what waits in registers is the 16-bit form."""
    if PACKED and tile.dtype.primitive_bitwidth == 16:
        tile = tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [tile], dtype=tile.dtype, is_pure=False, pack=2
        )  # the compiler does not see through it
    return tile.to(tl.float32)


@triton.jit
def _load_weight(gamma_ptr, cols, D, ZERO_CENTERED: tl.constexpr, MASK_D: tl.constexpr, EVICT: tl.constexpr):
    """w as a float32 tile of one row."""
    weight = _load_hinted(gamma_ptr, cols, cols < D, MASK_D, EVICT)
    if ZERO_CENTERED:
        weight += 1.0
    return weight[None, :]


@triton.jit
def _moments(s, inside, count, CENTER: tl.constexpr, MASK_D: tl.constexpr):
    """Of each row of a tile: the mean (0 unless CENTER) and the sum of squared distances from it."""
    mean = tl.zeros_like(tl.sum(s, 1))
    if CENTER:
        mean = tl.sum(s, 1) / count
        s -= mean[:, None]
        if MASK_D:
            s = tl.where(inside, s, 0.0)
    return mean, tl.sum(s * s, 1)


@triton.jit
def _join(mean_a, square_a, count_a, mean_b, square_b, count_b):
    """The moments of two sets of numbers as those of one."""
    count = count_a + count_b
    apart = mean_b - mean_a
    share = count_b / count
    return mean_a + apart * share, square_a + square_b + apart * apart * count_a * share, count


@triton.jit
def _moments_of_kept(tiles, cols, D, CENTER: tl.constexpr, KEPT: tl.constexpr, MASK_D: tl.constexpr,
                     PACKED: tl.constexpr):  # fmt: skip
    """As `_moments`, of all tiles of a row: first down each column, then across, which threads must meet for."""
    squares = tl.zeros(tiles[0].shape, tl.float32)
    if CENTER:
        total = tl.zeros(tiles[0].shape, tl.float32)
        for i in tl.static_range(KEPT):
            total += _widen(tiles[i], PACKED)
        count = tl.full(tiles[0].shape, KEPT, tl.float32)
        in_last = (cols + (KEPT - 1) * tiles[0].shape[1] < D)[None, :]
        if MASK_D:
            count = tl.where(in_last, count, KEPT - 1)
        means = total / count
        for i in tl.static_range(KEPT):
            s = _widen(tiles[i], PACKED) - means
            if MASK_D and i == KEPT - 1:
                s = tl.where(in_last, s, 0.0)
            squares += s * s
        mean, square, count = tl.reduce((means, squares, count), 1, _join)
    else:
        for i in tl.static_range(KEPT):
            s = _widen(tiles[i], PACKED)
            squares += s * s
        square = tl.sum(squares, 1)
        mean = tl.zeros_like(square)
    return mean, square


@triton.jit
def _normalise(
    y_ptr, y_at, s, mean, rstd, weight, gamma_ptr, beta_ptr, cols, D, mask,
    CENTER: tl.constexpr, ZERO_CENTERED: tl.constexpr, MASK_D: tl.constexpr, MASKED: tl.constexpr,
    STREAM: tl.constexpr,
):  # fmt: skip
    """y of one tile; ``weight`` is w where it has been loaded already."""
    EVICT: tl.constexpr = "evict_last" if STREAM else ""
    if CENTER:
        s -= mean[:, None]
    y = s * rstd[:, None]
    if weight is not None:
        y *= weight
    elif gamma_ptr is not None:
        y *= _load_weight(gamma_ptr, cols, D, ZERO_CENTERED, MASK_D, EVICT)
    if beta_ptr is not None:
        y += _load_hinted(beta_ptr, cols, cols < D, MASK_D, EVICT)[None, :]
    _store(y_ptr, y_at, y, mask, MASKED, STREAM)


@triton.jit
def norm_forward_kernel(
    x_ptr, residual_ptr, gamma_ptr, beta_ptr, y_ptr, s_ptr, mean_ptr, rstd_ptr,
    n_rows, D, x_stride, residual_stride, eps,
    CENTER: tl.constexpr, ZERO_CENTERED: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
    KEPT: tl.constexpr, EARLY: tl.constexpr, STREAM: tl.constexpr, PACKED: tl.constexpr,
    MASK_R: tl.constexpr, MASK_D: tl.constexpr,
):  # fmt: skip
    """y, and for the backward rstd, mean (CENTER) and s (with a residual), of BLOCK_R rows a program.

    KEPT: tiles that hold the row; 0: walk it. EARLY: w is loaded while the moments are on their way (one tile).
    """
    MASKED: tl.constexpr = MASK_R or MASK_D
    rows = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    valid = rows < n_rows
    x_rows = (rows * x_stride)[:, None]
    residual_rows = (rows * residual_stride)[:, None]
    y_rows = (rows * D)[:, None]
    cols = tl.arange(0, BLOCK_D)
    if KEPT > 0:
        tiles = ()
        for i in tl.static_range(KEPT):
            at = i * BLOCK_D + cols
            mask = valid[:, None] & (at < D)[None, :]
            tiles = tiles + (_load_kept(x_ptr, x_rows + at[None, :], mask, MASKED, STREAM, KEPT == 1),)
        if residual_ptr is not None:
            sums = ()
            for i in tl.static_range(KEPT):
                at = i * BLOCK_D + cols
                mask = valid[:, None] & (at < D)[None, :]
                residual = _load_kept(residual_ptr, residual_rows + at[None, :], mask, MASKED, STREAM, KEPT == 1)
                s = (tiles[i].to(tl.float32) + residual.to(tl.float32)).to(x_ptr.dtype.element_ty)
                _store(s_ptr, y_rows + at[None, :], s, mask, MASKED, STREAM)
                sums = sums + (s,)
            tiles = sums
        weight = None
        if EARLY and gamma_ptr is not None:
            weight = _load_weight(gamma_ptr, cols, D, ZERO_CENTERED, MASK_D, "evict_last" if STREAM else "")
        if KEPT == 1:
            s = tiles[0].to(tl.float32)
            mean, square = _moments(s, (cols < D)[None, :], D, CENTER, MASK_D)
        else:
            mean, square = _moments_of_kept(tiles, cols, D, CENTER, KEPT, MASK_D, PACKED)
        rstd = tl.rsqrt(square / D + eps)
        for i in tl.static_range(KEPT):
            at = i * BLOCK_D + cols
            mask = valid[:, None] & (at < D)[None, :]
            _normalise(y_ptr, y_rows + at[None, :], _widen(tiles[i], PACKED), mean, rstd, weight, gamma_ptr, beta_ptr,
                       at, D, mask, CENTER, ZERO_CENTERED, MASK_D, MASKED, STREAM)  # fmt: skip
    else:
        mean = tl.zeros([BLOCK_R], tl.float32)
        square = tl.zeros([BLOCK_R], tl.float32)
        squares = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
        for start in range(0, D, BLOCK_D):
            at = start + cols
            inside = (at < D)[None, :]
            mask = valid[:, None] & inside
            s = _load_hinted(x_ptr, x_rows + at[None, :], mask, MASKED, "evict_last")
            if residual_ptr is not None:
                s += _load_hinted(residual_ptr, residual_rows + at[None, :], mask, MASKED, "evict_first")
                s = s.to(x_ptr.dtype.element_ty)
                _store(s_ptr, y_rows + at[None, :], s, mask, MASKED)
                s = s.to(tl.float32)
            if CENTER:  # join the moments of `start` elements with those of `count`
                count = tl.minimum(D - start, BLOCK_D)
                block_mean, block_square = _moments(s, inside, count, CENTER, MASK_D)
                apart = block_mean - mean
                share = count / (start + count).to(tl.float32)
                square += block_square + apart * apart * share * start
                mean += apart * share
            else:
                squares += s * s  # threads meet once, after the last block
        if not CENTER:
            square = tl.sum(squares, 1)
        rstd = tl.rsqrt(square / D + eps)
        again_ptr = x_ptr
        again_rows = x_rows
        if residual_ptr is not None:
            again_ptr = s_ptr
            again_rows = y_rows
            tl.debug_barrier()  # s is read by other threads than wrote it, should its two layouts differ
        blocks = tl.cdiv(D, BLOCK_D)
        for back in range(blocks):  # from the end, which the caches still hold
            at = (blocks - 1 - back) * BLOCK_D + cols
            mask = valid[:, None] & (at < D)[None, :]
            s = _load_hinted(again_ptr, again_rows + at[None, :], mask, MASKED, "evict_first")
            _normalise(y_ptr, y_rows + at[None, :], s, mean, rstd, None, gamma_ptr, beta_ptr, at, D, mask,
                       CENTER, ZERO_CENTERED, MASK_D, MASKED, True)  # fmt: skip
    tl.store(rstd_ptr + rows, rstd, mask=valid)
    if CENTER:
        tl.store(mean_ptr + rows, mean, mask=valid)


@triton.jit
def _load_xhat(s_ptr, s_at, mean_ptr, rstd, rows, valid, mask, CENTER: tl.constexpr, MASKED: tl.constexpr):
    s = _load(s_ptr, s_at, mask, MASKED)
    if CENTER:
        s -= tl.load(mean_ptr + rows, mask=valid, other=0.0)[:, None]
    return s * rstd[:, None]


@triton.jit
def norm_terms_kernel(
    dy_ptr, s_ptr, gamma_ptr, mean_ptr, rstd_ptr, terms_ptr, n_rows, D, dy_stride, s_stride,
    CENTER: tl.constexpr, ZERO_CENTERED: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
    MASK_R: tl.constexpr, MASK_D: tl.constexpr,
):  # fmt: skip
    """c1 and (CENTER) c2 of rows too wide for one tile: terms float32 [2, rows]."""
    MASKED: tl.constexpr = MASK_R or MASK_D
    rows = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    valid = rows < n_rows
    rstd = tl.load(rstd_ptr + rows, mask=valid, other=0.0)
    c1 = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    c2 = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    for start in range(0, D, BLOCK_D):
        cols = start + tl.arange(0, BLOCK_D)
        mask = valid[:, None] & (cols < D)[None, :]
        xhat = _load_xhat(s_ptr, (rows * s_stride)[:, None] + cols[None, :], mean_ptr, rstd, rows, valid, mask,
                          CENTER, MASKED)  # fmt: skip
        dy = _load(dy_ptr, (rows * dy_stride)[:, None] + cols[None, :], mask, MASKED)
        if gamma_ptr is not None:
            dy *= _load_weight(gamma_ptr, cols, D, ZERO_CENTERED, MASK_D, "")
        c1 += dy * xhat
        if CENTER:
            c2 += dy
    tl.store(terms_ptr + rows, tl.sum(c1, 1) / D, mask=valid)
    if CENTER:
        tl.store(terms_ptr + n_rows + rows, tl.sum(c2, 1) / D, mask=valid)


@triton.jit
def norm_backward_kernel(
    dy_ptr, ds_ptr, s_ptr, gamma_ptr, mean_ptr, rstd_ptr, terms_ptr, dx_ptr, dgamma_ptr, dbeta_ptr,
    n_rows, n_tiles, D, dy_stride, ds_stride, s_stride,
    CENTER: tl.constexpr, ZERO_CENTERED: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
    WHOLE: tl.constexpr, MASK_R: tl.constexpr, MASK_D: tl.constexpr, PREFETCH: tl.constexpr,
):  # fmt: skip
    """dx of every P-th tile of rows (P programs along axis 0), and this program's partial dgamma and dbeta.

    Axis 1 of the grid is the block of columns (one, if WHOLE). A null pointer is a gradient that nobody wants.
    PREFETCH: rows in flight while one is worked on, by Triton's pipeliner (1: none).
    """
    MASKED: tl.constexpr = MASK_R or MASK_D
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    cols = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    inside = (cols < D)[None, :]
    weight = tl.full([1, BLOCK_D], 1.0, tl.float32)
    if gamma_ptr is not None:
        weight = _load_weight(gamma_ptr, cols, D, ZERO_CENTERED, MASK_D, "")
    dgamma = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    dbeta = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    for step in tl.range(program, n_tiles, programs, num_stages=PREFETCH):
        tile = step
        if not WHOLE:
            tile = n_tiles - 1 - step  # norm_terms_kernel read the last rows last: the caches still hold them
        rows = tl.arange(0, BLOCK_R).to(tl.int64) + tile * BLOCK_R
        valid = rows < n_rows
        mask = valid[:, None] & inside
        rstd = tl.load(rstd_ptr + rows, mask=valid, other=0.0)
        dy = _load(dy_ptr, (rows * dy_stride)[:, None] + cols[None, :], mask, MASKED)
        xhat = _load_xhat(s_ptr, (rows * s_stride)[:, None] + cols[None, :], mean_ptr, rstd, rows, valid, mask,
                          CENTER, MASKED)  # fmt: skip
        if dgamma_ptr is not None:
            dgamma += dy * xhat
        if dbeta_ptr is not None:
            dbeta += dy
        if dx_ptr is not None:
            dx = dy * weight
            if WHOLE:
                c1 = tl.sum(dx * xhat, 1) / D
            else:
                c1 = tl.load(terms_ptr + rows, mask=valid, other=0.0)
            if CENTER:
                if WHOLE:
                    c2 = tl.sum(dx, 1) / D
                else:
                    c2 = tl.load(terms_ptr + n_rows + rows, mask=valid, other=0.0)
                dx -= c2[:, None]
            dx = (dx - xhat * c1[:, None]) * rstd[:, None]
            if ds_ptr is not None:
                dx += _load(ds_ptr, (rows * ds_stride)[:, None] + cols[None, :], mask, MASKED)
            _store(dx_ptr, (rows * D)[:, None] + cols[None, :], dx, mask, MASKED)
    at = program.to(tl.int64) * D + cols
    if dgamma_ptr is not None:
        _store(dgamma_ptr, at, tl.sum(dgamma, 0), cols < D, MASK_D)
    if dbeta_ptr is not None:
        _store(dbeta_ptr, at, tl.sum(dbeta, 0), cols < D, MASK_D)


@triton.jit
def column_sum_kernel(partial_ptr, out_ptr, P, D, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr):
    """out[d] = sum over p of partial[p, d]: the second pass of dgamma and dbeta, in a fixed order."""
    cols = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    total = tl.zeros([BLOCK_P, BLOCK_D], tl.float32)
    for start in range(0, P, BLOCK_P):
        rows = (start + tl.arange(0, BLOCK_P)).to(tl.int64)
        mask = (rows < P)[:, None] & (cols < D)[None, :]
        total += tl.load(partial_ptr + rows[:, None] * D + cols[None, :], mask=mask, other=0.0)
    tl.store(out_ptr + cols, tl.sum(total, 0).to(out_ptr.dtype.element_ty), mask=cols < D)
