# SPDX-License-Identifier: MIT
"""The grammar of the backend variables: what each value means, and that a bad one is quoted at first use."""

import pytest

from turbo_core import (
    BackendChoice,
    BackendType,
    GlobalBackendManager,
    PrecisionType,
    UnsupportedError,
    environment,
    logger,
)

GEMM = "PRIMUS_TURBO_GEMM_BACKEND"
FP4, FP8, OTHER = PrecisionType.FP4, PrecisionType.FP8, PrecisionType.BF16_FP16_FP32
TRITON, CK, HIPBLASLT = (BackendChoice(b) for b in (BackendType.TRITON, BackendType.CK, BackendType.HIPBLASLT))
TUNE = BackendChoice(auto_tune=True)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("triton", {FP4: TRITON, FP8: TRITON, OTHER: TRITON}),
        ("  Triton ", {FP4: TRITON, FP8: TRITON, OTHER: TRITON}),
        ("autotune", {FP4: TUNE, FP8: TUNE, OTHER: TUNE}),
        ("AutoTune", {FP4: TUNE, FP8: TUNE, OTHER: TUNE}),
        ("fp8:CK,other:TRITON", {FP4: TRITON, FP8: CK, OTHER: TRITON}),
        ("other:TRITON , fp8 : ck", {FP4: TRITON, FP8: CK, OTHER: TRITON}),
        ("FP8:autotune,bf16:HIPBLASLT", {FP4: None, FP8: TUNE, OTHER: HIPBLASLT}),
        ("fp16:CK,,", {FP4: None, FP8: None, OTHER: CK}),
        ("other:CK,OTHER:ck", {FP4: CK, FP8: CK, OTHER: CK}),
        ("bf16:CK,fp32:ck", {FP4: None, FP8: None, OTHER: CK}),
        ("", {FP4: None, FP8: None, OTHER: None}),
        ("   ", {FP4: None, FP8: None, OTHER: None}),
    ],
)
def test_value(monkeypatch, value, expected):
    monkeypatch.setenv(GEMM, value)
    assert {p: GlobalBackendManager.get_gemm_backend(p) for p in PrecisionType} == expected


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("cutlass", "'cutlass' is not a backend"),
        ("fp8", "'fp8' is not a backend"),
        ("fp9:CK", "'fp9' is not a precision"),
        ("fp8:CK,TRITON", "'TRITON' must be precision:backend"),
        ("fp8:", "must be precision:backend"),
        ("fp8:CK:TRITON", "must be precision:backend"),
        ("bf16:CK,fp16:TRITON", "two different backends for BF16_FP16_FP32"),
        ("other:CK,other:TRITON", "'other' is given twice"),
    ],
)
def test_bad_value_is_quoted_with_its_variable(monkeypatch, value, complaint):
    monkeypatch.setenv(GEMM, value)
    with pytest.raises(UnsupportedError) as error:
        GlobalBackendManager.get_gemm_backend(FP8)
    assert complaint in str(error.value)
    assert f"{GEMM}={value!r}" in str(error.value)


def test_a_change_takes_effect_at_once(monkeypatch):
    monkeypatch.setenv(GEMM, "triton")
    assert GlobalBackendManager.get_gemm_backend(FP8) == TRITON
    monkeypatch.setenv(GEMM, "ck")
    assert GlobalBackendManager.get_gemm_backend(FP8) == CK


@pytest.mark.parametrize(
    ("getter", "variable"),
    [
        ("get_gemm_backend", GEMM),
        ("get_grouped_gemm_backend", "PRIMUS_TURBO_GROUPED_GEMM_BACKEND"),
        ("get_attn_backend", "PRIMUS_TURBO_ATTENTION_BACKEND"),
        ("get_attn_backend", "PRIMUS_TURBO_ATTN_BACKEND"),
        ("get_sparse_attn_backend", "PRIMUS_TURBO_SPARSE_ATTN_BACKEND"),
        ("get_moe_dispatch_combine_backend", "PRIMUS_TURBO_MOE_DISPATCH_COMBINE_BACKEND"),
    ],
)
def test_each_family_reads_its_variable(monkeypatch, getter, variable):
    monkeypatch.setenv(variable, "triton")
    assert getattr(GlobalBackendManager, getter)(OTHER) == TRITON


def test_attention_accepts_autotune_through_either_name(monkeypatch):
    monkeypatch.setenv("PRIMUS_TURBO_ATTN_BACKEND", "autotune")
    assert GlobalBackendManager.get_attn_backend(OTHER) == TUNE


def test_alias_that_disagrees_is_an_error(monkeypatch):
    monkeypatch.setenv("PRIMUS_TURBO_ATTENTION_BACKEND", "triton")
    monkeypatch.setenv("PRIMUS_TURBO_ATTN_BACKEND", "triton")
    assert GlobalBackendManager.get_attn_backend(OTHER) == TRITON
    monkeypatch.setenv("PRIMUS_TURBO_ATTN_BACKEND", "aiter")
    with pytest.raises(UnsupportedError, match="_ATTENTION_BACKEND and its alias PRIMUS_TURBO_ATTN_BACKEND"):
        GlobalBackendManager.get_attn_backend(OTHER)


@pytest.mark.parametrize("empty", ["", "   "])
def test_an_empty_variable_beside_its_alias_is_as_good_as_none(monkeypatch, empty):
    for given, other in (("ATTENTION", "ATTN"), ("ATTN", "ATTENTION")):
        monkeypatch.setenv(f"PRIMUS_TURBO_{given}_BACKEND", "triton")
        monkeypatch.setenv(f"PRIMUS_TURBO_{other}_BACKEND", empty)
        assert GlobalBackendManager.get_attn_backend(OTHER) == TRITON
        assert environment.variable_in_force("attn") == f"PRIMUS_TURBO_{given}_BACKEND"


def test_the_environment_is_read_where_its_inside_is_another(monkeypatch):
    """Not CPython on POSIX: through os.environ itself."""
    monkeypatch.setattr(environment, "_raw_environment", None)
    monkeypatch.setenv(GEMM, "triton")
    assert GlobalBackendManager.get_gemm_backend(FP8) == TRITON
    monkeypatch.delenv(GEMM)
    assert GlobalBackendManager.get_gemm_backend(FP8) is None


def test_moe_exchange_cannot_be_tuned(monkeypatch):
    monkeypatch.setenv("PRIMUS_TURBO_MOE_DISPATCH_COMBINE_BACKEND", "autotune")
    with pytest.raises(UnsupportedError, match="cannot be auto-tuned"):
        GlobalBackendManager.get_moe_dispatch_combine_backend(OTHER)


def test_precisions_left_out_are_told_once(monkeypatch, capfd):
    logger.set_level("WARNING")
    monkeypatch.setenv(GEMM, "fp4:TURBO")  # a value of its own: each is parsed once in a process
    for _ in range(2):
        assert GlobalBackendManager.get_gemm_backend(FP8) is None
    assert capfd.readouterr().err.count("names no backend for FP8, BF16_FP16_FP32") == 1


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False), ("", False)])
def test_auto_tune_variable(monkeypatch, value, expected):
    monkeypatch.setenv("PRIMUS_TURBO_AUTO_TUNE", value)
    assert GlobalBackendManager.auto_tune_enabled() is expected


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False), ("", False), (None, False)])
def test_check_indices_variable(monkeypatch, value, expected):
    monkeypatch.delenv("PRIMUS_TURBO_CHECK_INDICES", raising=False)
    if value is not None:
        monkeypatch.setenv("PRIMUS_TURBO_CHECK_INDICES", value)
    assert environment.check_indices_from_environment() is expected


def test_bad_auto_tune_variable_is_quoted(monkeypatch):
    monkeypatch.setenv("PRIMUS_TURBO_AUTO_TUNE", "yes")
    with pytest.raises(UnsupportedError, match="PRIMUS_TURBO_AUTO_TUNE='yes'"):
        GlobalBackendManager.auto_tune_enabled()
