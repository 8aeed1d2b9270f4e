# SPDX-License-Identifier: MIT
"""The form in which a mask of transformers reaches Turbo's attention, and that it lets the same keys be seen."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch import Tensor, nn  # noqa: E402
from transformers import LlamaConfig, masking_utils  # noqa: E402


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parent.parent / "examples"))
    return importlib.import_module("transformers_on_turbo")


class MaskCase(NamedTuple):
    queries: int
    keys: int
    q_offset: int | Tensor = 0
    kv_offset: int = 0
    options: dict[str, Any] = {}
    dims: int | None = None  # of what turbo_mask returns; None where it is None


WINDOWED = {"local_size": 3, "mask_function": masking_utils.sliding_window_causal_mask_function(3)}
CHUNKS = masking_utils.chunked_causal_mask_function(3, torch.zeros(2, dtype=torch.int))
MASK_CASES = {
    "causal": MaskCase(6, 6),
    "window": MaskCase(6, 6, options=WINDOWED),
    "after a cache": MaskCase(2, 6, 4, options=WINDOWED),
    "after a window's cache": MaskCase(2, 4, 4, 2, WINDOWED),
    "padding": MaskCase(6, 6, options={"padding": 6}, dims=2),
    "padding after a window's cache": MaskCase(2, 4, 4, 2, {**WINDOWED, "padding": 6}, 2),
    "a mask without padding": MaskCase(6, 6, options={"padding": 0}),
    "chunks": MaskCase(6, 6, options={"local_size": 3, "mask_function": CHUNKS}, dims=4),
    "chunks of the window's size": MaskCase(
        6, 6, options={"local_size": 3, "mask_function": CHUNKS, "both": 3}, dims=4
    ),
    "static cache": MaskCase(2, 6, torch.tensor(1), options={"padding": 6}, dims=4),
    "static cache, filled first": MaskCase(2, 6, 0, dims=4),
    "a mask that ends early": MaskCase(2, 6, 4, options={"padding": 2, "known": 5}, dims=4),
    "not causal alone": MaskCase(6, 6, options={"allow_is_causal_skip": False}, dims=4),
}


@pytest.mark.parametrize("case", MASK_CASES.values(), ids=MASK_CASES)
def test_turbo_mask_lets_the_same_keys_be_seen(case: MaskCase, example: ModuleType) -> None:
    """Values of `turbo_attention` under `turbo_mask` against attention under transformers' full mask."""
    options = dict(case.options)
    padded, known = options.pop("padding", None), options.pop("known", 6)
    if padded is not None:
        options["attention_mask"] = torch.ones(2, known, dtype=torch.bool)
        options["attention_mask"][0, : padded // 2] = False
    sizes = (2, case.queries, case.keys, case.q_offset, case.kv_offset)
    window = options.get("local_size") if options.get("mask_function") is not CHUNKS else None
    module = nn.Module()
    both = options.pop("both", None)  # a model whose other layers have windows
    module.config = LlamaConfig(sliding_window=both or window, attention_chunk_size=both)
    mask = example.turbo_mask(*sizes, config=module.config, **options)
    assert (None if mask is None else mask.dim()) == case.dims

    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, n, 8, generator=generator) for n in (case.queries, case.keys, case.keys))
    out, weights = example.turbo_attention(module, q, k, v, mask, sliding_window=window)
    full = masking_utils.sdpa_mask(*sizes, **{**options, "allow_is_causal_skip": False})
    expected = nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), full).transpose(1, 2)
    expected = torch.where(full.any(-1).transpose(1, 2)[..., None], expected, 0.0)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    assert weights is None


@pytest.mark.parametrize("mask", ["none", "padding", "own"])
def test_what_layers_pass_besides_a_mask(mask: str, example: ModuleType) -> None:
    """A scale, a soft-cap, sinks and a learned bias, with its gradient."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, 6, 8, generator=generator) for _ in range(3))
    learned = torch.randn(1, 2, 6, 6, generator=generator, requires_grad=True)
    sinks = torch.randn(2, generator=generator)
    seen = torch.ones(2, 1, 6, 6, dtype=torch.bool).tril()
    given = None
    if mask == "padding":
        given = torch.ones(2, 6, dtype=torch.bool)
        given[0, 4:] = False
        seen &= given[:, None, None]
    if mask == "own":
        seen[..., 0] = True
        seen[..., 3] = False
        given = seen
    module = nn.Module()
    module.config = LlamaConfig()
    options = {"scaling": 0.7, "softcap": 2.0, "s_aux": sinks, "position_bias": learned}
    out, _ = example.turbo_attention(module, q, k, v, given, **options)
    (found,) = torch.autograd.grad(out.square().sum(), learned)

    scores = 2.0 * torch.tanh(0.7 * q.double() @ k.double().transpose(2, 3) / 2.0) + learned.double()
    scores = torch.cat([scores.masked_fill(~seen, -math.inf), sinks.double()[:, None, None].expand(2, 2, 6, 1)], -1)
    expected = (scores.softmax(-1)[..., :-1] @ v.double()).transpose(1, 2)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    (right,) = torch.autograd.grad(expected.square().sum(), learned)
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)
