# SPDX-License-Identifier: MIT
"""Train a small language model on Turbo: bytes of real text in, the probability of the next byte out.

Text: the sources of the Python standard library on this machine; every twentieth file is held out for validation.
Model: a decoder as in Llama (RMSNorm, rotary positions, causal attention with fewer key heads than query heads,
SwiGLU) from Turbo's Linear, TurboAttention, RMSNorm and SwiGLU. Losses are in bits a byte: 8 is guessing.

The optimiser's weights are float32 in every precision. The layers see

    fp32    float32 weights and activations
    bf16    bf16 copies of the weights, bf16 activations (the default; a CPU without bf16 instructions is slower in it)
    fp8     as bf16, and the GEMMs of the blocks multiply E4M3 numbers, one scale a tensor
    mxfp8   as bf16, and they multiply E4M3 numbers, one scale (a power of two) for 32 numbers
    mxfp4   as bf16, and they multiply E2M1 numbers, one scale for 32 numbers

All of them run on a CPU, where FP8 and FP4 are computed by the reference backend: right, and slower than bf16.

With ``--compare-torch`` the same model in plain torch (bf16, or fp32) starts from the same weights and sees the same
batches. Exit code 1 if the runs differ by more than `lm_report` allows, or if nothing was learned.

    python examples/train_lm.py --precision fp8 --compare-torch --plot loss.png
"""

from __future__ import annotations

import argparse
import collections
import functools
import math
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from digits_report import gradient_faults
from lm_report import BANDS, mean, plot, run_faults
from torch import Tensor, nn
from torch.nn import functional as F

from turbo_attention import TurboAttention
from turbo_core import UnsupportedError, trace_dispatch
from turbo_core.low_precision import Float8QuantConfig, ScaleDtype, ScalingGranularity
from turbo_gemm import Float4Linear, Float8Linear, Linear
from turbo_norm_act import RMSNorm, SwiGLU

WIDTH, HIDDEN, HEAD_DIM, HEADS, KV_HEADS = 128, 384, 32, 4, 2
PEAK_RATE, WARM_UP, CLIP = 4e-3, 0.1, 1.0  # of AdamW; the share of the steps that warms up; the gradient's largest norm

MXFP8 = Float8QuantConfig(granularity=ScalingGranularity.MX_BLOCKWISE, block_size=32, scale_dtype=ScaleDtype.E8M0)
LINEARS: dict[str, Callable[..., nn.Module]] = {
    "fp32": Linear,
    "bf16": Linear,
    "fp8": Float8Linear,
    "mxfp8": functools.partial(Float8Linear, config=MXFP8),
    "mxfp4": Float4Linear,
}


class Parts(NamedTuple):
    """What a model is made of."""

    linear: Callable[..., nn.Module]  # in the blocks
    head: Callable[..., nn.Module]
    norm: Callable[[int], nn.Module]
    swiglu: Callable[[], nn.Module]
    attention: Callable[[], nn.Module]


# --- the same parts in plain torch ----------------------------------------------------------------------------------


class TorchNorm(nn.RMSNorm):
    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        return super().forward(total), total


class TorchSwiGLU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up


class TorchAttention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)


def turbo_parts(precision: str) -> Parts:
    """Turbo's; the head stays in bf16, as is usual."""
    return Parts(LINEARS[precision], Linear, RMSNorm, SwiGLU, functools.partial(TurboAttention, causal=True))


TORCH_PARTS = Parts(nn.Linear, nn.Linear, functools.partial(TorchNorm, eps=1e-6), TorchSwiGLU, TorchAttention)

# --- the model ------------------------------------------------------------------------------------------------------


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions: the halves of each head [B,S,H,D] as pairs, turned by an angle that grows with the position."""
    (cos, sin), (a, b) = turn, x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class Block(nn.Module):
    """Attention, then a gated MLP; each adds to the residual stream, and the norm before the next does the adding."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = parts.norm(WIDTH), parts.norm(WIDTH)
        self.qkv = parts.linear(WIDTH, (HEADS + 2 * KV_HEADS) * HEAD_DIM, bias=False)
        self.attention = parts.attention()
        self.projection = parts.linear(HEADS * HEAD_DIM, WIDTH, bias=False)
        self.gate_up = parts.linear(WIDTH, 2 * HIDDEN, bias=False)
        self.swiglu = parts.swiglu()
        self.down = parts.linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor, residual: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, residual = self.attention_norm(x, residual)
        q, k, v = self.qkv(x).unflatten(-1, (-1, HEAD_DIM)).split([HEADS, KV_HEADS, KV_HEADS], dim=-2)
        x = self.projection(self.attention(rotate(q, turn), rotate(k, turn), v).flatten(-2))
        x, residual = self.mlp_norm(x, residual)
        return self.down(self.swiglu(self.gate_up(x))), residual


class LanguageModel(nn.Module):
    """Logits [B,S,256] of the next byte for bytes [B,S]."""

    def __init__(self, parts: Parts, layers: int, context: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        self.blocks = nn.ModuleList(Block(parts) for _ in range(layers))
        self.norm = parts.norm(WIDTH)
        self.head = parts.head(WIDTH, 256, bias=False)
        speeds = 1000.0 ** (-torch.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))
        angles = (torch.arange(context)[:, None] * speeds)[:, None]
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x, turn = self.embedding(tokens), (self.cos, self.sin)
        residual = torch.zeros_like(x)
        for block in self.blocks:
            x, residual = block(x, residual, turn)
        return self.head(self.norm(x, residual)[0])

    def loss(self, windows: Tensor) -> Tensor:
        """Mean over all bytes but the first of each window, in bits."""
        logits = self(windows[:, :-1]).float()
        return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()) / math.log(2)


def build_models(args: argparse.Namespace) -> dict[str, LanguageModel]:
    """The model on Turbo, and its twin on plain torch where that is asked for, with the same weights."""
    torch.manual_seed(args.seed)
    on_torch = LanguageModel(TORCH_PARTS, args.layers, args.context)
    on_turbo = LanguageModel(turbo_parts(args.precision), args.layers, args.context)
    on_turbo.load_state_dict(on_torch.state_dict())
    return {"turbo": on_turbo, "torch": on_torch} if args.compare_torch else {"turbo": on_turbo}


# --- the text -------------------------------------------------------------------------------------------------------


def read_text() -> tuple[Tensor, Tensor]:
    """The bytes of the standard library's sources for training and for validation; its own tests are left out."""
    folder = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
    files = sorted(path for path in folder.rglob("*.py") if not left_out & set(path.relative_to(folder).parts))
    if len(files) < 20:
        raise SystemExit(f"FAIL: {folder} holds {len(files)} Python sources; a standard library is needed as text")
    shares = [path for number, path in enumerate(files) if number % 20], files[::20]
    texts = (bytearray(b"".join(path.read_bytes() for path in share)) for share in shares)
    train, held_out = (torch.frombuffer(text, dtype=torch.uint8) for text in texts)
    print(f"text: {len(files)} files of {folder}, {len(train) / 1e6:.1f} MB, and {len(held_out) / 1e6:.2f} MB held out")
    return train, held_out


def windows(text: Tensor, starts: Tensor, context: int, device: torch.device) -> Tensor:
    """``context`` bytes and their successors from each start on."""
    return text[starts[:, None] + torch.arange(context + 1)].long().to(device)


# --- training -------------------------------------------------------------------------------------------------------


class Learner:
    """One model in training: low-precision weights in the layers, float32 ones in the optimiser."""

    def __init__(self, model: LanguageModel, precision: str, device: torch.device, steps: int) -> None:
        self.model = model.to(device, torch.float32 if precision == "fp32" else torch.bfloat16)
        self.weights = list(self.model.parameters())
        self.master = [weight.detach().float().clone() for weight in self.weights]
        self.optimizer = torch.optim.AdamW(self.master, lr=PEAK_RATE, betas=(0.9, 0.95), weight_decay=0.1)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, functools.partial(rate, steps=steps))
        self.losses: list[float] = []
        self.seconds = 0.0

    def step(self, batch: Tensor) -> None:
        start = time.perf_counter()
        loss = self.model.loss(batch)
        loss.backward()
        for master, weight in zip(self.master, self.weights, strict=True):
            master.grad, weight.grad = weight.grad.float(), None
        nn.utils.clip_grad_norm_(self.master, CLIP)
        self.optimizer.step()
        self.schedule.step()
        with torch.no_grad():
            for master, weight in zip(self.master, self.weights, strict=True):
                weight.copy_(master)
        self.losses.append(loss.item())  # waits for the device, so the time below is that of the whole step
        self.seconds += time.perf_counter() - start

    def gradients(self, batch: Tensor) -> dict[str, Tensor]:
        """Of every parameter; the weights stay as they are."""
        found = torch.autograd.grad(self.model.loss(batch), self.weights)
        return dict(zip((name for name, _ in self.model.named_parameters()), found, strict=True))

    @torch.no_grad()
    def validation(self, batches: list[Tensor]) -> float:
        return sum(self.model.loss(batch).item() for batch in batches) / len(batches)


def rate(step: int, steps: int) -> float:
    """The learning rate's share of its peak: up linearly, then down along a cosine to a tenth."""
    warm = max(1, round(WARM_UP * steps))
    if step < warm:
        return (step + 1) / warm
    return 0.55 + 0.45 * math.cos(math.pi * (step - warm) / max(1, steps - warm))


def show_backends(learner: Learner, batch: Tensor) -> None:
    """Print which backend serves each op of a step, and how often it is called."""
    with trace_dispatch() as trace:
        learner.gradients(batch)
    calls = collections.Counter(f"{record.op} on {record.backend.name}" for record in trace.records)
    print("a step: " + ", ".join(f"{count} {what}" for what, count in calls.items()))


def train(args: argparse.Namespace, text: Tensor, learners: dict[str, Learner]) -> None:
    """Train all models on the same batches; a line of progress about ten times."""
    generator, device = torch.Generator().manual_seed(args.seed), torch.device(args.device)
    every, done = max(1, args.steps // 10), 0
    for step in range(1, args.steps + 1):
        starts = torch.randint(len(text) - args.context, (args.batch_size,), generator=generator)
        batch = windows(text, starts, args.context, device)
        for learner in learners.values():
            learner.step(batch)
        if step % every == 0 or step == args.steps:
            means = (f"{name} {mean(learner.losses[done:]):6.3f}" for name, learner in learners.items())
            speed = step * args.batch_size * args.context / learners["turbo"].seconds
            print(f"step {step:>5}/{args.steps}   bits a byte: {'  '.join(means)}   {speed:8.0f} tokens/s", flush=True)
            done = step


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train a byte-level language model with Turbo.")
    add = parser.add_argument
    add("--precision", choices=list(LINEARS), default="bf16", help="what the layers compute in")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="default: a GPU if any")
    add("--steps", type=int, default=400)
    add("--batch-size", type=int, default=16)
    add("--context", type=int, default=128, help="bytes that the model sees")
    add("--layers", type=int, default=2)
    add("--seed", type=int, default=0)
    add("--compare-torch", action="store_true", help="train the same model in plain torch too, and compare")
    add("--plot", type=Path, help="PNG of the loss; default: none is written")
    args = parser.parse_args(argv)
    if min(args.steps, args.batch_size, args.context, args.layers) < 1:
        parser.error("--steps, --batch-size, --context and --layers must be at least 1")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Train, show, compare; 0 if the model learned, and as torch does where that was asked."""
    args, start = parse_args(argv), time.perf_counter()
    device = torch.device(args.device)
    place = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    text, held_out = read_text()
    learners = {name: Learner(model, args.precision, device, args.steps) for name, model in build_models(args).items()}
    size = sum(weight.numel() for weight in learners["turbo"].weights)
    print(f"model: {size / 1e6:.2f} M parameters, {args.precision}, {place}, torch {torch.__version__}")

    starts = torch.linspace(0, len(held_out) - args.context - 1, 8 * args.batch_size).long()
    unseen = [windows(held_out, some, args.context, device) for some in starts.split(args.batch_size)]
    gradient_band, loss_band = BANDS[args.precision]
    faults = []
    if args.compare_torch:
        faults += gradient_faults(*(learner.gradients(unseen[0]) for learner in learners.values()), gradient_band)
    show_backends(learners["turbo"], unseen[0])
    train(args, text, learners)
    validation = {name: learner.validation(unseen) for name, learner in learners.items()}
    print("validation, bits a byte: " + ", ".join(f"{name} {value:.3f}" for name, value in validation.items()))
    curves = {name: learner.losses for name, learner in learners.items()}
    faults += run_faults(curves, validation, loss_band)
    if args.plot:
        plot(args.plot, curves)
    for fault in faults:
        print(f"FAIL: {fault}", file=sys.stderr)
    print(f"{'FAIL' if faults else 'PASS'} in {time.perf_counter() - start:.1f} s")
    return 1 if faults else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UnsupportedError as refusal:  # such as a precision that the device does not have
        sys.exit(f"FAIL: {refusal}")
