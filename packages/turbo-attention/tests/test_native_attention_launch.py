# SPDX-License-Identifier: MIT
"""What the native library launches (kernel, grid, argument bytes, as a HIP library recorded them) and refuses."""

from __future__ import annotations

import math
import struct

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
_C = pytest.importorskip("turbo_attention.pytorch._C", reason="turbo-attention is not built (pip install -e)")

from turbo_attention.calls import BackwardCall, ForwardCall  # noqa: E402
from turbo_attention.pytorch.kernels import native  # noqa: E402
from turbo_attention.pytorch.kernels.attention_impl import AttentionDispatcher  # noqa: E402
from turbo_core import BackendType, UnsupportedError, simulated_arch  # noqa: E402

Q, K, V, OUT, LSE, LSE_LOW = (0x10000 * i for i in range(1, 7))
STREAM = 0x5EA
GFX942, GFX950 = 0, 1  # devices of the fake library
DTYPES = {"bf16": _C.BFLOAT16, "fp16": _C.FLOAT16}


@pytest.fixture(autouse=True)
def forget_hip(fake_hip):
    native.reset()
    _C.reset()
    yield
    native.reset()
    _C.reset()


def forward(batches=2, sq=300, sk=70, heads=6, key_heads=2, D=64, dtype=_C.BFLOAT16, causal=False, **more):
    def tensor(name, address, rows, count):
        strides = more.get(f"{name}_strides", (rows * count * D, count * D, D))
        return dict(data=more.get(name, address), strides=strides)

    return _C.attention_forward(
        more.get("device", GFX942),
        STREAM,
        q=tensor("q", Q, sq, heads),
        k=tensor("k", K, sk, key_heads or 1),
        v=tensor("v", V, sk, key_heads or 1),
        out=tensor("out", OUT, sq, heads),
        lse=more.get("lse", LSE),
        lse_low=more.get("lse_low", LSE_LOW),
        lse_strides=(heads * sq, sq),
        batches=batches,
        sq=sq,
        sk=sk,
        heads=heads,
        key_heads=key_heads,
        head_dim=D,
        dtype=dtype,
        softmax_scale=more.get("scale", 0.125),
        causal=causal,
    )


# --- what is launched -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [GFX942, GFX950])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("D", [64, 128])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_kernel(fake_hip, dtype, D, causal, device):
    assert forward(D=D, dtype=DTYPES[dtype], causal=causal, device=device) == _C.OK, _C.last_error()
    (launch,) = fake_hip.launches
    name = f"attention_forward_{dtype}_{D}_{'causal' if causal else 'full'}"
    assert (launch.kernel, launch.grid, launch.block) == (name, (2 * 6 * 2, 1, 1), (512, 1, 1))
    assert (launch.lds, launch.stream, launch.device) == (0, STREAM, device)


@pytest.mark.parametrize(
    "scale, device_scale, negative", [(0.125, 0.18033688, 0), (-1.0, 1.442695, 1), (0.0, 2**-100, 0)]
)
def test_arguments(fake_hip, scale, device_scale, negative):
    strides = dict(q_strides=(8, 16, 24), k_strides=(32, 40, 48), v_strides=(56, 64, 72), out_strides=(80, 88, 2**40))
    assert forward(scale=scale, **strides) == _C.OK, _C.last_error()
    (launch,) = fake_hip.launches
    values = struct.unpack("<6Q14q6ifi", launch.arguments)
    assert values[:6] == (Q, K, V, OUT, LSE, LSE_LOW)
    assert values[6:18] == (16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 2**41), "bytes"
    assert values[18:20] == (6 * 300, 300)
    assert values[20:26] == (300, 70, 6, 3, 2, 24)
    assert values[26] == pytest.approx(device_scale, rel=1e-6) and values[27] == negative


def test_nan_as_scale_stays(fake_hip):
    assert forward(scale=math.nan) == _C.OK
    assert math.isnan(struct.unpack_from("<f", fake_hip.launches[0].arguments, 184)[0])


def test_nothing_to_do_is_not_launched(fake_hip):
    assert forward(batches=0) == forward(sq=0) == forward(heads=0) == _C.OK
    assert fake_hip.launches == []


# --- tensors ----------------------------------------------------------------------------------------------------------


def call(q, k, v, **more):
    options = dict(
        softmax_scale=0.5,
        left=-1,
        right=-1,
        softcap=0.0,
        dropout_p=0.0,
        bias=None,
        alibi_slopes=None,
        sink=None,
        rng=None,
        cu_seqlens_q=None,
        cu_seqlens_k=None,
        max_seqlen_q=q.shape[1],
        max_seqlen_k=k.shape[1],
    )
    return ForwardCall(q, k, v, **(options | more))


def empty(*shape, dtype=torch.bfloat16):
    return torch.zeros(shape, dtype=dtype)


def test_tensors_become_addresses(fake_hip):
    q = empty(300, 2, 6, 64).transpose(0, 1)  # sbhd
    k = empty(1, 3, 70, 64).transpose(1, 2).expand(2, 70, 3, 64)  # bhsd
    v = empty(2, 70, 3, 2, 64)[:, :, :, 1]
    with simulated_arch("gfx942"):
        out, lse, lse_low = native.run(call(q, k, v, right=0))
    assert (out.stride(), lse.shape, lse.dtype) == (q.stride(), (2, 6, 300), torch.float32)
    assert (lse_low.shape, lse_low.dtype) == (lse.shape, lse.dtype)
    (launch,) = fake_hip.launches
    assert launch.kernel == "attention_forward_bf16_64_causal"
    values = struct.unpack("<6Q14q6ifi", launch.arguments)
    assert values[:6] == tuple(t.data_ptr() for t in (q, k, v, out, lse, lse_low))
    assert values[6:18] == (768, 1536, 128, 0, 128, 8960, 53760, 768, 256, 768, 1536, 128)
    assert values[18:26] == (1800, 300, 300, 70, 6, 2, 2, 24)


@pytest.mark.parametrize("kind", ["address", "row stride", "head stride", "unused stride"])
def test_what_cannot_be_read_in_place_is_copied(fake_hip, kind):
    k = {
        "address": lambda: empty(2 * 70 * 64 + 4)[4:].view(2, 70, 1, 64),
        "row stride": lambda: empty(2, 70, 1, 68)[..., :64],
        "head stride": lambda: empty(2, 3, 70 * 64 + 4)[:, :, : 70 * 64].view(2, 3, 70, 64).transpose(1, 2),
        "unused stride": lambda: empty(2, 70, 65).as_strided((2, 70, 1, 64), (70 * 64, 64, 3, 1)),
    }[kind]()
    q = empty(2, 5, 3, 64)
    with simulated_arch("gfx942"):
        native.run(call(q, k, k))
    values = struct.unpack("<6Q14q6ifi", fake_hip.launches[0].arguments)
    in_place = kind == "unused stride"
    assert (values[1] == k.data_ptr()) is in_place
    assert values[10] == 2 * 64 * k.shape[2]


# --- may it run -------------------------------------------------------------------------------------------------------


def test_why_not(fake_hip):
    q, k = empty(2, 5, 4, 64), empty(2, 7, 2, 64)
    one = torch.zeros(1)
    assert native.why_not(call(q, k, k)) == "the HIP kernels are for gfx942 and gfx950; cpu is cpu"
    with simulated_arch("gfx942"):
        for accepted in (call(q, k, k), call(q, k, k, right=0), call(q.half(), k.half(), k.half())):
            assert native.why_not(accepted) is None
        refused = {
            "q is torch.float32; torch.bfloat16 and torch.float16 are accepted": call(q.float(), k.float(), k.float()),
            "head dims are 56 and 64; 64 and 128 are accepted, the same for v": call(q[..., :56], k[..., :56], k),
            "head dims are 128 and 64": call(empty(2, 5, 4, 128), empty(2, 7, 2, 128), k),
            "head dims are 256 and 256": call(empty(2, 5, 4, 256), empty(2, 7, 2, 256), empty(2, 7, 2, 256)),
            "the sequences are ragged (cu_seqlens)": call(q[:1], k[:1], k[:1], cu_seqlens_q=one, cu_seqlens_k=one),
            "window=(3, -1); (-1, -1) and causal, (-1, 0), are accepted": call(q, k, k, left=3),
            "window=(0, 0)": call(q, k, k, left=0, right=0),
            "window=(-1, 1)": call(q, k, k, right=1),
            "softcap given": call(q, k, k, softcap=1.0),
            "dropout_p given": call(q, k, k, dropout_p=0.5),
            "bias and sink given; the HIP kernels have none of it": call(q, k, k, bias=one, sink=one),
            "alibi_slopes given": call(q, k, k, alibi_slopes=one),
        }
        for text, unsupported in refused.items():
            assert native.why_not(unsupported).startswith(text)


def test_why_not_of_sizes(fake_hip):
    def sized(B, S, H, strides=(0, 0, 0)):
        return torch.empty(128, dtype=torch.bfloat16).as_strided((B, S, H, 64), (*strides, 1))

    one = sized(1, 4, 1)
    refused = {
        "sequences of 1073741824 and 4; up to 1073740800 are accepted": sized(1, 2**30, 1),
        "4096 x 2048 heads of 1 queries; 4194304 tiles of 256 are accepted": sized(2**12, 1, 2**11),
        "a row of out has 16777216 elements; up to 8388608 are accepted": sized(1, 4, 2**18),
        "a row of out has 33554432 elements; up to 8388608 are accepted": sized(2**12, 1, 2**7, (0, 8, 0)),
    }
    with simulated_arch("gfx942"):
        assert native.why_not(call(sized(2**12, 1, 2**7), one, one)) is None
        for text, q in refused.items():
            assert native.why_not(call(q, one, one)) == text


def test_the_dispatcher_asks(fake_hip):
    """TURBO is no default; its backward is Triton's."""
    q, k = empty(2, 5, 4, 64), empty(2, 7, 2, 64)
    with simulated_arch("gfx942"):
        assert AttentionDispatcher.default_backend(call(q, k, k)) is not BackendType.TURBO
        assert AttentionDispatcher.answers(call(q, k, k))[BackendType.TURBO] is None
        lse = torch.zeros(2, 4, 5)
        backward = BackwardCall(call(q, k, k), q, lse, lse, q, None, False)
        answers = AttentionDispatcher.answers(backward)
        assert answers[BackendType.TURBO] == answers[BackendType.TRITON]


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, text",
    [
        (dict(D=96), "dtype is 2, head_dim 96; accepted are float16 and bfloat16, 64 and 128"),
        (dict(dtype=_C.FLOAT32), "dtype is 0, head_dim 64"),
        (dict(batches=-1), "batches is -1; 0 to 1073740800 are accepted"),
        (dict(sq=2**30), "sq is 1073741824"),
        (dict(sk=2**31), "sk is 2147483648"),
        (dict(sk=0), "sk is 0; there must be a key"),
        (dict(heads=-3), "heads is -3"),
        (dict(key_heads=4), "heads is 6, key_heads 4; a divisor is needed"),
        (dict(key_heads=0), "heads is 6, key_heads 0"),
        (dict(batches=2**22), "4194304 x 6 x 2 work-groups; at most 4194304 are accepted"),
        (dict(q=0), "q is at (nil); a 16-byte aligned address is needed"),
        (dict(k=K + 8), "k is at 0x20008"),
        (dict(out=OUT + 2), "out is at 0x40002"),
        (dict(lse=0), "lse is NULL"),
        (dict(lse_low=0), "lse_low is NULL"),
        (dict(v_strides=(8, 12, 8)), "strides of v are 8, 12, 8; multiples of 8 are needed, of a row at most 8388608"),
        (dict(q_strides=(-8, 8, 8)), "strides of q are -8, 8, 8"),
        (dict(out_strides=(8, 2**23 + 8, 8)), "strides of out are 8, 8388616, 8"),
    ],
    ids=str,
)
def test_refusals(fake_hip, arguments, text):
    assert forward(**arguments) == _C.ERROR_ARGUMENT
    assert text in _C.last_error() and _C.last_error().startswith("attention_forward: ")
    assert fake_hip.launches == []


def test_a_refusal_is_an_error(fake_hip):
    q = empty(1, 5, 2, 96)
    with simulated_arch("gfx942"), pytest.raises(UnsupportedError, match="head_dim 96"):
        native.run(call(q, q, q))
    assert fake_hip.launches == []
