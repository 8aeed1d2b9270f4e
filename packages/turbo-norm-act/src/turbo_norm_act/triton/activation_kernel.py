# SPDX-License-Identifier: MIT
"""Device code of the gated activations, forward and backward: one template, ACTIVATION names the formula.

    out[t, h] = act(gate[t, h]) * up[t, h] * probs[t]            (0 where row_mask[t] is 0)

    dgate = dout probs act'(gate) up      dup = dout probs act(gate)      dprobs[t] = sum over h of dout act(gate) up

Gates, their limits and their derivatives are those of `turbo_core.triton.gates`, where the formulas and sources are.

Tensors: gate, up, dgate, dup [T, H] with a row stride and one column stride; packed in one tensor [T, 2H], up (and dup)
begins up_offset elements behind the gate: H for halves, 1 for even and odd columns. dout [T, H], last stride 1; out
[T, H] contiguous; probs and dprobs [T] of any float dtype; row_mask [T] integer. All arithmetic is float32, rounded
once. A masked row is not read, so what stands there (NaN, say) goes nowhere; its output and gradients are zeros. No
atomics: a row's dprobs is summed by one program, in a fixed order. NaN propagates.
"""

import triton
import triton.language as tl

from turbo_core.triton.gates import activate

__all__ = ["glu_backward_kernel", "glu_forward_kernel"]


@triton.jit
def _load(pointer, offsets, mask, MASKED: tl.constexpr):
    """A float32 tile; zeros outside the mask."""
    if MASKED:
        return tl.load(pointer + offsets, mask=mask, other=0.0).to(tl.float32)
    return tl.load(pointer + offsets).to(tl.float32)


@triton.jit
def _store(pointer, offsets, value, mask, MASKED: tl.constexpr):
    value = value.to(pointer.dtype.element_ty)
    if MASKED:
        tl.store(pointer + offsets, value, mask=mask)
    else:
        tl.store(pointer + offsets, value)


@triton.jit
def _load_row_facts(probs_ptr, mask_ptr, rows, valid, BLOCK_R: tl.constexpr):
    """Of each row: whether it takes part, and its factor."""
    active = valid
    if mask_ptr is not None:
        active = valid & (tl.load(mask_ptr + rows, mask=valid, other=0) != 0)
    factor = tl.full([BLOCK_R], 1.0, tl.float32)
    if probs_ptr is not None:
        factor = tl.load(probs_ptr + rows, mask=active, other=0.0).to(tl.float32)
    return active, factor


@triton.jit
def glu_forward_kernel(
    gate_ptr, up_ptr, probs_ptr, mask_ptr, out_ptr,
    n_rows, H, shares, gate_stride, up_stride, col_stride, up_offset, limit, alpha,
    ACTIVATION: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_H: tl.constexpr,
    MASK_R: tl.constexpr, MASK_H: tl.constexpr,
):  # fmt: skip
    """BLOCK_R rows; ``shares`` programs, neighbours in the grid as in memory, divide their blocks of columns."""
    up_at = up_ptr
    if up_offset is not None:
        up_at = gate_ptr + up_offset
    STORE_MASKED: tl.constexpr = MASK_R or MASK_H
    LOAD_MASKED: tl.constexpr = STORE_MASKED or (mask_ptr is not None)
    rows = (tl.program_id(0) // shares).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    valid = rows < n_rows
    active, factor = _load_row_facts(probs_ptr, mask_ptr, rows, valid, BLOCK_R)
    for start in range(tl.program_id(0) % shares * BLOCK_H, H, shares * BLOCK_H):
        cols = start + tl.arange(0, BLOCK_H)
        inside = (cols < H)[None, :]
        read = active[:, None] & inside
        col_at = (cols * col_stride)[None, :]
        gate = _load(gate_ptr, (rows * gate_stride)[:, None] + col_at, read, LOAD_MASKED)
        up = _load(up_at, (rows * up_stride)[:, None] + col_at, read, LOAD_MASKED)
        act, _, factor_up, _ = activate(gate, up, limit, alpha, ACTIVATION)
        out = act * factor_up
        if probs_ptr is not None:
            out *= factor[:, None]
        if mask_ptr is not None:
            out = tl.where(active[:, None], out, 0.0)
        _store(out_ptr, (rows * H)[:, None] + cols[None, :], out, valid[:, None] & inside, STORE_MASKED)


@triton.jit
def glu_backward_kernel(
    dout_ptr, gate_ptr, up_ptr, probs_ptr, mask_ptr, dgate_ptr, dup_ptr, dprobs_ptr,
    n_rows, H, shares, dout_stride, gate_stride, up_stride, dx_stride, col_stride, up_offset, limit, alpha,
    ACTIVATION: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_H: tl.constexpr,
    MASK_R: tl.constexpr, MASK_H: tl.constexpr,
):  # fmt: skip
    """As the forward; a null pointer is a gradient that nobody wants. With dprobs, shares is 1."""
    up_at = up_ptr
    if up_offset is not None:
        up_at = gate_ptr + up_offset
    dup_at = dup_ptr
    if up_offset is not None and dgate_ptr is not None:
        dup_at = dgate_ptr + up_offset
    STORE_MASKED: tl.constexpr = MASK_R or MASK_H
    LOAD_MASKED: tl.constexpr = STORE_MASKED or (mask_ptr is not None)
    rows = (tl.program_id(0) // shares).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    valid = rows < n_rows
    active, factor = _load_row_facts(probs_ptr, mask_ptr, rows, valid, BLOCK_R)
    dprobs = tl.zeros([BLOCK_R, BLOCK_H], tl.float32)
    for start in range(tl.program_id(0) % shares * BLOCK_H, H, shares * BLOCK_H):
        cols = start + tl.arange(0, BLOCK_H)
        inside = (cols < H)[None, :]
        read = active[:, None] & inside
        write = valid[:, None] & inside
        col_at = (cols * col_stride)[None, :]
        gate = _load(gate_ptr, (rows * gate_stride)[:, None] + col_at, read, LOAD_MASKED)
        up = _load(up_at, (rows * up_stride)[:, None] + col_at, read, LOAD_MASKED)
        dout = _load(dout_ptr, (rows * dout_stride)[:, None] + cols[None, :], read, LOAD_MASKED)
        act, slope, factor_up, up_slope = activate(gate, up, limit, alpha, ACTIVATION)
        if dprobs_ptr is not None:
            dprobs += dout * act * factor_up
        if probs_ptr is not None:
            dout *= factor[:, None]
        if dgate_ptr is not None:
            dgate = dout * slope * factor_up
            if mask_ptr is not None:
                dgate = tl.where(active[:, None], dgate, 0.0)
            _store(dgate_ptr, (rows * dx_stride)[:, None] + col_at, dgate, write, STORE_MASKED)
        if dup_at is not None:
            dup = dout * act * up_slope
            if mask_ptr is not None:
                dup = tl.where(active[:, None], dup, 0.0)
            _store(dup_at, (rows * dx_stride)[:, None] + col_at, dup, write, STORE_MASKED)
    if dprobs_ptr is not None:
        total = tl.sum(dprobs, 1)
        if mask_ptr is not None:
            total = tl.where(active, total, 0.0)
        tl.store(dprobs_ptr + rows, total.to(dprobs_ptr.dtype.element_ty), mask=valid)
