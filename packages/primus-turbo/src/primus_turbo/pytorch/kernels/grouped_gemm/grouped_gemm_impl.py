# SPDX-License-Identifier: MIT
"""`turbo_grouped_gemm`'s products in the call form of kernels; constants to autograd, which autocast leaves alone."""

from __future__ import annotations

import torch

from primus_turbo.pytorch.kernels.arguments import check_backend
from turbo_core import BackendType, UnsupportedError
from turbo_core.autocast import without_autocast
from turbo_grouped_gemm import grouped_gemm
from turbo_grouped_gemm.developer import grouped_wgrad

__all__ = ["grouped_gemm_impl", "grouped_gemm_variable_k_impl"]


def grouped_gemm_impl(
    a: torch.Tensor,
    b: torch.Tensor,
    group_lens: torch.Tensor,
    group_offs: torch.Tensor | None,
    trans_a: bool,
    trans_b: bool,
    num_cu: int | None = None,
    default_backend: BackendType | int | None = None,
    maybe_pre_sync: bool = False,
    *,
    schedule: str = "static",
) -> torch.Tensor:
    """C[r] = a[r] op(b[g]) for each row r of group g.

    Args:
        a, b, group_lens, group_offs, trans_b, num_cu, schedule: as for `turbo_grouped_gemm.grouped_gemm`.
        trans_a: False; rows of groups are rows of a.
        default_backend: a backend or its number, checked and not heeded: the user's settings and the measured default
            of each device decide.
        maybe_pre_sync: not heeded: nothing here waits for the device.

    Raises:
        as `turbo_grouped_gemm.grouped_gemm`.
    """
    check_backend("grouped_gemm_impl", default_backend)
    if trans_a:
        raise UnsupportedError(f"grouped_gemm_impl: trans_a={trans_a}; False is accepted")
    with torch.no_grad(), without_autocast(a.device):
        c: torch.Tensor = grouped_gemm(a, b, group_lens, group_offs, trans_b, num_cu, schedule)
    return c


def grouped_gemm_variable_k_impl(
    a: torch.Tensor,
    b: torch.Tensor,
    group_lens: torch.Tensor,
    group_offs: torch.Tensor | None,
    trans_a: bool = True,
    trans_b: bool = False,
    trans_c: bool = False,
    num_cu: int | None = None,
    default_backend: BackendType | int | None = None,
    maybe_pre_sync: bool = False,
    *,
    schedule: str = "static",
) -> torch.Tensor:
    """C[g] = A_g^T B_g over the rows of each group, [G,K,N] of a [R,K] and b [R,N].

    Args:
        a, b, group_lens, group_offs, num_cu, schedule: as for `turbo_grouped_gemm.developer.grouped_wgrad`.
        trans_a, trans_b: True and False; the contraction is over rows.
        trans_c: C[g]^T, [G,N,K], contiguous.
        default_backend, maybe_pre_sync: see `grouped_gemm_impl`.

    Raises:
        as `turbo_grouped_gemm.developer.grouped_wgrad`.
    """
    check_backend("grouped_gemm_variable_k_impl", default_backend)
    if not trans_a or trans_b:
        raise UnsupportedError(
            f"grouped_gemm_variable_k_impl: trans_a={trans_a}, trans_b={trans_b}; True and False are accepted"
        )
    x, y = (b, a) if trans_c else (a, b)
    with torch.no_grad(), without_autocast(a.device):
        c: torch.Tensor = grouped_wgrad(x, y, group_lens, group_offs, num_cu=num_cu, schedule=schedule)
    return c
