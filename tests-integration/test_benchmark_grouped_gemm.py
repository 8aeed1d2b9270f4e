# SPDX-License-Identifier: MIT
"""The benchmark of grouped GEMM runs on tiny shapes, in every mode, and does not time what is wrong."""

from __future__ import annotations

import csv
import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from turbo_core import GlobalBackendManager  # noqa: E402
from turbo_testing import cases  # noqa: E402
from turbo_testing.group_lens import GROUP_LENS, group_lens  # noqa: E402

SMOKE = ["--smoke", "--device", "cpu"]
FIELD_COLUMNS = ["TestID", "Platform", "GPU", "Case", "MBS", "M", "N", "K", "Dtype", "Check"]
FIELD_COLUMNS += [f"{part} {unit}" for part in ("Forward", "Backward") for unit in ("Time (ms)", "TFLOPS")]

MODES = {"fp8": "tensorwise", "fp4": "mxfp4"}  # the granularities that are meant where none is named


@pytest.fixture
def bench() -> ModuleType:
    return importlib.import_module("benchmark.ops.training.bench_grouped_gemm_turbo")


@pytest.fixture
def sides() -> ModuleType:
    return importlib.import_module("benchmark.ops.training.grouped_sides")


@pytest.fixture
def config() -> ModuleType:
    return importlib.import_module("benchmark.ops.training.config")


@pytest.fixture
def exact() -> ModuleType:
    return importlib.import_module("benchmark.ops.training.grouped_check")


@pytest.fixture(autouse=True)
def _default_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PRIMUS_TURBO_GROUPED_GEMM_BACKEND", "PRIMUS_TURBO_AUTO_TUNE"):
        monkeypatch.delenv(name, raising=False)
    GlobalBackendManager.reset()


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# --- rows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "options"),
    [("bf16", []), ("fp32", ["--schedule", "work_steal"]), ("fp16", ["--lens", "one-takes-all,many-empty"])],
    ids=["bf16", "fp32", "fp16"],
)
def test_rows_pass_and_hold_numbers_that_fit_together(
    bench: ModuleType, config: ModuleType, tmp_path: Path, dtype: str, options: list[str]
) -> None:
    path = tmp_path / "out.csv"
    assert bench.main([*SMOKE, "--dtype", dtype, "--backend", "TORCH", "-o", str(path), *options]) == 0
    rows = read(path)
    assert list(rows[0]) == list(bench.COLUMNS) and list(rows[0])[: len(FIELD_COLUMNS)] == FIELD_COLUMNS
    lens = options[1].split(",") if "--lens" in options else ["balanced", "zipf"]
    assert [(row["G"], row["Lens"]) for row in rows] == [
        (str(size[0]), kind) for size in config.SMOKE_GROUPED for kind in lens
    ]
    for row in rows:
        assert (row["Check"], row["Backend"], row["Dtype"], row["Platform"]) == ("PASS", "TORCH", dtype, "CPU")
        assert row["Schedule"] == ("work_steal" if "work_steal" in options else "static")
        assert int(row["M"]) == int(row["Rows"]) // int(row["G"])
        operations = 2 * int(row["Rows"]) * int(row["N"]) * int(row["K"])
        for part, products in (("Forward", 1), ("Backward", 2), ("Dgrad", 1), ("Wgrad", 1)):
            ours, loop = float(row[f"{part} Time (ms)"]), float(row[f"Loop {part} Time (ms)"])
            assert float(row[f"Loop {part} Ratio"]) == pytest.approx(loop / ours, rel=0.02)
            rate = products * operations / (ours * 1e9)
            assert float(row[f"{part} TFLOPS"]) == pytest.approx(rate, rel=0.05, abs=1e-4)
            if int(row["K"]) % 8:
                assert row[f"Torch {part} Ratio"] == "", "torch's grouped matmul takes rows of whole 16 bytes"
        for part in ("Forward", "Backward"):
            assert float(row[f"{part} Host (us)"]) > 0 and float(row[f"Loop {part} Host (us)"]) > 0


@pytest.mark.parametrize(
    "options",
    [
        ["fp8"],
        ["fp8", "--granularity", "rowwise"],
        ["fp8", "--granularity", "blockwise"],
        ["fp8", "--granularity", "mxfp8"],
        ["fp4"],
    ],
    ids=" ".join,
)
def test_quantised(bench: ModuleType, tmp_path: Path, options: list[str]) -> None:
    """The op is checked by its signal-to-noise ratio and timed; so are the products alone, where scales are floats."""
    path = tmp_path / "out.csv"
    assert bench.main([*SMOKE, "--lens", "many-empty", "-o", str(path), "--dtype", *options]) == 0
    rows = read(path)
    assert {row["Granularity"] for row in rows} == {options[-1] if "--granularity" in options else MODES[options[0]]}
    for row in rows:
        assert row["Check"] == "PASS" and float(row["Backward Time (ms)"]) > 0 and not row["Dgrad Time (ms)"]
        for part in ("Gemm", "Wgrad Gemm"):
            assert bool(row[f"{part} Time (ms)"]) is not row["Granularity"].startswith("mx")
        if int(row["K"]) % 8:
            assert row["Bf16 Forward Ratio"] == "", "torch's grouped matmul takes rows of whole 16 bytes"


def scaled_grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor,
    *,
    offs: torch.Tensor,
    out_dtype: torch.dtype,
    use_fast_accum: bool,
) -> torch.Tensor:
    """What torch's product of this name computes on a GPU, with the layouts that it demands."""
    assert a.stride(-1) == 1 and b.stride(-2) == 1 and offs.dtype == torch.int32 and not use_fast_accum
    assert a_scale.dtype == b_scale.dtype == torch.float32 and a_scale.is_contiguous() and b_scale.is_contiguous()
    bounds = list(zip([0, *offs.tolist()], offs.tolist()))
    if b.dim() == 3:  # [R,K] times [G,K,N], scales [R] and [G,N]
        assert a_scale.shape == a.shape[:1] and b_scale.shape == (b.shape[0], b.shape[2])
        wide, scales = a.float() * a_scale[:, None], b_scale[:, None]
        parts = [wide[start:end] @ (b[g].float() * scales[g]) for g, (start, end) in enumerate(bounds)]
        return torch.cat(parts).to(out_dtype)
    # [X,P] times [P,Y], scales [G X] and [G Y]
    left, right = a_scale.view(len(offs), a.shape[0], 1), b_scale.view(len(offs), 1, b.shape[1])
    parts = [
        (a[:, start:end].float() * left[g]) @ (b[start:end].float() * right[g]) for g, (start, end) in enumerate(bounds)
    ]
    return torch.stack(parts).to(out_dtype)


def test_torchs_scaled_product_is_given_the_same_operands(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch, "_scaled_grouped_mm", scaled_grouped_mm)
    args = bench.parse_args(["--dtype", "fp8", "--granularity", "rowwise"])
    shape = bench.GroupedShape("odd", 1, 5, 67, 33, 17, lens="zipf")
    sets = bench.make_inputs(shape, torch.bfloat16, bench.find_machine("cpu"))
    parts = bench.peer_parts("torch", sets, args)
    assert sorted(parts) == ["Gemm", "Wgrad Gemm"] and bench.check(shape, sets[0], parts, 25.0) is None


def test_a_product_alone_that_is_wrong_fails(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = bench.QuantGroupedGemm.product_parts

    def wrong(self: object, sets: list[object]) -> dict[str, Callable[[int], torch.Tensor]]:
        parts = right(self, sets)
        return parts | {"Wgrad Gemm": lambda number: 1.2 * parts["Wgrad Gemm"](number)}

    monkeypatch.setattr(bench.QuantGroupedGemm, "product_parts", wrong)
    assert bench.main([*SMOKE, "--dtype", "fp8", "--lens", "zipf"]) == 1
    assert "dw (Wgrad Gemm): SNR" in capsys.readouterr().err


def test_no_peers_and_no_memory_to_count(bench: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    assert bench.main([*SMOKE, "--peers", "", "--peak-memory", "-o", str(path)]) == 0
    for row in read(path):
        assert row["Forward Time (ms)"] and not row["Loop Forward Time (ms)"] and not row["Torch Forward Ratio"]
        assert row["Peak (MiB)"] == "", "torch counts the memory of a GPU alone"


def test_a_backend_that_cannot_run_is_an_error_row(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.csv"
    options = ["--backend", "HIPBLASLT,TORCH", "--schedule", "work_steal", "--lens", "zipf"]
    assert bench.main([*SMOKE, *options, "-o", str(path)]) == 1
    assert [(row["Backend"], row["Check"]) for row in read(path)] == [("HIPBLASLT", "ERROR"), ("TORCH", "PASS")] * 2
    assert "schedule is 'work_steal'" in capsys.readouterr().err


def test_shards_share_the_work_out(bench: ModuleType, tmp_path: Path) -> None:
    identities = []
    for number in range(2):
        path = tmp_path / f"{number}.csv"
        options = ["--num-shards", "2", "--shard-id", str(number), "--peers", ""]
        assert bench.main([*SMOKE, *options, "-o", str(path)]) == 0
        identities.append([row["TestID"] for row in read(path)])
    assert identities == [["1", "3"], ["2", "4"]]


# --- what is wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda y: y * 1.05, "y (Forward): "),
        (lambda y: y.index_fill(0, torch.tensor([y.shape[0] - 1]), torch.nan), "y (Forward) holds NaN"),
        (lambda y: y + 0.1 * (y.detach() - y), "dx (Backward): "),  # the value is right, the gradients 10 % short
    ],
    ids=["value", "unwritten", "gradient"],
)
def test_what_is_wrong_fails_and_is_not_timed(
    bench: ModuleType,
    sides: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    spoil: Callable[[torch.Tensor], torch.Tensor],
    message: str,
) -> None:
    right = sides.grouped_gemm
    monkeypatch.setattr(sides, "grouped_gemm", lambda *args, **kwargs: spoil(right(*args, **kwargs)))
    path = tmp_path / "out.csv"
    assert bench.main([*SMOKE, "--lens", "zipf", "-o", str(path)]) == 1
    assert [(row["Check"], row["Forward Time (ms)"]) for row in read(path)] == [("FAIL", "")] * 2
    assert message in capsys.readouterr().err


def test_the_gradient_of_an_empty_group_is_zero(
    bench: ModuleType, sides: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = sides.Turbo.wgrad

    def wrong(self: object, dy: torch.Tensor, x: torch.Tensor, groups: object) -> torch.Tensor:
        dw = right(self, dy, x, groups)
        dw[groups.lens == 0] = 2.0**-20  # type: ignore[attr-defined]
        return dw

    monkeypatch.setattr(sides.Turbo, "wgrad", wrong)
    assert bench.main([*SMOKE, "--lens", "balanced"]) == 0
    assert bench.main([*SMOKE, "--lens", "many-empty"]) == 1
    assert "dw (Wgrad) of an empty group is not zero" in capsys.readouterr().err


def test_the_rows_at_the_edges_of_groups_are_compared(exact: ModuleType, sides: ModuleType) -> None:
    groups = sides.groups_of(group_lens("zipf", 32, 128 * 782), torch.device("cpu"))
    rows = set(exact.checked_rows(128 * 782, groups.bounds, 128, torch.device("cpu")).tolist())
    assert {edge for start, end in groups.bounds for edge in (start, end - 1)} <= rows
    assert {row // 782 for row in rows} >= set(range(128)), "and one of each stretch"


def test_what_is_compared_with_is_the_formula_of_the_tests(exact: ModuleType, sides: ModuleType) -> None:
    lens, generator = [3, 0, 9, 1], torch.Generator().manual_seed(0)
    groups = sides.groups_of(lens, torch.device("cpu"))
    x, w, dy = (torch.randn(s, generator=generator).double() for s in ((13, 5), (4, 7, 5), (13, 7)))
    x, w = x.requires_grad_(), w.requires_grad_()
    y = cases.load("turbo-grouped-gemm").grouped_gemm(x, w, lens, trans_b=True)
    dx, dw = torch.autograd.grad(y, (x, w), dy)
    x, w, rows, columns = x.detach(), w.detach(), torch.tensor([0, 2, 3, 11, 12]), torch.tensor([0, 6])
    torch.testing.assert_close(exact.exact_product(x, w.transpose(1, 2), groups.bounds, rows), y.detach()[rows])
    torch.testing.assert_close(exact.exact_product(dy, w, groups.bounds, rows), dx[rows])
    torch.testing.assert_close(exact.exact_wgrad(dy, x, groups.bounds, columns), dw[:, columns])


# --- the command ----------------------------------------------------------------------------------------------------


def test_shapes_are_those_of_the_models(config: ModuleType) -> None:
    shapes = config.grouped_gemm_shapes(["deepseek-v3"], [2], None, ["balanced", "zipf"])
    assert [(s.case, s.ep, s.groups, s.rows, s.n, s.k) for s in shapes if s.lens == "zipf"] == [
        (f"DeepSeek-V3 {gemm}", ep, 256 // ep, 2 * 4096 * 8, n, k)
        for ep in (8, 32)
        for gemm, n, k in (("gate_up", 4096, 7168), ("down", 7168, 2048))
    ]
    assert {s.ep for s in config.grouped_gemm_shapes(None, [1], [16], ["zipf"])} == {16}
    assert not config.grouped_gemm_shapes(["mixtral-8x7b"], [1], [16], ["zipf"]), "8 experts, 16 ranks"
    assert {s.lens for s in config.grouped_gemm_shapes(None, [1], None, list(GROUP_LENS))} == set(GROUP_LENS)
    with pytest.raises(ValueError, match=r"case 'llama3.1-8b' is unknown; there are DeepSeek-V3, .*Grok-2"):
        config.grouped_gemm_shapes(["llama3.1-8b"], [1], None, ["zipf"])


def test_the_experts_of_a_model_are_most_of_its_parameters(config: ModuleType) -> None:
    """Layers with experts and billions of parameters, as published; the rest is attention, embeddings, dense layers."""
    published = {
        "DeepSeek-V3": (58, 671),
        "DeepSeek-V2": (59, 236),
        "DeepSeek-V2-Lite": (26, 15.7),
        "Qwen3-30B": (48, 30.5),
        "Qwen3-235B": (94, 235),
        "Mixtral-8x7B": (32, 46.7),
        "Mixtral-8x22B": (56, 141),
        "GPT-OSS-20B": (24, 20.9),
        "Kimi-K2": (60, 1040),
    }
    for model in config.MOE_MODELS:
        weights = model.experts * sum(n * k for n, k in model.gemms().values())
        if model.name in published:
            layers, billions = published[model.name]
            assert 0.9 < layers * weights / 1e9 / billions < 1, model.name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "cpu"], "give --smoke, --shape or --cases"),
        (["--device", "cpu", "--shape", "8,16,32"], "must be G,M,N,K"),
        (["--device", "cpu", "--cases", "llama9"], "case 'llama9' is unknown"),
    ],
)
def test_refusals(bench: ModuleType, options: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        bench.main(options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--lens", "even"], "--lens even: accepted are balanced"),
        (["--peers", "jax"], "--peers jax: accepted are torch"),
        (["--dtype", "fp8", "--granularity", "mxfp4"], "--granularity mxfp4: --dtype fp8 has tensorwise"),
        (["--granularity", "rowwise"], "--granularity rowwise: --dtype bf16 has none"),
    ],
)
def test_options_that_do_not_fit(
    bench: ModuleType, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    with pytest.raises(SystemExit):
        bench.main([*SMOKE, *options])
    assert message in capsys.readouterr().err


# --- blocks with experts --------------------------------------------------------------------------------------------


def test_experts_of_a_block_are_their_formula() -> None:
    """torch's, in float32, which every implementation is checked against; a token's rows lie one batch apart."""
    experts, blocks = (importlib.import_module(f"benchmark.model.{name}") for name in ("experts", "blocks"))
    shape = blocks.SHAPES["smoke-experts"]
    module = experts.TorchExperts(shape, "zipf", torch.device("cpu"), torch.float32)
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.1, generator=generator)
    x = torch.randn(2, 7, shape.hidden, generator=generator)
    lens = group_lens("zipf", shape.experts, shape.topk * 14)
    owner = [expert for expert, length in enumerate(lens) for _ in range(length)]
    expected = torch.zeros(14, shape.hidden)
    for row, expert in enumerate(owner):
        gate, up = (module.gate_up[expert] @ x.view(14, -1)[row % 14]).chunk(2)
        expected[row % 14] += module.down[expert] @ (torch.nn.functional.silu(gate) * up) / shape.topk
    torch.testing.assert_close(module(x).view(14, -1), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lens", ["balanced", "many-empty"])
def test_a_training_step_of_blocks_with_experts(tmp_path: Path, lens: str) -> None:
    step, path = importlib.import_module("benchmark.model.bench_training_step"), tmp_path / "out.csv"
    names = ["torch", "turbo-bf16", "turbo-fp8-rowwise", "turbo-fp8-blockwise", "turbo-mxfp8"]
    options = ["--model", "gpt-oss-20b", "--lens", lens, "--implementations", ",".join(names)]
    assert step.main([*SMOKE, *options, "-o", str(path)]) == 0
    rows = read(path)
    assert [(row["Model"], row["Implementation"], row["Check"]) for row in rows] == [
        ("smoke-experts", name, "PASS") for name in names
    ]
    assert len({row["SNR (dB)"] for row in rows}) == len(names), "each computes in its own precision"


# --- what the host does ---------------------------------------------------------------------------------------------


def test_host_time_is_the_median_until_a_call_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    timing = importlib.import_module("benchmark.common.timing")
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def call(number: int) -> None:
        now[0] += 1e-3 if number == 0 else 2e-6

    assert timing.host_microseconds({"a": call}, torch.device("cpu"), 5)["a"] == pytest.approx(2.0)
