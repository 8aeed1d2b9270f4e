# SPDX-License-Identifier: MIT
"""GlobalBackendManager: setters, their priority over the environment, and taking them back."""

import pytest

from turbo_core import BackendChoice, BackendType, GlobalBackendManager, PrecisionType, UnsupportedError, logger
from turbo_core.tune_cache import TuneEntry, cache_for

FP8, OTHER = PrecisionType.FP8, PrecisionType.BF16_FP16_FP32
FAMILIES = ["gemm", "grouped_gemm", "attn", "sparse_attn", "moe_dispatch_combine"]
EVERY_FAMILY = [*FAMILIES, "norm_act", "quant"]  # the last two are governed by no variable


def setter(family):
    return getattr(GlobalBackendManager, f"set_{family}_backend")


def getter(family):
    return getattr(GlobalBackendManager, f"get_{family}_backend")


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_setter_without_precision_sets_all(family):
    setter(family)(BackendType.TRITON)
    assert all(getter(family)(p) == BackendChoice(BackendType.TRITON) for p in PrecisionType)
    assert all(getter(other)(OTHER) is None for other in EVERY_FAMILY if other != family)
    setter(family)(None)
    assert getter(family)(OTHER) is None


@pytest.mark.parametrize("family", FAMILIES)
def test_setter_for_one_precision_leaves_the_variable_in_force_for_others(monkeypatch, family):
    monkeypatch.setenv(f"PRIMUS_TURBO_{family.upper()}_BACKEND", "ck")
    setter(family)("triton", FP8)
    assert getter(family)(FP8).backend is BackendType.TRITON
    assert getter(family)(OTHER).backend is BackendType.CK


@pytest.mark.parametrize("family", FAMILIES)
def test_none_takes_a_setter_back(monkeypatch, family):
    monkeypatch.setenv(f"PRIMUS_TURBO_{family.upper()}_BACKEND", "ck")
    setter(family)(BackendType.TRITON)
    setter(family)(None, FP8)
    assert getter(family)(FP8).backend is BackendType.CK
    assert getter(family)(OTHER).backend is BackendType.TRITON
    setter(family)(None)
    assert getter(family)(OTHER).backend is BackendType.CK


def test_auto_tune_through_a_setter():
    GlobalBackendManager.set_attn_backend(auto_tune=True)
    assert GlobalBackendManager.get_attn_backend(OTHER) == BackendChoice(auto_tune=True)


def test_backend_and_auto_tune_together_are_an_error():
    with pytest.raises(UnsupportedError, match="not both"):
        GlobalBackendManager.set_gemm_backend(BackendType.TRITON, auto_tune=True)


def test_moe_exchange_cannot_be_tuned():
    with pytest.raises(UnsupportedError, match="cannot be auto-tuned"):
        GlobalBackendManager.set_moe_dispatch_combine_backend(auto_tune=True)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("cutlass",), "'cutlass' is not a backend; accepted are CK"),
        ((BackendType.TRITON, "fp8"), "precision='fp8' must be a PrecisionType"),
    ],
)
def test_bad_arguments_are_named_and_change_nothing(arguments, complaint):
    GlobalBackendManager.set_gemm_backend("ck")
    with pytest.raises(UnsupportedError, match=complaint):
        GlobalBackendManager.set_gemm_backend(*arguments)
    assert GlobalBackendManager.get_gemm_backend(FP8).backend is BackendType.CK


def test_a_choice_equals_the_backend_that_it_names():
    GlobalBackendManager.set_gemm_backend("AITER", PrecisionType.FP4)
    choice = GlobalBackendManager.get_gemm_backend(PrecisionType.FP4)
    aiter, triton = BackendType.AITER, BackendType.TRITON
    assert choice == aiter and aiter == choice and choice in {aiter: 1}
    assert choice != triton and triton != choice
    assert choice == BackendChoice(BackendType.AITER) != BackendChoice(BackendType.TRITON)
    assert BackendType.AITER in {choice} and BackendChoice(BackendType.AITER) in {choice}


def test_a_choice_to_tune_equals_no_backend():
    GlobalBackendManager.set_gemm_backend(auto_tune=True)
    choice = GlobalBackendManager.get_gemm_backend(FP8)
    assert choice == BackendChoice(auto_tune=True) and choice != BackendChoice()
    assert all(choice != backend and BackendChoice() != backend for backend in BackendType)
    assert choice != "TRITON" and choice is not None
    assert len({choice, BackendChoice(), BackendChoice(auto_tune=True), *BackendType}) == 2 + len(BackendType)


def test_set_auto_tune_holds_over_the_variable(monkeypatch):
    monkeypatch.setenv("PRIMUS_TURBO_AUTO_TUNE", "1")
    GlobalBackendManager.set_auto_tune(False)
    assert not GlobalBackendManager.auto_tune_enabled()
    GlobalBackendManager.set_auto_tune(None)
    assert GlobalBackendManager.auto_tune_enabled()
    with pytest.raises(UnsupportedError, match="enabled=1"):
        GlobalBackendManager.set_auto_tune(1)


def test_reset_restores_the_state_after_import(monkeypatch):
    GlobalBackendManager.set_gemm_backend("ck")
    GlobalBackendManager.set_auto_tune(True)
    cache_for("some_op").put(("key",), TuneEntry(BackendType.CK, 1.0))
    GlobalBackendManager.reset()
    assert GlobalBackendManager.get_gemm_backend(FP8) is None
    assert not GlobalBackendManager.auto_tune_enabled()
    assert len(cache_for("some_op")) == 0


def test_reset_lets_messages_of_once_be_printed_again(capfd):
    logger.set_level("WARNING")
    for _ in range(2):
        logger.warning("said once", once=True)
        logger.warning("said once", once=True)
        GlobalBackendManager.reset()
    assert capfd.readouterr().err.count("said once") == 2


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_known_whether_code_or_the_environment_chose(monkeypatch, family):
    monkeypatch.setenv(f"PRIMUS_TURBO_{family.upper()}_BACKEND", "ck")
    assert not GlobalBackendManager.is_set_in_code(family, FP8)
    setter(family)("triton", FP8)
    assert GlobalBackendManager.is_set_in_code(family, FP8)
    assert not GlobalBackendManager.is_set_in_code(family, OTHER)
    other = next(name for name in FAMILIES if name != family)
    assert not GlobalBackendManager.is_set_in_code(other, FP8)


def test_backend_values_are_those_that_users_of_the_field_know():
    known = {"CK": 1, "HIPBLASLT": 2, "AITER": 3, "TRITON": 4, "DEEP_EP": 5, "TURBO": 6}
    assert {name: BackendType[name].value for name in known} == known
