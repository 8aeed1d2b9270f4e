# SPDX-License-Identifier: MIT
"""The AITER adapter, without a GPU: its call is bound to the signature in the amd-aiter wheel's source.

--aiter-wheel names the wheel (nox -s tests fetches it).
"""

import ast
import inspect
import sys
import types
import zipfile
from pathlib import Path

import pytest
import torch

import turbo_gemm
from turbo_core.low_precision import Float4QuantConfig
from turbo_gemm.pytorch.kernels import aiter_gemm, gemm_fp8_reference
from turbo_gemm.pytorch.kernels.aiter_gemm import AITER_ARGUMENTS, aiter_arguments
from turbo_gemm.pytorch.ops.gemm_fp4 import GEMM_FP4
from turbo_testing.support_table import PLACES, standing_on


def signature(source: str, name: str) -> inspect.Signature:
    """The signature of a top-level function, read without executing anything; defaults become None."""
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == name]
    assert len(functions) == 1, f"{name}: {len(functions)} definitions"
    arguments = functions[0].args
    first_default = len(arguments.args) - len(arguments.defaults)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature(
        [
            inspect.Parameter(argument.arg, kind, default=None if i >= first_default else inspect.Parameter.empty)
            for i, argument in enumerate(arguments.args)
        ]
    )


@pytest.fixture
def aiter_wheel(pytestconfig):
    given = pytestconfig.getoption("--aiter-wheel", default=None)
    if given is None:
        pytest.skip("no amd-aiter wheel (--aiter-wheel; nox -s tests fetches it)")
    return Path(given)


def test_our_keywords_bind_to_the_wheels_signature(aiter_wheel):
    version = aiter_wheel.name.split("-")[1]
    names = aiter_arguments(version)
    assert names is not None, f"amd-aiter {version} is not in the table"
    with zipfile.ZipFile(aiter_wheel) as wheel:
        source = wheel.read("aiter/ops/gemm_op_a4w4.py").decode()
        exported = wheel.read("aiter/__init__.py").decode()
    bound = signature(source, "gemm_a4w4").bind(**dict.fromkeys(names, 0))
    assert set(bound.arguments) == set(names)
    assert "gemm_op_a4w4" in exported, "aiter.gemm_a4w4 is where the adapter looks"


def test_binding_would_notice_a_change():
    old = signature(
        "def gemm_a4w4(A, B, A_scale, B_scale, out, bias=None, alpha=1.0, bpreshuffle=True): pass", "gemm_a4w4"
    )
    new = signature("def gemm_a4w4(A, B, A_scale, B_scale, bias=None, dtype=0, bpreshuffle=True): pass", "gemm_a4w4")
    (_, _, with_out), (_, _, without) = AITER_ARGUMENTS
    old.bind(**dict.fromkeys(with_out, 0))
    new.bind(**dict.fromkeys(without, 0))
    for known, wrong in ((old, without), (new, with_out)):
        with pytest.raises(TypeError):
            known.bind(**dict.fromkeys(wrong, 0))


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("0.1.4", False),
        ("0.1.7.post2.dev18", True),
        ("0.1.8", False),
        ("0.1.9", True),
        ("0.1.14.post1", True),
        ("0.2.0", False),
    ],
)
def test_versions(version, known):
    assert (aiter_arguments(version) is not None) is known
    if known:
        assert ("out" in aiter_arguments(version)) is (version < "0.1.8" and not version.startswith("0.1.14"))


# --- what it refuses ------------------------------------------------------------------------------------------------


def answer(monkeypatch, place="gfx950", version="0.1.14", preshuffle=True, change=None, m=64, **options):
    monkeypatch.setattr(aiter_gemm, "_installed", lambda: version)
    with standing_on(PLACES[place]) as where:
        a = torch.empty(m, 256, dtype=torch.bfloat16, device=where)
        b = torch.empty(96, 256, dtype=torch.bfloat16, device=where)
        config = Float4QuantConfig(use_preshuffle=preshuffle)
        call = GEMM_FP4.calls(a, b, trans_b=True, config=config, **options)["forward"]
        return aiter_gemm.why_not(call if change is None else change(call))


def test_refusals(monkeypatch):
    assert answer(monkeypatch) is None
    assert answer(monkeypatch, preshuffle=False) is None
    assert "not installed: pip install amd-aiter" in answer(monkeypatch, version=None)
    assert "0.1.8; this turbo-gemm knows how to call" in answer(monkeypatch, version="0.1.8")
    assert aiter_gemm.known_releases() == ">= 0.1.5, < 0.1.8 and >= 0.1.9, < 0.2"
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    assert f"amd-aiter {aiter_gemm.known_releases()}" in " ".join(readme.split())
    assert "a is on cpu" in answer(monkeypatch, place="CPU")
    assert "this is gfx942" in answer(monkeypatch, place="gfx942")
    assert "M=60 and N=96" in answer(monkeypatch, preshuffle=False, m=60)
    assert "gives torch.bfloat16" in answer(monkeypatch, out_dtype=torch.float32)
    assert "aiter" not in sys.modules, "why_not does not import it"


# --- what it passes on ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.1.7.post2.dev18", "0.1.14"])
@pytest.mark.parametrize("preshuffle", [True, False])
def test_what_it_passes_is_what_a_kernel_of_that_layout_reads(monkeypatch, version, preshuffle):
    """A stand-in for aiter that undoes the documented layout and multiplies."""
    calls = []

    def gemm_a4w4(**values):
        calls.append(values)
        forward = call._replace(
            a=call.a._replace(data=values["A"], scale_inv=values["A_scale"]),
            b=call.b._replace(data=values["B"], scale_inv=values["B_scale"]),
            bias=None,
            preshuffled=True,
        )
        result = multiply(forward)
        if "out" not in values:
            return result
        values["out"][: result.shape[0]] = result
        return values["out"]

    monkeypatch.setattr(aiter_gemm, "_installed", lambda: version)
    monkeypatch.setitem(sys.modules, "aiter", types.SimpleNamespace(gemm_a4w4=gemm_a4w4))
    config = Float4QuantConfig(use_preshuffle=preshuffle)
    a, b = torch.randn(48, 256).bfloat16(), torch.randn(96, 256).bfloat16()
    bias = torch.randn(96).bfloat16()
    seen = []
    multiply = gemm_fp8_reference.run
    monkeypatch.setattr(gemm_fp8_reference, "run", lambda call: seen.append(call) or multiply(call))
    expected = turbo_gemm.gemm_fp4(a, b, trans_b=True, config=config, bias=bias)
    (call,) = seen
    out = aiter_gemm.run(call)
    assert out.shape == (48, 96)
    assert tuple(calls[0]) == aiter_arguments(version)
    assert (out.double() - expected.double()).abs().max() <= 0.01 * expected.abs().max()
    main_grad = torch.ones(48, 96)
    plain = aiter_gemm.run(call._replace(bias=None))
    assert aiter_gemm.run(call._replace(bias=None, out=main_grad, out_dtype=torch.float32)) is main_grad
    assert torch.equal(main_grad, 1 + plain.float())
