# SPDX-License-Identifier: MIT
"""Shapes of real training, from the models' published configurations: GEMMs of dense language models, grouped GEMMs of
mixtures of experts; attention.

A layer of a dense model has four GEMMs, the model one more; for x [M, K] with M = micro-batch size x sequence length
and a weight [N, K]:

    qkv       N = (heads + 2 kv_heads) head_dim   K = hidden
    attn_out  N = hidden                          K = heads head_dim
    gate_up   N = 2 intermediate                  K = hidden         (gate and up projections in one)
    down      N = hidden                          K = intermediate
    lm_head   N = vocab                           K = hidden

A mixture of experts has two grouped GEMMs a layer, for x [R, K] with R = micro-batch size x sequence length x top-k
and G = experts / EP weights [N, K]; with EP ranks, each holds its G experts and gets as many rows as it sends:

    gate_up   N = 2 expert_width                  K = hidden
    down      N = hidden                          K = expert_width
"""

from __future__ import annotations

from dataclasses import dataclass

from turbo_testing.group_lens import group_lens


@dataclass(frozen=True)
class DenseModel:
    """What of a model's configuration decides the shapes of its GEMMs."""

    name: str
    seqlen: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocab: int
    head_dim: int = 128

    def gemms(self) -> dict[str, tuple[int, int]]:
        """(N, K) of each GEMM by name."""
        return {
            "qkv": ((self.heads + 2 * self.kv_heads) * self.head_dim, self.hidden),
            "attn_out": (self.hidden, self.heads * self.head_dim),
            "gate_up": (2 * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
            "lm_head": (self.vocab, self.hidden),
        }


DENSE_MODELS = (
    #          name             seqlen  hidden  interm.  heads  kv   vocab
    DenseModel("Llama-2-7B", 4096, 4096, 11008, 32, 32, 32000),
    DenseModel("Llama-2-13B", 4096, 5120, 13824, 40, 40, 32000),
    DenseModel("Llama-2-70B", 4096, 8192, 28672, 64, 8, 32000),
    DenseModel("Llama-3.1-8B", 8192, 4096, 14336, 32, 8, 128256),
    DenseModel("Llama-3.1-70B", 8192, 8192, 28672, 64, 8, 128256),
    DenseModel("Llama-3.1-405B", 8192, 16384, 53248, 128, 8, 128256),
    DenseModel("Qwen2.5-7B", 8192, 3584, 18944, 28, 4, 152064),
    DenseModel("Qwen2.5-32B", 8192, 5120, 27648, 40, 8, 152064),
    DenseModel("Qwen2.5-72B", 8192, 8192, 29568, 64, 8, 152064),
    DenseModel("Mistral-7B", 4096, 4096, 14336, 32, 8, 32000),
)
SQUARES = (4096, 8192)
# For --smoke: an even and an odd shape that a CPU does in no time.
SMOKE_SHAPES = ((96, 80, 64), (33, 129, 17))


@dataclass(frozen=True)
class GemmShape:
    """One GEMM to measure: y [M, N] = x [M, K] w [N, K]^T, its dgrad and its wgrad."""

    case: str
    mbs: int
    m: int
    n: int
    k: int


@dataclass(frozen=True)
class MoeModel:
    """What of a model's configuration decides the shapes of its grouped GEMMs.

    Attributes:
        experts: that a router chooses from, in each layer that has them.
        topk: experts of a token.
        ep: degrees of expert parallelism that are measured unless others are asked for.
    """

    name: str
    hidden: int
    expert_width: int
    experts: int
    topk: int
    ep: tuple[int, ...]
    seqlen: int = 4096

    def gemms(self) -> dict[str, tuple[int, int]]:
        """(N, K) of each grouped GEMM by name."""
        return {"gate_up": (2 * self.expert_width, self.hidden), "down": (self.hidden, self.expert_width)}


MOE_MODELS = (
    #        name               hidden  width experts top-k  EP
    MoeModel("DeepSeek-V3", 7168, 2048, 256, 8, (8, 32)),
    MoeModel("DeepSeek-V2", 5120, 1536, 160, 6, (8,)),
    MoeModel("DeepSeek-V2-Lite", 2048, 1408, 64, 6, (1, 8)),
    MoeModel("Qwen3-30B", 2048, 768, 128, 8, (1, 8)),
    MoeModel("Qwen3-235B", 4096, 1536, 128, 8, (8, 32)),
    MoeModel("Mixtral-8x7B", 4096, 14336, 8, 2, (1,)),
    MoeModel("Mixtral-8x22B", 6144, 16384, 8, 2, (1, 8)),
    MoeModel("GPT-OSS-20B", 2880, 2880, 32, 4, (1, 8)),
    MoeModel("Kimi-K2", 7168, 2048, 384, 8, (8, 32)),
    MoeModel("Grok-2", 8192, 16384, 8, 2, (1, 8)),
)


@dataclass(frozen=True)
class GroupedShape:
    """One grouped GEMM to measure: y[r] = x[r] w[g]^T for the rows r of group g, its dgrad and its wgrad.

    Attributes:
        ep: degree of expert parallelism behind ``groups``.
        lens: how the rows are shared out, one of `turbo_testing.group_lens.GROUP_LENS`.
    """

    case: str
    mbs: int
    groups: int
    rows: int
    n: int
    k: int
    ep: int = 1
    lens: str = "balanced"

    def group_lens(self) -> list[int]:
        """Rows of each group."""
        return group_lens(self.lens, self.groups, self.rows)

    def flops(self) -> int:
        """Of each of the three products."""
        return 2 * self.rows * self.n * self.k


# For --smoke: sizes whose rows torch's grouped matmul takes, and odd ones that it refuses: (groups, rows, N, K)
SMOKE_GROUPED = ((4, 96, 48, 64), (5, 67, 33, 17))


@dataclass(frozen=True)
class AttentionShape:
    """One attention to measure; ``seqlen`` queries and as many keys in each of ``batch`` sequences.

    Attributes:
        window: keys that a query sees before its own, None for all of them.
        lengths: of the sequences where they differ; batch is then their number and seqlen the longest.
    """

    case: str
    batch: int
    seqlen: int
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool = True
    window: int | None = None
    sink: bool = False
    lengths: tuple[int, ...] = ()

    def pairs(self) -> int:
        """Pairs of a query and a key that it sees, over all sequences, for one head."""
        total = 0
        for length in self.lengths or (self.seqlen,) * self.batch:
            left = length if self.window is None else min(self.window, length)
            before = left * (left - 1) // 2 + (length - left) * left
            total += length + before * (1 if self.causal else 2)
        return total

    def flops(self) -> int:
        """Of the forward: two products of head_dim multiply-adds for each pair. The backward has five of them."""
        return 4 * self.pairs() * self.heads * self.head_dim


def _ragged(case: str, lengths: tuple[int, ...], heads: int, kv_heads: int, head_dim: int) -> AttentionShape:
    return AttentionShape(case, len(lengths), max(lengths), heads, kv_heads, head_dim, lengths=lengths)


ATTENTION_SHAPES = (
    #               case                 B   S     Hq  Hkv  D
    AttentionShape("llama-8b", 4, 4096, 32, 8, 128),
    AttentionShape("llama-8b-full", 4, 4096, 32, 8, 128, causal=False),
    AttentionShape("long", 2, 16384, 16, 16, 128),
    AttentionShape("d64", 8, 2048, 64, 8, 64),
    AttentionShape("gpt-oss", 2, 4096, 64, 8, 64, window=127, sink=True),  # a window of 128 keys, its own among them
)
VARLEN_SHAPES = (  # documents of mixed lengths packed into 16384 tokens
    _ragged(
        "packed", (4096, 128, 2048, 256, 1024, 512, 3072, 128, 640, 384, 1536, 256, 896, 128, 1024, 256), 32, 8, 128
    ),
)
SMOKE_ATTENTION = (
    AttentionShape("smoke", 2, 70, 4, 2, 32),
    AttentionShape("smoke-window", 1, 65, 2, 1, 40, window=16, sink=True),
)
SMOKE_VARLEN = (_ragged("smoke-packed", (33, 1, 66), 4, 2, 32),)


def _plain(name: str) -> str:
    """A name as compared: ``llama3.1-8b`` means Llama-3.1-8B."""
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")


def dense_gemm_shapes(cases: list[str] | None, micro_batch_sizes: list[int]) -> list[GemmShape]:
    """The GEMMs of the named cases, all when None: models, or ``square-4096``.

    Raises:
        ValueError: a case is unknown; the message lists those that exist.
    """
    known: dict[str, list[GemmShape]] = {
        f"square-{size}": [GemmShape(f"square-{size}", 1, size, size, size)] for size in SQUARES
    }
    for model in DENSE_MODELS:
        known[model.name] = [
            GemmShape(f"{model.name} {gemm}", mbs, mbs * model.seqlen, n, k)
            for mbs in micro_batch_sizes
            for gemm, (n, k) in model.gemms().items()
        ]
    by_plain_name = {_plain(name): shapes for name, shapes in known.items()}
    chosen = []
    for case in known if cases is None else cases:
        if _plain(case) not in by_plain_name:
            raise ValueError(f"case {case!r} is unknown; there are {', '.join(known)}")
        chosen += by_plain_name[_plain(case)]
    return chosen


def grouped_gemm_shapes(
    cases: list[str] | None, micro_batch_sizes: list[int], degrees: list[int] | None, lens: list[str]
) -> list[GroupedShape]:
    """The grouped GEMMs of the named models, all when None, at these degrees of expert parallelism, each model's own
    when None; a degree that does not divide a model's experts is left out.

    Raises:
        ValueError: a case is unknown; the message lists those that exist.
    """
    models = {_plain(model.name): model for model in MOE_MODELS}
    if unknown := [case for case in cases or () if _plain(case) not in models]:
        known = ", ".join(model.name for model in MOE_MODELS)
        raise ValueError(f"case {unknown[0]!r} is unknown; there are {known}")
    return [
        GroupedShape(f"{model.name} {gemm}", mbs, model.experts // ep, mbs * model.seqlen * model.topk, n, k, ep, kind)
        for model in (MOE_MODELS if cases is None else [models[_plain(case)] for case in cases])
        for ep in (model.ep if degrees is None else degrees)
        if model.experts % ep == 0
        for mbs in micro_batch_sizes
        for gemm, (n, k) in model.gemms().items()
        for kind in lens
    ]
