# SPDX-License-Identifier: MIT
"""Models of Hugging Face's transformers on Turbo's operators give the losses and gradients of the stock models.

Llama, Qwen3 (norms of q and k) and GPT-OSS (sinks, sliding windows, experts that stay stock), tiny and with random
weights, through what training does to them. The stock model computes attention with `scaled_dot_product_attention`,
GPT-OSS with its eager function, which is the only one that transformers has for it on a CPU.
"""

from __future__ import annotations

import copy
import importlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch import Tensor, nn  # noqa: E402

from turbo_core import GlobalBackendManager, trace_dispatch, why_no_triton  # noqa: E402
from turbo_core.low_precision import Float8QuantConfig, ScalingGranularity  # noqa: E402
from turbo_gemm import Float8Linear, Linear  # noqa: E402
from turbo_norm_act import RMSNorm  # noqa: E402

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
VOCABULARY, WINDOW = 61, 5

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,  # large, so that attention prefers some keys and an error in a mask is seen
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "use_cache": False,
}
GPT_OSS = {
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES),
    "gpt-oss": lambda: transformers.GptOssConfig(**SIZES, **GPT_OSS),
}
MASKS = [None, "left", "right"]


@pytest.fixture(autouse=True)
def _examples_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def use_turbo(model: nn.Module, **options: Any) -> nn.Module:
    """A copy of ``model`` on Turbo; ``model`` stays stock."""
    example = importlib.import_module("transformers_on_turbo")
    return example.use_turbo(copy.deepcopy(model), **{"keep": (), **options})


@pytest.fixture(params=list(CONFIGS))
def stock(request: pytest.FixtureRequest) -> nn.Module:
    return make(request.param)


def make(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name]())
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms, sinks and biases: away from 1 and 0
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def one_layer(model: nn.Module) -> nn.Module:
    """``model`` without its other layers, for what is slow."""
    model.model.layers = model.model.layers[:1]
    model.config.num_hidden_layers = 1
    return model


def batch(padding: str | None = None, sequences: int = 2, length: int = 12) -> dict[str, Tensor]:
    """Random tokens; with padding the first sequence is shorter by a third, and its padding is no label."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(2, VOCABULARY, (sequences, length), generator=generator)
    inputs = {"input_ids": ids, "labels": ids.clone()}
    if padding is not None:
        seen = torch.ones_like(ids)
        (seen[0, : length // 3] if padding == "left" else seen[0, -length // 3 :]).zero_()
        inputs["labels"][seen == 0] = -100
        inputs["attention_mask"] = seen
    return inputs


class Step(NamedTuple):
    loss: Tensor
    gradients: dict[str, Tensor]


def step(model: Callable[..., Any], inputs: dict[str, Any], autocast: torch.dtype | None = None) -> Step:
    """A forward and a backward in training mode."""
    weights = getattr(model, "_orig_mod", model).train()
    weights.zero_grad()
    with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
        loss = model(**inputs).loss
    loss.backward()
    gradients = {name: weight.grad for name, weight in weights.named_parameters()}  # the next step makes others
    missing = [name for name, gradient in gradients.items() if gradient is None]
    assert not missing, f"no gradient: {missing}"
    return Step(loss.detach(), gradients)


def assert_equal_steps(ours: Step, theirs: Step, tolerance: float = 3e-5) -> None:
    """Losses, and each gradient as a whole: the norm of the difference against the norm."""
    torch.testing.assert_close(ours.loss.float(), theirs.loss.float(), rtol=tolerance, atol=tolerance)
    assert ours.gradients.keys() == theirs.gradients.keys()
    for name, error in errors(ours, theirs).items():
        assert error <= tolerance, f"gradient of {name}: relative error {error}"


def errors(found: Step, reference: Step) -> dict[str, float]:
    """The relative error of each gradient."""
    pairs = {
        name: (found.gradients[name].double(), gradient.double()) for name, gradient in reference.gradients.items()
    }
    return {name: float((ours - theirs).norm() / theirs.norm()) for name, (ours, theirs) in pairs.items()}


def assert_no_worse(ours: Step, theirs: Step, reference: Step) -> None:
    """In 16 bits: as near to the float32 model as the stock model in 16 bits is, but for luck in rounding.

    With other seeds the errors of all gradients together are 0.6 to 1.35 times those of stock.
    """
    assert abs(ours.loss - reference.loss) <= 2 * abs(theirs.loss - reference.loss) + 2e-3 * abs(reference.loss)
    found, stock = errors(ours, reference), errors(theirs, reference)
    for name, error in found.items():
        assert error <= 3 * (stock[name] + 1e-2), f"gradient of {name}: {error}, stock {stock[name]}"
    assert math.hypot(*found.values()) <= 1.5 * math.hypot(*stock.values())


def all_experts(model: nn.Module) -> nn.Module:
    """``model`` with every token at every expert: in 16 bits one on the edge of two would change sides."""
    for module in model.modules():
        if hasattr(module, "top_k"):
            module.top_k = module.num_experts
    return model


# --- what is exchanged ----------------------------------------------------------------------------------------------


def test_parameters_keep_their_names_and_values(stock: nn.Module, tmp_path: Path) -> None:
    ours = use_turbo(stock)
    assert ours.config._attn_implementation == "turbo" and stock.config._attn_implementation != "turbo"
    kinds = {type(module) for module in ours.modules()}
    assert {Linear, RMSNorm} <= kinds and nn.Linear not in kinds
    assert not [kind for kind in kinds if kind.__name__.endswith("RMSNorm") and kind is not RMSNorm]
    ours.save_pretrained(tmp_path)
    reloaded = type(stock).from_pretrained(tmp_path)
    for found in (ours, reloaded):
        torch.testing.assert_close(dict(found.named_parameters()), dict(stock.named_parameters()), rtol=0, atol=0)


def test_turbo_computes_all_but_the_experts(stock: nn.Module) -> None:
    """Without padding there is no bias, only causality and the layer's window."""
    with trace_dispatch() as trace:
        step(use_turbo(stock), batch())
    sliding = stock.config.model_type == "gpt_oss"
    ops = {record.op for record in trace.records}
    assert ops == {"gemm", "norm", "attention"} | (set() if sliding else {"glu"})
    forwards = [record.call for record in trace.records if (record.op, record.role) == ("attention", "forward")]
    assert not [call for call in forwards if "bias" in call]
    windows = [f"window=({WINDOW - 1}, 0)" if sliding else "window=(-1, 0)", "window=(-1, 0)"]
    assert [window in call for window, call in zip(windows, forwards, strict=True)] == [True, True]


# --- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", MASKS)
def test_float32(stock: nn.Module, padding: str | None) -> None:
    inputs = batch(padding)
    assert_equal_steps(step(use_turbo(stock), inputs), step(stock, inputs))


@pytest.mark.parametrize("padding", [None, "left"])
def test_bfloat16_weights(stock: nn.Module, padding: str | None) -> None:
    inputs = batch(padding)
    reference, half = step(all_experts(stock), inputs), copy.deepcopy(stock).to(torch.bfloat16)
    with trace_dispatch() as trace:
        ours = step(use_turbo(half), inputs)
    assert_no_worse(ours, step(half, inputs), reference)
    assert_products_run_in_16_bits(trace)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_autocast(stock: nn.Module, dtype: torch.dtype) -> None:
    inputs = batch("right")
    with trace_dispatch() as trace:
        ours = step(use_turbo(all_experts(stock)), inputs, dtype)
    theirs = step(copy.deepcopy(stock), inputs, dtype)
    assert_no_worse(ours, theirs, step(stock, inputs))
    assert_products_run_in_16_bits(trace)  # rotary positions give float32 q and k all the same


def assert_products_run_in_16_bits(trace: Any) -> None:
    products = [record.call for record in trace.records if record.op in ("gemm", "attention")]
    assert products and not [call for call in products if "fp32" in call or "float32 x" in call or "x float32" in call]


def test_own_masks_of_four_dimensions(stock: nn.Module) -> None:
    """As bool and as a bias; every token sees the first two, whatever the direction."""
    inputs = batch()
    seen = torch.ones(12, 12, dtype=torch.bool).tril()
    seen[:, :2] = True
    bias = torch.zeros(12, 12).masked_fill(~seen, torch.finfo(torch.float32).min)
    expected = step(stock, {**inputs, "attention_mask": bias[None, None].expand(2, 1, 12, 12)})
    for mask in (seen, bias):
        given = {**inputs, "attention_mask": mask[None, None].expand(2, 1, 12, 12)}
        assert_equal_steps(step(use_turbo(stock), given), expected)


def test_dropout_in_training_alone() -> None:
    stock = make("llama")
    for layer in stock.model.layers:
        layer.self_attn.attention_dropout = 0.5
    ours, inputs = use_turbo(stock), batch()
    torch.manual_seed(0)
    first, second = step(ours, inputs).loss, step(ours, inputs).loss
    assert abs(first - second) > 1e-3
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(**inputs).loss, stock.eval()(**inputs).loss)


# --- checkpointing, compilation -------------------------------------------------------------------------------------


@pytest.mark.parametrize("use_reentrant", [False, True], ids=["default", "reentrant"])
@pytest.mark.parametrize("autocast", [None, torch.bfloat16], ids=["fp32", "autocast"])
def test_gradient_checkpointing(stock: nn.Module, use_reentrant: bool, autocast: torch.dtype | None) -> None:
    ours, inputs = use_turbo(stock), batch("left")
    plain = step(ours, inputs, autocast)
    ours.activation_checkpointing_enable({"use_reentrant": use_reentrant})
    assert_equal_steps(step(ours, inputs, autocast), plain, 0.0)


@pytest.mark.parametrize("padding", [None, "left"])
def test_compiled_as_one_graph(stock: nn.Module, padding: str | None) -> None:
    inputs = batch(padding)
    if stock.config.model_type == "gpt_oss":
        stock.set_experts_implementation("batched_mm")  # the eager loop over experts depends on values
    else:
        stock = one_layer(stock)
    torch._dynamo.reset()
    compiled = torch.compile(use_turbo(stock), fullgraph=True, backend="aot_eager")
    assert_equal_steps(step(compiled, inputs), step(stock, inputs))


def test_compiled_once_for_sequences_of_all_lengths() -> None:
    stock = one_layer(make("llama"))
    torch._dynamo.reset()
    counter = importlib.import_module("torch._dynamo.testing").CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(use_turbo(stock), fullgraph=True, dynamic=True, backend=counter)
    graphs = []
    for length in (12, 9, 15):
        inputs = batch("left", length=length)
        assert_equal_steps(step(compiled, inputs), step(stock, inputs))
        graphs.append(counter.frame_count)
    assert graphs == graphs[:1] * 3


# --- packed batches -------------------------------------------------------------------------------------------------


def packed(lengths: tuple[int, ...]) -> dict[str, Any]:
    """One row of sequences, one after another, as transformers' own collator makes it."""
    collate = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    generator = torch.Generator().manual_seed(2)
    rows = [torch.randint(2, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]
    return collate([{"input_ids": row, "labels": list(row)} for row in rows], return_tensors="pt")


def alone(model: nn.Module, inputs: dict[str, Any]) -> Step:
    """The packed sequences one by one through ``model``; the mean over all their labels."""
    weights = model.train()
    weights.zero_grad()
    offsets, losses, labels = inputs["cu_seq_lens_q"].tolist(), [], 0
    for begin, end in zip(offsets, offsets[1:]):
        ids = inputs["input_ids"][:, begin:end]
        losses.append(model(input_ids=ids, labels=ids).loss * (end - begin - 1))
        labels += end - begin - 1
    loss = sum(losses) / labels
    loss.backward()
    return Step(loss.detach(), {name: weight.grad.clone() for name, weight in weights.named_parameters()})


@pytest.mark.parametrize("form", ["offsets", "offsets, no mask", "positions"])
def test_packed_sequences_do_not_see_each_other(stock: nn.Module, form: str) -> None:
    inputs = packed((3, 9, 2, 7))
    expected = alone(stock, inputs)
    given = {name: value for name, value in inputs.items() if form != "positions" or "seq_lens" not in name}
    if form == "positions":
        if stock.config.model_type == "gpt_oss":
            pytest.skip("GPT-OSS of transformers makes no mask of position_ids")
        given = {name: value for name, value in given.items() if "max_length" not in name}
    if form == "offsets, no mask":
        given["attention_mask"] = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    with trace_dispatch() as trace:
        ours = step(use_turbo(stock), given)
    assert_equal_steps(ours, expected)
    ragged = {"variable lengths" in record.call for record in trace.records if record.op == "attention"}
    assert ragged == {form != "positions"}


# --- inference ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cache", "chunk"), [("dynamic", None), ("dynamic", 3), ("static", None)])
def test_generate_with_a_cache(stock: nn.Module, cache: str, chunk: int | None) -> None:
    """Prompts with padding on the left; sequences longer than the window; the logits of each new token."""
    inputs = batch("left", length=7)
    prompt = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    options = {"max_new_tokens": 8, "do_sample": False, "use_cache": True, "disable_compile": True}
    options |= {
        "cache_implementation": cache,
        "prefill_chunk_size": chunk,
        "return_dict_in_generate": True,
        "output_logits": True,
    }
    theirs, ours = (model.eval().generate(**prompt, **options) for model in (stock, use_turbo(stock)))
    torch.testing.assert_close(ours.sequences, theirs.sequences, rtol=0, atol=0)
    torch.testing.assert_close(torch.stack(ours.logits), torch.stack(theirs.logits), rtol=1e-4, atol=1e-4)


def test_several_tokens_after_a_cache(stock: nn.Module) -> None:
    """Five queries for twelve keys, and no padding: causality is aligned to the end."""
    ours, ids = use_turbo(stock).eval(), batch()["input_ids"]
    with torch.no_grad():
        whole = stock.eval()(input_ids=ids).logits
        first = ours(input_ids=ids[:, :7], use_cache=True)
        second = ours(input_ids=ids[:, 7:], cache=first.cache, use_cache=True)
    torch.testing.assert_close(torch.cat([first.logits, second.logits], 1), whole, rtol=1e-4, atol=1e-4)


# --- other backends and precisions, the program --------------------------------------------------------------------


@pytest.mark.parametrize("form", ["padded", "packed"])
def test_triton(stock: nn.Module, form: str) -> None:
    """Few tokens: the interpreter is slow."""
    if reason := why_no_triton(torch.device("cpu")):
        pytest.skip(f"backend TRITON: {reason}")
    stock = one_layer(stock)
    inputs = batch("left", length=7) if form == "padded" else packed((2, 7))
    expected = step(stock, inputs) if form == "padded" else alone(stock, inputs)
    for backend in ("gemm", "attn", "norm_act"):
        getattr(GlobalBackendManager, f"set_{backend}_backend")("TRITON")
    with trace_dispatch() as trace:
        ours = step(use_turbo(stock), inputs)
    assert {record.backend.name for record in trace.records} == {"TRITON"}
    assert_equal_steps(ours, expected)


def test_float8_layers(stock: nn.Module) -> None:
    """As the stock model with the same FP8 layers: norms, gates and attention add nothing to what those lose."""
    config = Float8QuantConfig(granularity=ScalingGranularity.ROWWISE)
    inputs = batch("right")
    ours = use_turbo(stock, linear=lambda layer: Float8Linear.from_float(layer, config), keep=("lm_head",))
    assert type(ours.lm_head) is nn.Linear and type(ours.model.layers[0].self_attn.q_proj) is Float8Linear
    for name, layer in list(stock.named_modules()):
        if type(layer) is nn.Linear and name != "lm_head":
            Float8Linear.from_float(layer, config)
    assert_equal_steps(step(ours, inputs), step(stock, inputs), 2e-2)  # a number on the edge of two codes may change


@pytest.mark.parametrize("model", CONFIGS)
def test_the_program_trains_and_notices_a_wrong_model(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = importlib.import_module("train_transformers")
    short = ["--model", model, "--precision", "fp32", "--device", "cpu", "--steps", "4", "--context", "40"]
    short += ["--batch-size", "2", "--checkpointing"]
    assert program.main(short) == 0
    attention = program.use_turbo.__globals__["turbo_attention"]
    wrong = lambda *args, **kwargs: attention(*args, **{**kwargs, "is_causal": False})  # noqa: E731
    monkeypatch.setitem(program.use_turbo.__globals__, "turbo_attention", wrong)
    assert program.main(short) == 1
    assert "FAIL: gradient of model.layers.0.self_attn.q_proj.weight" in capsys.readouterr().err
