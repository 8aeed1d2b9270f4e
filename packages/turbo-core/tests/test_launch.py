# SPDX-License-Identifier: MIT
"""A launch as what the audit compiles: positions are the kernel's, whatever order a plan names its arguments in.

And as what is started: a compilation that is known is started without Triton's search, and no other in its place.
"""

import contextlib
from types import SimpleNamespace

import pytest

tl = pytest.importorskip("triton.language", reason="triton is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")

from turbo_core import arch_facts, launch  # noqa: E402
from turbo_core.bounded import BoundedDict  # noqa: E402
from turbo_core.launch import ALL, Launch, without_buffers  # noqa: E402


def test_positions_are_the_kernels():
    kernel = SimpleNamespace(arg_names=["x", "n", "scale", "stride", "one", "BLOCK", "DEFAULT"])
    x = torch.empty(4, device="meta")
    arguments = dict(stride=32, one=1, scale=0.5, n=7, x=x)
    signature = Launch(kernel, (1,), arguments, dict(BLOCK=64)).signature()
    assert list(signature.types) == ["x", "n", "scale", "stride", "one", "BLOCK"]
    assert signature.types["x"] == "*fp32" and signature.types["n"] == "i32" and signature.types["scale"] == "fp32"
    assert signature.constants == {"one": 1, "BLOCK": 64}
    assert set(signature.attributes) == {(0,), (3,)}  # x and stride are multiples of 16


POINTER_RANGE = ["tt.pointer_range", 32]


@pytest.mark.parametrize("unbuffered, reached", [((), {0}), (("x",), set()), (("huge",), {0}), (ALL, set())])
def test_the_compiler_is_told_which_tensors_buffer_instructions_reach(unbuffered, reached):
    kernel = SimpleNamespace(arg_names=["x", "huge"])
    tensors = {"x": torch.empty(4, device="meta"), "huge": torch.empty(2**29, device="meta")}  # 2 GiB
    attributes = Launch(kernel, (1,), tensors, {}, unbuffered=unbuffered).signature().attributes
    assert {position for (position,), known in attributes.items() if POINTER_RANGE in known} == reached


def test_unbuffered_tensors_are_told_no_size_on_amd_alone(monkeypatch):
    """As Triton's own AMD backend judges the arguments of a launch."""
    compiler = pytest.importorskip("triton.backends.amd.compiler", reason="this Triton has no AMD backend")
    given = {"x": torch.empty(64), "y": torch.empty(64), "n": 3, "none": None}
    device = torch.device("cpu")
    assert without_buffers(given, ALL, device) is given, "not an AMD device"
    monkeypatch.setattr(launch, "device_facts", lambda device: arch_facts("gfx950"))
    assert without_buffers(given, (), device) is given
    for unbuffered, limited in ((("x",), {"y"}), (ALL, set())):
        seen = without_buffers(given, unbuffered, device)
        assert seen["x"].data_ptr() == given["x"].data_ptr() and (seen["n"], seen["none"]) == (3, None)
        judge = compiler.HIPBackend.get_tensor_specialization
        assert {name for name in ("x", "y") if "S" in judge(seen[name], align=True)} == limited
        assert all("D" in judge(seen[name], align=True) for name in ("x", "y")), "aligned all the same"


class _Kernel:
    """Stands for a ``@triton.jit`` function: compiles for each call, and what it compiled notes how it is started."""

    arg_names = ("x", "n", "scale", "extra", "BLOCK", "DEFAULT")

    def __init__(self):
        self.compiled = []

    def __getitem__(self, grid):
        def search(**arguments):
            self.compiled.append(_Compiled())
            return self.compiled[-1]

        return search


class _Compiled:
    def __init__(self):
        self.started = []

    def __getitem__(self, grid):
        return lambda *arguments: self.started.append((grid, arguments))


@pytest.fixture
def started(monkeypatch):
    """Launches as on a GPU, with no compilation known."""
    monkeypatch.setattr(launch, "on_device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(launch, "_started", BoundedDict())
    return lambda *given, **options: Launch(*given, options).run(torch.device("cuda", 0))


def test_a_compilation_is_started_again_by_itself(started):
    kernel, x = _Kernel(), torch.empty(64)
    first = dict(scale=0.5, n=32, x=x, extra=None)
    started(kernel, (7,), first, dict(BLOCK=64), num_warps=4)
    other = torch.empty(128)
    started(kernel, (8, 2), {**first, "n": 48, "x": other, "scale": 2.0}, dict(BLOCK=64), num_warps=4)
    assert len(kernel.compiled) == 1
    assert kernel.compiled[0].started == [((8, 2, 1), (other, 48, 2.0, None, 64, None))]


@pytest.mark.parametrize(
    "change",
    [
        dict(n=33),
        dict(n=1),
        dict(n=True),
        dict(n=0.5),
        dict(n=2**31),
        dict(n=2**63),
        dict(n=None),
        dict(x=torch.empty(65)[1:]),
        dict(x=torch.empty(64, dtype=torch.int32)),
        dict(x=torch.empty(64, dtype=torch.bfloat16)),
        dict(BLOCK=128),
        dict(BLOCK=True),
        dict(num_warps=8),
    ],
    ids=lambda change: "-".join(change),
)
def test_what_triton_tells_apart_is_another_compilation(started, change):
    kernel = _Kernel()

    def run(n=32, x=torch.empty(64), BLOCK=1, num_warps=4):  # noqa: B008
        started(kernel, (1,), dict(x=x, n=n), dict(BLOCK=BLOCK), num_warps=num_warps)

    run()
    run(**change)
    run()
    run(**change)
    assert [len(compiled.started) for compiled in kernel.compiled] == [1, 1]


def test_descriptors_are_told_apart_by_type_and_block(started):
    def descriptor(dtype, block):
        return SimpleNamespace(base=torch.empty(64, dtype=dtype), block_shape=block, padding="zero")

    kernel = _Kernel()
    for dtype, block in ((torch.float16, [8, 8]), (torch.float16, [8, 16]), (torch.bfloat16, [8, 8])) * 2:
        started(kernel, (1,), dict(x=descriptor(dtype, block)), {})
    assert [len(compiled.started) for compiled in kernel.compiled] == [1, 1, 1]


def test_the_cache_is_bounded(started, monkeypatch):
    monkeypatch.setattr(launch, "_started", BoundedDict(4))
    kernel = _Kernel()
    for block in range(9):
        started(kernel, (1,), {}, dict(BLOCK=block))
    assert len(launch._started) == 1 and len(kernel.compiled) == 9


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e8m0fnu], ids=str)
def test_what_shall_be_zero_is_zero_at_the_start(started, dtype):
    x, y = (torch.full((4,), 0x55, dtype=torch.uint8).view(dtype) for _ in range(2))
    started(_Kernel(), (1,), dict(x=x, extra=y), {})
    assert x.view(torch.uint8).all()
    Launch(_Kernel(), (1,), dict(x=x, extra=y), {}, zeroed=("extra",)).run(torch.device("cuda", 0))
    assert x.view(torch.uint8).all() and not y.view(torch.uint8).any()


@pytest.mark.gpu
def test_on_the_gpu():
    """The same kernel at sizes and addresses that take different compilations, started twice each."""
    kernel = pytest.importorskip("triton").jit(_add_kernel)
    x = torch.randn(3000, device="cuda")
    for n, offset in ((1024, 0), (1000, 0), (1000, 1), (1, 0)) * 2:
        given, out = x[offset : offset + n], torch.full((3000,), torch.nan, device="cuda")
        Launch(kernel, (-(-n // 256),), dict(y=out, x=given, n=n, add=0.5), dict(BLOCK=256)).run(x.device)
        assert torch.equal(out[:n], given + 0.5) and out[n:].isnan().all()


def _add_kernel(x, y, n, add, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) + add, mask=at < n)
