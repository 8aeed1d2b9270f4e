# SPDX-License-Identifier: MIT
"""The benchmark of attention runs on tiny shapes, in every mode, and does not time what is wrong."""

from __future__ import annotations

import csv
import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from turbo_core import BackendType, GlobalBackendManager, KernelBackend  # noqa: E402

SMOKE = ["--smoke", "--device", "cpu"]
FIELD_COLUMNS = ["TestID", "Platform", "GPU", "Case", "MBS"]


@pytest.fixture
def bench() -> ModuleType:
    return importlib.import_module("benchmark.ops.training.bench_attention_turbo")


@pytest.fixture
def config() -> ModuleType:
    return importlib.import_module("benchmark.ops.training.config")


@pytest.fixture(autouse=True)
def _default_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PRIMUS_TURBO_ATTENTION_BACKEND", "PRIMUS_TURBO_AUTO_TUNE"):
        monkeypatch.delenv(name, raising=False)
    GlobalBackendManager.reset()


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--varlen", "--deterministic"],
        ["--fp8", "--layout", "sbhd"],
        ["--dtype", "fp32", "--layout", "bhsd", "--backend", "TORCH"],
    ],
    ids=" ".join,
)
def test_rows_pass_and_hold_numbers_that_fit_together(
    bench: ModuleType, config: ModuleType, tmp_path: Path, options: list[str]
) -> None:
    path = tmp_path / "out.csv"
    assert bench.main([*SMOKE, *options, "-o", str(path)]) == 0
    rows = read(path)
    shapes = config.SMOKE_VARLEN if "--varlen" in options else config.SMOKE_ATTENTION
    assert list(rows[0]) == bench.COLUMNS and list(rows[0])[: len(FIELD_COLUMNS)] == FIELD_COLUMNS
    assert [row["Case"] for row in rows] == [shape.case for shape in shapes]
    for row, shape in zip(rows, shapes, strict=True):
        assert (row["Check"], row["Backend"], row["Platform"]) == ("PASS", "TORCH", "CPU")
        assert row["Dtype"] == ("fp8" if "--fp8" in options else "fp32" if "fp32" in options else "bf16")
        assert row["Deterministic"] == str("--deterministic" in options)
        for part, share in (("Forward", 1.0), ("Backward", 2.5)):
            took = float(row[f"{part} Time (ms)"])
            assert float(row[f"{part} TFLOPS"]) == pytest.approx(
                share * shape.flops() / (took * 1e9), rel=0.1, abs=1e-4
            )
            if row[f"Flash {part} Ratio"]:
                ratio = float(row[f"Flash {part} Time (ms)"]) / took
                assert float(row[f"Flash {part} Ratio"]) == pytest.approx(ratio, rel=0.02)
        assert bool(row["Flash Forward Ratio"]) == (shape.window is None and not shape.lengths), (
            "what torch has on CPUs"
        )
        assert row["Cudnn Forward Ratio"] == ""


@pytest.mark.parametrize("layout", ["bshd", "sbhd", "bhsd"])
def test_inputs_lie_in_memory_as_the_layout_says(bench: ModuleType, config: ModuleType, layout: str) -> None:
    shape = config.SMOKE_ATTENTION[0]
    inputs = bench.make_inputs(shape, layout, torch.bfloat16, bench.find_machine("cpu"))[0]
    assert inputs.q.shape == inputs.dout.shape == (shape.batch, shape.seqlen, shape.heads, shape.head_dim)
    assert inputs.k.shape == inputs.v.shape == (shape.batch, shape.seqlen, shape.kv_heads, shape.head_dim)
    outermost_first = sorted("bshd", key=lambda letter: -inputs.q.stride("bshd".index(letter)))
    assert "".join(outermost_first) == layout and inputs.q.stride(3) == 1


def test_a_backend_that_cannot_run_is_an_error_row(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.csv"
    assert bench.main([*SMOKE, "--backend", "aiter,torch", "--peers", "", "-o", str(path)]) == 1
    assert [(row["Backend"], row["Check"]) for row in read(path)] == [("AITER", "ERROR"), ("TORCH", "PASS")] * 2
    assert "backend AITER (set in code)" in capsys.readouterr().err


def test_a_backend_without_a_backward_is_timed_forward_and_named(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    impl = importlib.import_module("turbo_attention.pytorch.kernels.attention_impl")
    torch_backend, forwards = impl.AttentionDispatcher.backends[BackendType.TORCH], []

    class ForwardOnly(KernelBackend):
        @classmethod
        def why_not(cls, call: object) -> str | None:
            return None if isinstance(call, impl.ForwardCall) else "there is no backward"

        @classmethod
        def execute(cls, call: object) -> object:
            forwards.append(call)
            return torch_backend.execute(call)

    backends = {BackendType.TURBO: ForwardOnly, BackendType.TORCH: torch_backend}
    monkeypatch.setattr(impl.AttentionDispatcher, "backends", backends)
    path = tmp_path / "out.csv"
    assert bench.main([*SMOKE, "--backend", "turbo", "--peers", "", "-o", str(path)]) == 0
    assert [row["Backend"] for row in read(path)] == ["TURBO/TORCH"] * 2
    assert all(float(row["Backward Time (ms)"]) > 0 for row in read(path))
    assert len(forwards) > 10, "the timed calls of the forward must run on the backend asked for"
    assert "there is no backward" in capsys.readouterr().err


def _scale_last_head(out: torch.Tensor) -> torch.Tensor:
    factor = torch.ones(out.shape[2])
    factor[-1] = 1.05
    return out * factor[:, None].to(out.dtype)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_scale_last_head, "SNR "),
        (lambda out: out.index_fill(1, torch.tensor([out.shape[1] - 1]), torch.nan), "out holds NaN"),
        (lambda out: out + 0.1 * (out.detach() - out), "SNR "),  # the value is right, the gradients are 10 % short
    ],
    ids=["value", "unwritten", "gradient"],
)
def test_what_is_wrong_fails_and_is_not_timed(
    bench: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    spoil: Callable[[torch.Tensor], torch.Tensor],
    message: str,
) -> None:
    right = bench.flash_attn_func
    monkeypatch.setattr(bench, "flash_attn_func", lambda *args, **kwargs: spoil(right(*args, **kwargs)))
    path = tmp_path / "out.csv"
    assert bench.main([*SMOKE, "-o", str(path)]) == 1
    assert [(row["Check"], row["Forward Time (ms)"]) for row in read(path)] == [("FAIL", "")] * 2
    assert message in capsys.readouterr().err


def test_a_wrong_last_sequence_of_ragged_ones_is_noticed(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    right = bench.flash_attn_varlen_func

    def spoilt(*args: object, **kwargs: object) -> torch.Tensor:
        out = right(*args, **kwargs)
        factor = torch.ones(len(out), 1, 1, dtype=out.dtype)
        factor[-5:] = 1.1
        return out * factor

    monkeypatch.setattr(bench, "flash_attn_varlen_func", spoilt)
    assert bench.main([*SMOKE, "--varlen"]) == 1


def test_pairs_are_those_that_a_mask_leaves(config: ModuleType) -> None:
    for causal in (False, True):
        for window in (None, 0, 1, 5, 40):
            if window is not None and not causal:
                continue  # no such shape: the window of `flash_attn_func` is open to the right there
            for lengths in ((), (7, 1, 30)):
                shape = config.AttentionShape("any", 3, 30, 1, 1, 8, causal, window, lengths=lengths)
                count = 0
                for length in lengths or (30, 30, 30):
                    i, j = torch.arange(length)[:, None], torch.arange(length)[None]
                    seen = (j <= i) if causal else torch.ones(length, length, dtype=torch.bool)
                    count += int((seen & (j >= i - (length if window is None else window))).sum())
                assert shape.pairs() == count, shape


def test_the_shapes_are_those_that_are_promised(config: ModuleType) -> None:
    sizes = {(s.batch, s.seqlen, s.heads, s.kv_heads, s.head_dim, s.causal) for s in config.ATTENTION_SHAPES}
    promised = {(4, 4096, 32, 8, 128, True), (4, 4096, 32, 8, 128, False), (2, 16384, 16, 16, 128, True)}
    assert promised | {(8, 2048, 64, 8, 64, True)} <= sizes
    assert [(s.heads, s.kv_heads, s.head_dim, s.sink) for s in config.ATTENTION_SHAPES if s.window == 127] == [
        (64, 8, 64, True)
    ]
    for shape in config.VARLEN_SHAPES:
        assert sum(shape.lengths) == 16384 and (min(shape.lengths), max(shape.lengths)) == (128, 4096)


@pytest.mark.parametrize(
    "arguments",
    [["--backend", "fast"], ["--peers", "fa9"], ["--varlen", "--fp8"], ["--varlen", "--layout", "sbhd"]],
    ids=" ".join,
)
def test_what_makes_no_sense_is_refused(bench: ModuleType, arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main([*SMOKE, *arguments])


def test_shapes_of_the_command_line(bench: ModuleType) -> None:
    assert bench.main(["--device", "cpu", "--shape", "1,33,2,1,16", "--peers", "", "--seconds", "0.01"]) == 0
    with pytest.raises(SystemExit, match="must be B,S,HQ,HKV,D"):
        bench.main(["--device", "cpu", "--shape", "1,33,2"])
    with pytest.raises(SystemExit, match="case 'gpt9' is unknown; there are llama-8b"):
        bench.main(["--device", "cpu", "--cases", "gpt9"])
    with pytest.raises(SystemExit, match="give --smoke, --shape or --cases"):
        bench.main(["--device", "cpu"])
