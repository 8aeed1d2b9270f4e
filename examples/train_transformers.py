# SPDX-License-Identifier: MIT
"""Train a small Llama, Qwen3 or GPT-OSS of Hugging Face's transformers as it is and on Turbo, and compare the two.

The model is built from a configuration, with random weights: nothing is downloaded. The text is that of
`python -m primus_turbo demo`. The weights are float32; with ``--precision bf16`` both run under autocast, with ``fp8``
the linear layers of Turbo's multiply E4M3 numbers besides, one scale a row. Exit code 1 if the runs differ by more than
`BANDS` allows.

    python examples/train_transformers.py --model gpt-oss --checkpointing
"""

from __future__ import annotations

import argparse
import copy
import functools
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GptOssConfig, LlamaConfig, PreTrainedModel, Qwen3Config
from transformers_on_turbo import use_turbo

from primus_turbo.demo.report import gradient_faults, run_faults
from primus_turbo.demo.text import read_text, windows
from turbo_core.low_precision import Float8QuantConfig, ScalingGranularity
from turbo_gemm import Float8Linear, Linear

SIZES = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "use_cache": False,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 32}
POSITIONS = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**SIZES),
    "qwen3": lambda: Qwen3Config(**SIZES),
    "gpt-oss": lambda: GptOssConfig(**SIZES, **EXPERTS, **POSITIONS),
}
ROWWISE = Float8QuantConfig(granularity=ScalingGranularity.ROWWISE)
LINEARS: dict[str, Callable[[nn.Linear], nn.Linear]] = {
    "fp32": Linear.from_float,
    "bf16": Linear.from_float,
    "fp8": functools.partial(Float8Linear.from_float, config=ROWWISE),
}
# of the first batch's gradients, relative; of losses, bits a byte. A token on the edge of two experts may change sides,
# which shows in the router's gradient.
BANDS = {"fp32": (1e-4, 0.01), "bf16": (0.1, 0.03), "fp8": (0.3, 0.06)}
PEAK_RATE = 2e-3  # of AdamW


class Learner:
    """One model in training."""

    def __init__(self, model: PreTrainedModel, precision: str) -> None:
        self.model, self.autocast = model.train(), precision != "fp32"
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, betas=(0.9, 0.95))
        self.losses: list[float] = []

    def loss(self, batch: Tensor) -> Tensor:
        """In bits a byte; transformers shifts the labels itself."""
        with torch.autocast(batch.device.type, torch.bfloat16, enabled=self.autocast):
            return self.model(input_ids=batch, labels=batch).loss / math.log(2)

    def step(self, batch: Tensor) -> None:
        loss = self.loss(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item())

    def gradients(self, batch: Tensor) -> dict[str, Tensor]:
        """Of every parameter; the weights stay as they are."""
        self.loss(batch).backward()
        found = {name: weight.grad.clone() for name, weight in self.model.named_parameters()}
        self.optimizer.zero_grad()
        return found

    @torch.no_grad()
    def validation(self, batches: Sequence[Tensor]) -> float:
        return sum(self.loss(batch).item() for batch in batches) / len(batches)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train a small model of transformers on Turbo, and compare.")
    add = parser.add_argument
    add("--model", choices=list(CONFIGS), default="llama")
    add("--precision", choices=list(LINEARS), default="bf16")
    add("--checkpointing", action="store_true", help="recompute each layer of Turbo's model in its backward")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="default: a GPU if any")
    add("--steps", type=int, default=60)
    add("--batch-size", type=int, default=8)
    add("--context", type=int, default=96, help="bytes that the model sees")
    add("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    if min(args.steps, args.batch_size, args.context) < 1:
        parser.error("--steps, --batch-size and --context must be at least 1")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Train both, compare; 0 if they learned and agree."""
    args = parse_args(argv)
    torch.manual_seed(args.seed)
    text, held_out = read_text()
    stock = AutoModelForCausalLM.from_config(CONFIGS[args.model]()).to(args.device)
    ours = use_turbo(copy.deepcopy(stock), linear=LINEARS[args.precision])
    if args.checkpointing:
        ours.activation_checkpointing_enable()
    learners = {"turbo": Learner(ours, args.precision), "torch": Learner(stock, args.precision)}

    def draw(source: Tensor, generator: torch.Generator) -> Tensor:
        starts = torch.randint(len(source) - args.context, (args.batch_size,), generator=generator)
        return windows(source, starts, args.context - 1, torch.device(args.device))

    generator = torch.Generator().manual_seed(args.seed)
    unseen = [draw(held_out, generator) for _ in range(4)]
    gradient_band, loss_band = BANDS[args.precision]
    faults = gradient_faults(*(learner.gradients(unseen[0]) for learner in learners.values()), gradient_band)
    seconds = dict.fromkeys(learners, 0.0)
    for step in range(1, args.steps + 1):
        batch = draw(text, generator)
        for name, learner in learners.items():
            start = time.perf_counter()
            learner.step(batch)
            seconds[name] += time.perf_counter() - start
        if step % max(1, args.steps // 6) == 0:
            print(f"step {step:>4}   " + "  ".join(f"{name} {one.losses[-1]:6.3f}" for name, one in learners.items()))
    curves = {name: learner.losses for name, learner in learners.items()}
    validation = {name: learner.validation(unseen) for name, learner in learners.items()}
    faults += run_faults(curves, validation, loss_band)
    tokens = args.steps * args.batch_size * args.context
    print("tokens/s: " + ", ".join(f"{name} {tokens / spent:.0f}" for name, spent in seconds.items()))
    for fault in faults:
        print(f"FAIL: {fault}", file=sys.stderr)
    print("FAIL" if faults else "PASS")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
