# SPDX-License-Identifier: MIT
"""The patched interpreter equals torch: every code of every fp8 format, every rounding edge, bf16 arithmetic, dots.

The number formats themselves are tested on any machine; what runs kernels needs the interpreter.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from turbo_core import interpreter, requirements, why_no_triton
from turbo_testing import cases
from turbo_testing import interpreter as session
from turbo_testing.metrics import assert_close

np = pytest.importorskip("numpy", reason="numpy is not installed")
number_formats = pytest.importorskip("turbo_core.number_formats")

PROBE = Path(__file__).with_name("interpreter_probe.py")
FORMATS = {
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
    "fp8e4b8": torch.float8_e4m3fnuz,
    "fp8e5b16": torch.float8_e5m2fnuz,
}
each_format = pytest.mark.parametrize("name", FORMATS)


@pytest.fixture(scope="module")
def probe():
    if not session.install_if_requested():
        pytest.skip("Triton's interpreter is off (there is a GPU, or triton is not installed)")
    return cases.load_file(PROBE, "turbo_core_interpreter_probe")


@pytest.fixture
def needs(probe):
    """needs(name) skips the test where this triton's interpreter does not know the fp8 type (3.6 has no FNUZ types)."""

    def check(name):
        if name in FORMATS and name not in probe.supported():
            pytest.skip(f"the interpreter of triton {probe.triton.__version__} does not know {name}")

    return check


def codes(name):
    """All 256 values of a format, as torch has them."""
    return torch.arange(256, dtype=torch.uint8).view(FORMATS[name])


def edges(name):
    """float32 inputs at every rounding decision of a format, both signs.

    Each finite value, the midpoint to the next one, the float32 neighbours of both; subnormals and what is below half
    of the smallest; the largest, values past it, inf, NaN; random numbers of every magnitude.
    """
    finite = codes(name).float()
    finite = finite[finite.isfinite() & (finite >= 0)].sort().values.unique()
    past = finite[-1] + (finite[-1] - finite[-2])
    levels = torch.cat([finite, past[None]])
    middle = (levels[1:].double() + levels[:-1].double()).div(2).float()
    points = torch.cat([levels, middle])
    up, down = (torch.nextafter(points, torch.full_like(points, to)) for to in (float("inf"), 0.0))
    tiny = finite[1] * torch.tensor([0.25, 0.4999999, 0.5, 0.5000001, 0.75, 1.5]).float()
    special = torch.tensor([1e-45, 1e-40, 1e30, 3e38, float("inf"), float("nan")])
    mantissa, exponent = torch.rand(20000) + 1, torch.randint(-20, 18, (20000,))
    x = torch.cat([points, up, down, tiny, special, torch.ldexp(mantissa, exponent)])
    return torch.cat([x, -x])


def expected_cast(x, name):
    """torch's cast; e4m3fn past its range as in torch 2.13 and later (saturate), whatever torch is installed."""
    out = x.to(FORMATS[name])
    if name == "fp8e4nv":
        saturated = torch.where(x > 0, 448.0, -448.0).to(out.dtype)
        out = torch.where(x.abs() > 448, saturated.view(torch.uint8), out.view(torch.uint8)).view(out.dtype)
    return out


def assert_same_codes(actual, expected, x):
    """Bit for bit, except that NaN may be any NaN of the format."""
    a, e = actual.view(torch.uint8), expected.view(torch.uint8)
    bad = (a != e) & ~(actual.float().isnan() & expected.float().isnan())
    shown = [(x[i].item(), actual[i].item(), expected[i].item()) for i in bad.nonzero().flatten()[:5].tolist()]
    assert not bad.any(), f"{int(bad.sum())} of {len(x)} differ: (input, actual, expected) {shown}"


def as_torch(array, dtype):
    return torch.from_numpy(np.ascontiguousarray(array)).view(dtype)


@each_format
def test_decoding_equals_torch_for_every_code(name):
    values = number_formats.fp8_formats()[name].decode(np.arange(256, dtype=np.uint8))
    assert_close(torch.from_numpy(values), codes(name).float(), rtol=0, atol=0)
    number = ~codes(name).float().isnan()
    assert torch.equal(torch.from_numpy(values).signbit()[number], codes(name).float().signbit()[number])


@each_format
def test_encoding_equals_torch_at_every_edge(name):
    x = edges(name)
    actual = as_torch(number_formats.fp8_formats()[name].encode(x.numpy()), FORMATS[name])
    assert_same_codes(actual, expected_cast(x, name), x)


@each_format
def test_encoding_of_e4m3fn_and_the_others_past_the_range(name):
    """Spelled out, so that a torch that changes its mind is seen here and not in a kernel's test."""
    largest = {"fp8e4nv": 448.0, "fp8e5": 57344.0, "fp8e4b8": 240.0, "fp8e5b16": 57344.0}[name]
    past = {"fp8e4nv": 448.0, "fp8e5": float("inf"), "fp8e4b8": float("nan"), "fp8e5b16": float("nan")}[name]
    fmt = number_formats.fp8_formats()[name]
    x = np.array([largest, 1e9, np.inf, -1e9, -np.inf, np.nan], np.float32)
    expected = np.array([largest, past, past, -past, -past, np.nan], np.float32)
    np.testing.assert_array_equal(fmt.decode(fmt.encode(x)), expected)


def test_encoding_of_bf16_equals_torch_at_every_edge():
    patterns = torch.arange(65536, dtype=torch.int32) << 16
    x = torch.cat([patterns + low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).view(torch.float32)
    actual = as_torch(number_formats.encode_bf16(x.numpy()), torch.bfloat16)
    assert_close(actual, x.bfloat16(), rtol=0, atol=0)
    assert_close(
        torch.from_numpy(number_formats.decode_bf16(np.arange(65536, dtype=np.uint16))),
        torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16).float(),
        rtol=0,
        atol=0,
    )


@each_format
def test_kernel_casts_to_fp8(probe, needs, name):
    needs(name)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x = edges(name).to(dtype)
        assert_same_codes(probe.cast(x, FORMATS[name]), expected_cast(x.float(), name), x)


@each_format
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_kernel_casts_from_fp8(probe, needs, name, dtype):
    needs(name)
    x = codes(name)
    assert_close(probe.cast(x, dtype), x.to(dtype), rtol=0, atol=0)


@each_format
def test_kernel_casts_toward_zero(probe, needs, name):
    """The result is the largest value of the format that is not farther from zero."""
    needs(name)
    finite = codes(name).float()
    finite = finite[finite.isfinite()].unique()
    x = edges(name)
    x = x[x.abs() <= finite.max()]
    magnitude = finite[finite >= 0]
    expected = magnitude[torch.searchsorted(magnitude, x.abs(), right=True) - 1] * x.sign()
    assert_close(probe.cast(x, FORMATS[name], probe.cast_toward_zero_kernel).float(), expected, rtol=0, atol=0)


@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.float16, torch.int32, torch.int64])
def test_kernel_casts_to_and_from_bf16(probe, source):
    x = (torch.randn(4096) * 300).to(source)
    assert_close(probe.cast(x, torch.bfloat16), x.to(torch.bfloat16), rtol=0, atol=0)
    y = (torch.randn(4096) * 300).to(torch.bfloat16)
    assert_close(probe.cast(y, source), y.to(source), rtol=0, atol=0)


BINARY = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: (x.float() / y.float()).bfloat16(),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "neg": lambda x, y: -x,
    "less": lambda x, y: torch.where(x < y, x, y),
    "fma": lambda x, y: (x.double() * y.double() + y.double()).float().bfloat16(),
    "clamp": lambda x, y: torch.maximum(torch.minimum(x, y), -y),
    "clamp and keep NaN": lambda x, y: torch.maximum(torch.minimum(x, y), -y),
}


@pytest.mark.parametrize("op", BINARY)
def test_bf16_arithmetic(probe, op):
    x, y = torch.randn(1000).bfloat16(), torch.randn(1000).bfloat16()
    if op.startswith("clamp"):
        y = y.abs()
        if op.endswith("NaN"):
            x[7] = float("nan")
    assert_close(probe.binary(x, y, op), BINARY[op](x, y), rtol=0, atol=0)


@pytest.mark.parametrize("op", ["add", "mul", "maximum", "less"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32])
def test_other_dtypes_are_left_alone(probe, op, dtype):
    x, y = (torch.randn(1000) * 20).to(dtype), (torch.randn(1000) * 20).to(dtype)
    assert_close(probe.binary(x, y, op), BINARY[op](x, y), rtol=0, atol=0)


DOT_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, **FORMATS}


@pytest.mark.parametrize("name", DOT_DTYPES)
def test_dot_against_float64(probe, needs, name):
    needs(name)
    a, b = torch.randn(16, 64).to(DOT_DTYPES[name]), torch.randn(64, 32).to(DOT_DTYPES[name])
    assert_close(probe.dot(a, b), a.double() @ b.double(), rtol=1e-5, atol=1e-4)


def test_dot_keeps_nan_of_fp8(probe):
    a = torch.ones(16, 16).to(torch.float8_e4m3fn)
    a.view(torch.uint8)[3, 5] = 0x7F
    out = probe.dot(a, torch.ones(16, 16).to(torch.float8_e4m3fn))
    assert bool(out[3].isnan().all()) and int(out.isnan().sum()) == 16


def test_a_launch_replaces_the_language_once_and_restores_it(probe, monkeypatch):
    """Not once more for each function that a kernel calls, of its own module or of Triton's library."""
    from triton.runtime import interpreter as module

    looked_at = []
    patch_builtin = module._patch_builtin
    monkeypatch.setattr(module, "_patch_builtin", lambda pkg, *rest: (looked_at.append(pkg), patch_builtin(pkg, *rest)))
    before = dict(vars(probe.tl))
    counts = []
    for calls in (2, 2, 50):
        looked_at.clear()
        x, out = torch.randn(8), torch.empty(1)
        probe.calling_kernel[(1,)](x, out, calls, BLOCK=8)
        assert_close(out, calls * x.double().sum(0, keepdim=True), dtype=torch.float32)
        assert vars(probe.tl) == before
        counts.append(len(looked_at))
    assert counts[1] == counts[2] > 0, "after what the first has left"
    with pytest.raises(module.InterpreterError):
        probe.calling_kernel[(1,)](x, out, None, BLOCK=8)
    assert vars(probe.tl) == before, "also where the kernel fails"


def test_every_probe_is_right_with_the_patch(probe):
    assert [name for name, right in probe.PROBES.items() if not right()] == []


def test_every_patch_is_still_needed(probe):
    """Without the patch each probe is wrong. One that is right means that upstream mended it: drop that patch."""
    environ = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run([sys.executable, str(PROBE)], env=environ, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    wrong = json.loads(run.stdout.splitlines()[-1])
    mended = sorted(set(probe.PROBES) - set(wrong))
    assert not mended, f"this triton is right without the patch in: {mended}"


def test_a_users_process_is_mended_when_a_backend_is_asked_and_not_before(probe):
    program = Path(__file__).with_name("interpreter_user.py")
    environ = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run([sys.executable, str(program)], env=environ, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == {"after import": [*probe.PROBES], "answer": None, "after the question": []}


def _change_and_install(change):
    """Runs `change` on the unpatched interpreter module `m` in a fresh process, then install(); its output.

    A refusal must leave the module as it was.
    """
    code = f"""
from triton.runtime import interpreter as m
{change}
from turbo_core import interpreter
before = {{**vars(m), **vars(m.InterpreterBuilder)}}
try:
    interpreter.install()
except interpreter.InterpreterPatchError as error:
    print("refused:", error)
    after = {{**vars(m), **vars(m.InterpreterBuilder)}}
    print("as it was:", all(after[name] is value for name, value in before.items()) and len(after) == len(before))
    print(interpreter.why_not())
"""
    environ = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize(
    "change, message",
    [
        ("del m._convert_float", "_convert_float takes None"),
        ("m.InterpreterBuilder.create_dot = lambda self, a, b: None", "create_dot takes"),
        ("del m.TensorHandle", "has no TensorHandle"),
        ("m.InterpreterBuilder.create_fadd = lambda self, lhs, rhs: lhs", "the patch did not take"),
        ("m.np.matmul = None", "the patch does not run: TypeError"),
        ("del m.tl.float8e4b8", "the patch does not run: AttributeError"),
        ("m.GridExecutor.__call__ = lambda *a, **k: int(m.np.array([1, 2]))", "a kernel with a loop fails under numpy"),
    ],
)
def test_a_changed_interpreter_is_refused_aloud_and_left_alone(probe, change, message):
    refused, as_it_was, reason = _change_and_install(change).splitlines()
    assert refused.startswith("refused: ") and message in refused
    assert as_it_was == "as it was: True"
    assert reason.startswith("Triton's interpreter (TRITON_INTERPRET) is wrong in bf16 and FP8") and message in reason


def test_an_unchanged_interpreter_is_patched_silently(probe):
    assert _change_and_install("pass") == ""


@pytest.fixture
def afresh():
    """The answers about this process are found anew, during the test and after it."""

    def forget():
        interpreter.why_not.cache_clear()
        requirements._why_not_interpreted.cache_clear()

    forget()
    yield
    forget()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_triton_refuses_where_the_interpreter_cannot_be_mended(probe, afresh, monkeypatch, device):
    """On a GPU too: there the interpreter runs kernels where the variable was forgotten in the environment."""

    def refuse():
        raise interpreter.InterpreterPatchError("it is another one")

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert why_no_triton(torch.device(device)) is None
    interpreter.why_not.cache_clear()
    requirements._why_not_interpreted.cache_clear()
    monkeypatch.setattr(interpreter, "install", refuse)
    assert why_no_triton(torch.device(device)).endswith("which fails here: it is another one")


def test_compiled_kernels_need_no_mending(probe, afresh, monkeypatch):
    monkeypatch.setattr(interpreter, "is_in_use", lambda: False)
    monkeypatch.setattr(interpreter, "install", lambda: pytest.fail("nothing is interpreted"))
    assert why_no_triton(torch.device("cuda")) is None


def test_a_variable_set_after_triton_was_imported_is_refused(probe, afresh, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(interpreter, "is_in_use", lambda: False)
    assert "was set after triton was imported" in why_no_triton(torch.device("cpu"))


@pytest.mark.parametrize("value", ["1", "true", "ON", "Yes", "y", "0", "false", "", None])
def test_the_variable_means_what_it_means_to_triton(probe, monkeypatch, value):
    if value is None:
        monkeypatch.delenv("TRITON_INTERPRET")
    else:
        monkeypatch.setenv("TRITON_INTERPRET", value)
    assert interpreter.requested() is probe.triton.knobs.runtime.interpret


def test_a_session_respects_the_caller(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    session.request()
    assert os.environ["TRITON_INTERPRET"] == "0" and not session.requested()


def test_a_session_that_asks_after_triton_was_imported_is_an_error(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setitem(sys.modules, "triton", object())
    with pytest.raises(RuntimeError, match="imported before"):
        session.request()
