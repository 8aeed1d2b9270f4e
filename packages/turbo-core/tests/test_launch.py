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
from turbo_core.launch import ALL, Launch, Signature, fits_buffers, power_of_two, without_buffers  # noqa: E402


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
DIVISIBLE = ["tt.divisibility", 16]
FP8 = {"e4m3fn": "fp8e4nv", "e5m2": "fp8e5", "e4m3fnuz": "fp8e4b8", "e5m2fnuz": "fp8e5b16"}


@pytest.mark.parametrize(
    "dtype, name",
    [
        ("bfloat16", "bf16"),
        *((f"float{bits}", f"fp{bits}") for bits in (16, 32)),
        *((f"int{bits}", f"i{bits}") for bits in (8, 16, 32, 64)),
        ("uint8", "u8"),
        *((f"float8_{torch_name}", triton_name) for torch_name, triton_name in FP8.items()),
    ],
)
def test_pointers_have_tritons_names(dtype, name):
    x = torch.empty(4, dtype=getattr(torch, dtype), device="meta")
    assert Launch(SimpleNamespace(arg_names=["x"]), (1,), dict(x=x), {}).signature().types == {"x": f"*{name}"}


@pytest.mark.parametrize(
    "value, kind, known",
    [
        (0, "i32", True),
        (15, "i32", False),
        (16, "i32", True),
        (17, "i32", False),
        (2**31 - 1, "i32", False),
        (2**31, "i64", True),
        (-(2**31), "i32", True),
        (-(2**31) - 1, "i64", False),
        (1.0, "fp32", False),
        (16.0, "fp32", False),
        (1, "constexpr", False),
        (None, "constexpr", False),
    ],
)
def test_the_compiler_is_told_of_sizes_and_multiples_of_16(value, kind, known):
    signature = Launch(SimpleNamespace(arg_names=["n"]), (1,), dict(n=value), {}).signature()
    assert signature.types == {"n": kind}
    assert signature.constants == ({"n": value} if kind == "constexpr" else {})
    assert signature.attributes == ({(0,): [DIVISIBLE]} if known else {})


@pytest.mark.parametrize("offset, aligned", [(0, True), (1, False), (2, False), (4, True), (6, False)])
def test_the_compiler_is_told_which_tensors_are_aligned(offset, aligned):
    x = torch.empty(64)[offset:]
    assert x.data_ptr() % 16 == (offset * 4) % 16
    attributes = Launch(SimpleNamespace(arg_names=["x"]), (1,), dict(x=x), {}).signature().attributes
    assert attributes == {(0,): [DIVISIBLE, POINTER_RANGE] if aligned else [POINTER_RANGE]}


@pytest.mark.parametrize("size, fits", [(2**31 - 1, True), (2**31, False), (100, True)])
def test_buffer_instructions_reach_2_gib(size, fits):
    memory = torch.empty(size, dtype=torch.uint8, device="meta")
    assert fits_buffers(memory) is fits
    assert fits_buffers(memory[:1]) is fits, "the whole memory counts, as to Triton"


def test_powers_of_two():
    assert [power_of_two(n) for n in (0, 1, 2, 3, 4, 5, 8, 9, 1000)] == [1, 1, 2, 4, 4, 8, 8, 16, 1024]


@pytest.mark.parametrize("grid, whole", [((7,), (7, 1, 1)), ((7, 2), (7, 2, 1)), ((7, 2, 3), (7, 2, 3))])
def test_a_grid_has_three_axes(grid, whole):
    assert Launch(_Kernel(), grid, {}, {}).whole_grid() == whole


@pytest.mark.parametrize(
    "device, current, entered",
    [("cuda:1", 0, True), ("cuda:1", 1, False), ("cuda:0", 1, True), ("cpu", 0, False), ("meta", 0, False)],
)
def test_the_device_of_the_tensors_is_made_the_current_one(monkeypatch, device, current, entered):
    inside = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext(inside.append(device)))
    with launch.on_device(torch.device(device)):
        assert inside == ([torch.device(device)] if entered else [])


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


def test_options_of_a_launch_win_over_those_of_every_launch():
    """On a CPU, where each launch is searched anew: nothing is kept of a simulator that may be switched off."""
    kernel, given = _Kernel(), []
    search = _Kernel.__getitem__

    class Noting(_Kernel):
        def __getitem__(self, grid):
            return lambda **arguments: (given.append((grid, arguments)), search(kernel, grid)(**arguments))[1]

    for options in ({}, {"enable_fp_fusion": False, "num_warps": 8}):
        assert Launch(Noting(), (3,), dict(n=1), dict(BLOCK=2), options).run(torch.device("cpu")) is None
    assert given == [
        ((3,), dict(n=1, BLOCK=2, enable_fp_fusion=True)),
        ((3,), dict(n=1, BLOCK=2, enable_fp_fusion=False, num_warps=8)),
    ]
    assert len(kernel.compiled) == 2
    noting = Noting()
    for _ in range(2):
        Launch(noting, (3,), dict(n=1), dict(BLOCK=2)).run(torch.device("cpu"))
    assert len(kernel.compiled) == 4


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


def test_numbers_are_told_apart_as_triton_does(started):
    """Each pair of these is another compilation; 1 and True are equal to Python."""
    kernel, x = _Kernel(), torch.empty(64)
    values = [1, True, 0, 3, 0.5, None, 2**31, 2**31 + 1, 2**62, 2**63, 2**63 + 1, -(2**31) - 1, x, x[1:], x.int()]
    for value in values * 2:
        started(kernel, (1,), dict(n=value), {})
    alike = {8: 6, 11: 7}  # 2**62 as 2**31, -(2**31) - 1 as 2**31 + 1
    assert len(kernel.compiled) == len(values) - len(alike)
    assert sum(len(compiled.started) for compiled in kernel.compiled) == 2 * len(values) - len(kernel.compiled)


@pytest.mark.parametrize("like", [dict(n=48), dict(x=torch.empty(64)[4:]), dict(n=2**31 - 16), dict(scale=7.0)])
def test_what_triton_does_not_tell_apart_is_one_compilation(started, like):
    kernel = _Kernel()
    given = dict(x=torch.empty(64), n=32, scale=0.5)
    for arguments in (given, {**given, **like}):
        started(kernel, (1,), arguments, {})
    assert len(kernel.compiled) == 1


def test_a_kernel_says_which_integers_it_is_not_compiled_anew_for(started):
    """As declared, by a compiled function or an interpreted one; 32 and 64 bits are still told apart."""
    for declared in (dict(do_not_specialize=["n"]), dict(kwargs=dict(do_not_specialize=["n"]))):
        kernel = _Kernel()
        vars(kernel).update(declared)
        values = [1, 0, 16, 17, 2**31 - 1, 2**31, 2**31 + 1]
        for value in values:
            started(kernel, (1,), dict(n=value, scale=1), {})
        assert [len(compiled.started) for compiled in kernel.compiled] == [4, 1]
        found = {str(Launch(kernel, (1,), dict(n=value), {}).signature()) for value in values}
        assert found == {str(Signature({"n": kind}, {}, {})) for kind in ("i32", "i64")}


def test_devices_kernels_and_unbuffered_tensors_are_told_apart(started, monkeypatch):
    monkeypatch.setattr(launch, "without_buffers", lambda arguments, names, device: arguments)
    kernels, x = [_Kernel(), _Kernel()], torch.empty(64)
    for _ in range(2):
        for kernel in kernels:
            for index in (0, 1):
                for unbuffered in ((), ("x",)):
                    Launch(kernel, (1,), dict(x=x), {}, {}, unbuffered).run(torch.device("cuda", index))
    assert [[len(compiled.started) for compiled in kernel.compiled] for kernel in kernels] == [[1] * 4] * 2


def test_descriptors_are_told_apart_by_type_block_and_padding(started):
    def descriptor(dtype, block, padding="zero"):
        return SimpleNamespace(base=torch.empty(64, dtype=dtype), block_shape=block, padding=padding)

    kernel, f16 = _Kernel(), torch.float16
    for made in ((f16, [8, 8]), (f16, [8, 16]), (torch.bfloat16, [8, 8]), (f16, [8, 8], "nan")) * 2:
        started(kernel, (1,), dict(x=descriptor(*made)), {})
    assert [len(compiled.started) for compiled in kernel.compiled] == [1, 1, 1, 1]


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
