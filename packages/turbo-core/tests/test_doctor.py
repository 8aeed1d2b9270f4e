# SPDX-License-Identifier: MIT
"""explain, the doctor, lazy names and the version checks of torch and triton."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch

from turbo_core import (
    BackendType,
    GlobalBackendManager,
    OpInfo,
    PrecisionType,
    UnsupportedError,
    explain,
    requirements,
    why_no_triton,
)
from turbo_core.__main__ import main
from turbo_core.explain import explain_calls
from turbo_core.lazy import attach
from turbo_core.tune_cache import TuneEntry
from turbo_testing.fake_op import FakeCall, make_backend, make_dispatcher


@pytest.fixture
def fake_wheel(monkeypatch):
    """One installed wheel with the op ``fake``, whose default backend refuses, and a wheel that fails to import."""
    backends = {
        BackendType.HIPBLASLT: make_backend("HIPBLASLT", refuses="no GPU here"),
        BackendType.TORCH: make_backend("TORCH"),
    }
    info = OpInfo(
        "fake",
        make_dispatcher(backends),
        calls=lambda x: {"forward": FakeCall(x), "dgrad": FakeCall(x.t())},
        example=lambda device: {"forward": FakeCall(torch.empty(1, 1, device=device))},
    )

    def broken():
        raise ImportError("libmissing.so not found")

    points = [
        SimpleNamespace(name="fake", module="fake_wheel.ops", dist=None, load=lambda: info),
        SimpleNamespace(name="broken", module="broken_wheel", dist=None, load=broken),
    ]
    monkeypatch.setitem(sys.modules, "fake_wheel", SimpleNamespace())
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points if group == "turbo_core.ops" else [])
    return info


def test_explain_prints_each_answer_and_the_choice(fake_wheel, capsys):
    explanation = explain("fake", torch.ones(2, 3))
    assert capsys.readouterr().out == str(explanation) + "\n"
    assert [(e.role, e.backend) for e in explanation.entries] == [
        ("forward", BackendType.TORCH),
        ("dgrad", BackendType.TORCH),
    ]
    assert explanation.entries[0].answers == {BackendType.HIPBLASLT: "no GPU here", BackendType.TORCH: None}
    assert "-> TORCH      can take it" in str(explanation)
    assert "   HIPBLASLT  no GPU here" in str(explanation)
    assert all(not impl.calls for impl in fake_wheel.dispatcher.backends.values()), "explain computes nothing"


@pytest.mark.parametrize("chosen", ["HIPBLASLT", "TRITON", "TORCH"])
@pytest.mark.parametrize("how", ["default", "set in code", "tuned"])
def test_explain_marks_the_backend_that_would_run_and_no_other(monkeypatch, chosen, how):
    """All three can take the call."""
    backends = {BackendType[name]: make_backend(name) for name in ("HIPBLASLT", "TRITON", "TORCH")}
    default = BackendType[chosen] if how == "default" else BackendType.HIPBLASLT
    op = make_dispatcher(backends, name=f"marked_{chosen}_{how}", default=default)
    call = FakeCall(torch.ones(2, 3))
    if how == "set in code":
        GlobalBackendManager.set_gemm_backend(chosen)
    elif how == "tuned":
        GlobalBackendManager.set_auto_tune(True)
        op.cache.put(op.make_key(call), TuneEntry(BackendType[chosen], 0.5))
    info = OpInfo("marked", op, calls=lambda: {"forward": call}, example=lambda device: {})
    reason = {"tuned": "auto-tuned winner (0.500 ms)"}.get(how, how)
    lines = [
        f"  {'  ' if name != chosen else '->'} {name:<10} can take it" for name in ("HIPBLASLT", "TRITON", "TORCH")
    ]
    assert str(explain_calls(info, {"forward": call})).splitlines() == [
        "marked:",
        f"  forward: {chosen} ({reason})",
        "    call: x [2, 3]",
        *(f"  {line}" for line in lines),
    ]


def test_a_call_without_tensors_is_explained():
    class Numbers(make_dispatcher({BackendType.TORCH: make_backend("TORCH")}, default=BackendType.TORCH)):
        precision = classmethod(lambda cls, call: PrecisionType.FP8)
        describe = classmethod(lambda cls, call: f"numbers {call}")

    info = OpInfo("numbers", Numbers, calls=dict, example=lambda device: {})
    entry = explain_calls(info, {"forward": (1, 2)}).entries[0]
    assert (entry.backend, entry.call) == (BackendType.TORCH, "numbers (1, 2)")


def test_explain_tunes_without_autocast():
    """As the call itself would: its dtypes are decided when it is timed."""
    seen = []

    class Product(make_backend("TORCH")):
        @classmethod
        def execute(cls, call):
            seen.append((call.x @ call.x).dtype)

    op = make_dispatcher({BackendType.TORCH: Product}, name="explained_autocast", default=BackendType.TORCH)
    GlobalBackendManager.set_auto_tune(True)
    info = OpInfo("product", op, calls=dict, example=lambda device: {})
    with torch.autocast("cpu", torch.bfloat16):
        explain_calls(info, {"forward": FakeCall(torch.ones(2, 2))})
    assert set(seen) == {torch.float32}


def test_explain_when_no_backend_would_run(fake_wheel, monkeypatch, capsys):
    monkeypatch.setenv("PRIMUS_TURBO_GEMM_BACKEND", "hipblaslt")
    entry = explain("fake", torch.ones(2, 3)).entries[0]
    assert entry.backend is None
    assert "named by PRIMUS_TURBO_GEMM_BACKEND" in entry.reason


def test_explain_of_an_unknown_op_lists_the_known(fake_wheel):
    with pytest.raises(UnsupportedError, match="op='gemn' is not an op of an installed wheel; there are: fake, broken"):
        explain("gemn")


def test_doctor_reports_and_survives_a_broken_wheel(fake_wheel, capsys, monkeypatch):
    monkeypatch.setenv("PRIMUS_TURBO_AUTO_TUNE", "0")
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["ops"]["fake"]["forward"]["backend"] == "TORCH"
    assert facts["ops"]["fake"]["forward"]["answers"] == {"HIPBLASLT": "no GPU here", "TORCH": "available"}
    assert facts["ops"]["broken"] == {"problem": "ImportError: libmissing.so not found"}
    assert facts["environment"]["PRIMUS_TURBO_AUTO_TUNE"] == "0"
    assert facts["versions"]["torch"] == torch.__version__
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "fake forward: TORCH (default HIPBLASLT cannot take the call: no GPU here)" in text
    assert "FP8 encoding" in text


def test_doctor_without_torch(fake_wheel, capsys, monkeypatch):
    monkeypatch.setattr(requirements, "_why_no", lambda name: f"{name} is not installed: pip install it")
    requirements._require.cache_clear()
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "problem: torch is not installed: pip install it" in text
    assert "fake: torch is not installed" in text


def forget():
    for known in (requirements._why_no, requirements._require, requirements._why_not_interpreted):
        known.cache_clear()


def test_missing_and_old_modules_are_import_errors_with_the_line_to_type(monkeypatch):
    forget()
    try:
        with monkeypatch.context() as patch:
            patch.setattr("importlib.util.find_spec", lambda name: None)
            with pytest.raises(ImportError, match=r"triton is not installed: pip install 'turbo-core\[triton\]'"):
                requirements.require_triton()
        forget()
        with monkeypatch.context() as patch:
            patch.setattr(torch, "__version__", "2.5.1+rocm6.2")
            with pytest.raises(ImportError, match=r"torch 2.5.1\+rocm6.2 is too old: 2.6 or newer"):
                requirements.require_torch()
    finally:
        forget()
    assert requirements.require_torch() is torch


@pytest.mark.parametrize(
    ("name", "version", "old"),
    [
        ("torch", "2.6.0", False), ("torch", "2.10.1+rocm7", False), ("torch", "3.0", False), ("torch", "2.5.9", True),
        ("torch", "1.13", True), ("triton", "3.4.0", False), ("triton", "3.10", False), ("triton", "3.3.1", True),
        ("triton", None, True),
    ],
)  # fmt: skip
def test_versions_are_compared_by_their_numbers(monkeypatch, name, version, old):
    module = SimpleNamespace() if version is None else SimpleNamespace(__version__=version)
    forget()
    try:
        with monkeypatch.context() as patch:
            patch.setattr("importlib.import_module", lambda wanted: module)
            reason = requirements._why_no(name)
    finally:
        forget()
    assert (reason is not None) == old
    if old:
        assert f"{name} {version or '0.0'} is too old: {'2.6' if name == 'torch' else '3.4'} or newer" in reason


def test_a_broken_installation_is_told_with_its_error(monkeypatch):
    def broken(name):
        raise OSError("libcudart.so.12: cannot open shared object file")

    forget()
    try:
        with monkeypatch.context() as patch:
            patch.setattr("importlib.import_module", broken)
            with pytest.raises(ImportError, match="torch is installed but its import failed: OSError: libcudart"):
                requirements.require_torch()
            assert "triton is installed but its import failed" in why_no_triton(torch.device("cuda"))
    finally:
        forget()


def test_lazy_names(monkeypatch):
    package = SimpleNamespace(__name__="lazy_test_package")
    monkeypatch.setitem(sys.modules, "lazy_test_package", package)
    load, listing = attach("lazy_test_package", {"BackendType": "turbo_core.backend"})
    assert "BackendType" in listing()
    assert not hasattr(package, "BackendType")
    assert load("BackendType") is BackendType
    assert package.BackendType is BackendType, "the second use is a plain attribute"
    with pytest.raises(AttributeError, match="'lazy_test_package' has no attribute 'Missing'"):
        load("Missing")


def test_doctor_names_a_library_of_the_same_name(fake_wheel, capsys, monkeypatch):
    monkeypatch.setattr("turbo_core.doctor.foreign_namesake", lambda: "import primus_turbo: /there is another library")
    assert main(["doctor"]) == 0
    assert "problem: import primus_turbo: /there is another library" in capsys.readouterr().out


@pytest.mark.parametrize("missing", ["torch", "triton"])
def test_audit_without_torch_or_triton_says_what_to_type(monkeypatch, capsys, missing):
    def absent():
        raise ImportError(f"{missing} is not installed: pip install 'turbo-core[{missing}]'")

    monkeypatch.setattr("turbo_core.__main__.entry_points", lambda group: {"turbo-gemm": None})
    monkeypatch.setattr(f"turbo_core.__main__.require_{missing}", absent)
    assert main(["audit"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and f"audit: {missing} is not installed: pip install" in err and "Traceback" not in err


def test_audit_without_wheels_or_with_a_wrong_name_is_a_message(monkeypatch, capsys):
    monkeypatch.setattr("turbo_core.audit.find_kernels", dict)
    assert main(["audit"]) == 1
    assert "no wheel with kernels is installed: pip install turbo-gemm" in capsys.readouterr().err
    assert main(["audit", "--wheel", "turbo-x"]) == 2
    assert "audit: no kernels of turbo-x" in capsys.readouterr().err


@pytest.fixture
def three_wheels(monkeypatch, tmp_path):
    """Wheels with kernels: one for both architectures, one of GPU_ARCHS=none, one that was never built."""
    for name, objects in (
        ("turbo_full", ("a.gfx942.hsaco", "a.gfx950.hsaco")),
        ("turbo_none", ()),
        ("turbo_bare", None),
    ):
        (tmp_path / name / "lib").mkdir(parents=True)
        (tmp_path / name / "__init__.py").touch()
        for file in () if objects is None else ("resources.json", *objects):
            (tmp_path / name / "lib" / file).touch()
    monkeypatch.syspath_prepend(tmp_path)
    return {name: None for name in ("turbo-full", "turbo-none", "turbo-bare")}


NO_CODE = "turbo-none was built without device code (GPU_ARCHS=none); build it with GPU_ARCHS=gfx942 or gfx950"


def test_doctor_lists_what_the_kernels_were_compiled_for(fake_wheel, three_wheels, capsys, monkeypatch):
    monkeypatch.setattr("turbo_core.doctor.entry_points", lambda group: three_wheels)
    assert main(["doctor"]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    at = lines.index(["HIP", "kernels"])
    assert lines[at + 1 : at + 4] == [
        ["turbo-bare", "not built"],
        ["turbo-full", "gfx942, gfx950"],
        ["turbo-none", NO_CODE],
    ]


def test_audit_says_where_there_are_no_hip_kernels(three_wheels, capsys, monkeypatch):
    monkeypatch.setattr("turbo_core.__main__.entry_points", lambda group: three_wheels)
    monkeypatch.setattr("turbo_core.audit.find_kernels", dict)
    main(["audit"])
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if "device code" in line] == [f"no HIP kernels: {NO_CODE}"]
