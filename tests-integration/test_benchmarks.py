# SPDX-License-Identifier: MIT
"""The benchmarks run, on tiny shapes; they write their columns, and refuse to time what is wrong."""

from __future__ import annotations

import csv
import importlib
import itertools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from turbo_core import BackendType, GlobalBackendManager  # noqa: E402

# the columns that users of such benchmarks read, in their order
FIELD_COLUMNS = [
    "TestID",
    "Platform",
    "GPU",
    "Case",
    "MBS",
    "M",
    "N",
    "K",
    "Dtype",
    "Check",
    "Forward Time (ms)",
    "Forward TFLOPS",
    "Backward Time (ms)",
    "Backward TFLOPS",
]
SMOKE = ["--smoke", "--device", "cpu"]


@pytest.fixture
def bench_gemm() -> ModuleType:
    return importlib.import_module("benchmark.ops.training.bench_gemm_turbo")


@pytest.fixture
def overhead() -> ModuleType:
    return importlib.import_module("benchmark.core.bench_dispatch_overhead")


@pytest.fixture(autouse=True)
def _default_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRIMUS_TURBO_GEMM_BACKEND", raising=False)
    monkeypatch.delenv("PRIMUS_TURBO_AUTO_TUNE", raising=False)
    GlobalBackendManager.reset()


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("options", [["fp8", "--granularity", "rowwise"], ["fp8", "--granularity", "mxfp8"], ["fp4"]])
def test_gemm_quantised(bench_gemm: ModuleType, tmp_path: Path, options: list[str]) -> None:
    """The op is checked by its signal-to-noise ratio and timed; so is the product alone, where scales are floats."""
    path = tmp_path / "out.csv"
    assert bench_gemm.main([*SMOKE, "-o", str(path), "--dtype", *options]) == 0
    rows = read(path)
    assert rows and all(row["Check"] == "PASS" and float(row["Backward Time (ms)"]) > 0 for row in rows)
    assert all(bool(row["Gemm Time (ms)"]) is (row["Granularity"] == "rowwise") for row in rows)


# --- bench_gemm_turbo -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_gemm_rows_pass_and_hold_numbers_that_fit_together(bench_gemm: ModuleType, tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "out.csv"
    assert bench_gemm.main([*SMOKE, "--dtype", dtype, "--backend", "TORCH", "-o", str(path)]) == 0
    rows = read(path)
    assert list(rows[0])[: len(FIELD_COLUMNS)] == FIELD_COLUMNS
    assert [row["TestID"] for row in rows] == ["1", "2"]
    for row in rows:
        assert (row["Check"], row["Backend"], row["Dtype"], row["Platform"]) == ("PASS", "TORCH", dtype, "CPU")
        operations = 2 * int(row["M"]) * int(row["N"]) * int(row["K"])
        for part, gemms in (("Forward", 1), ("Backward", 2), ("Dgrad", 1), ("Wgrad", 1)):
            ours, theirs = float(row[f"{part} Time (ms)"]), float(row[f"Torch {part} Time (ms)"])
            assert ours > 0 and theirs > 0
            assert float(row[f"{part} Ratio"]) == pytest.approx(theirs / ours, rel=0.02)
            rate = gemms * operations / (ours * 1e9)
            assert float(row[f"{part} TFLOPS"]) == pytest.approx(rate, rel=0.05, abs=1e-4)


def test_the_backend_column_names_who_served(bench_gemm: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    assert bench_gemm.main([*SMOKE, "--peer", "none", "-o", str(path)]) == 0
    for row in read(path):
        assert row["Backend"] == "TORCH" and row["Forward Time (ms)"]
        assert row["Forward Ratio"] == row["Torch Forward Time (ms)"] == ""


def test_a_backend_that_cannot_run_is_an_error_row(
    bench_gemm: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.csv"
    assert bench_gemm.main([*SMOKE, "--backend", "HIPBLASLT,TORCH", "-o", str(path)]) == 1
    assert [(row["Backend"], row["Check"]) for row in read(path)] == [("HIPBLASLT", "ERROR"), ("TORCH", "PASS")] * 2
    assert "a is on cpu" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda y: y * 1.05, "y: "),
        (lambda y: y.index_fill(0, torch.tensor([y.shape[0] - 1]), torch.nan), "y holds NaN"),
        (lambda y: y + 0.1 * (y.detach() - y), "dx: "),  # the value is right, the gradients are 10 % short
    ],
    ids=["value", "unwritten", "gradient"],
)
def test_what_is_wrong_fails_and_is_not_timed(
    bench_gemm: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    spoil: Callable[[torch.Tensor], torch.Tensor],
    message: str,
) -> None:
    right = bench_gemm.gemm
    monkeypatch.setattr(bench_gemm, "gemm", lambda *args, **kwargs: spoil(right(*args, **kwargs)))
    path = tmp_path / "out.csv"
    assert bench_gemm.main([*SMOKE, "-o", str(path)]) == 1
    assert [(row["Check"], row["Forward Time (ms)"]) for row in read(path)] == [("FAIL", "")] * 2
    assert message in capsys.readouterr().err


def test_shards_share_the_work_out(bench_gemm: ModuleType, tmp_path: Path) -> None:
    identities = []
    for number in range(2):
        path = tmp_path / f"{number}.csv"
        assert bench_gemm.main([*SMOKE, "--num-shards", "2", "--shard-id", str(number), "-o", str(path)]) == 0
        identities.append([row["TestID"] for row in read(path)])
    assert identities == [["1"], ["2"]]
    with pytest.raises(SystemExit, match="--shard-id 2 must be from 0"):
        bench_gemm.main([*SMOKE, "--num-shards", "2", "--shard-id", "2"])


def test_sampled_rows_cover_the_whole_matrix(bench_gemm: ModuleType) -> None:
    shape = bench_gemm.GemmShape("large", 1, 8192, 8192, 8192)
    rows = bench_gemm.sampled_rows(8192, shape, torch.device("cpu"))
    assert (rows // 64).tolist() == list(range(128)), "one row of each stretch of 64"


def test_shapes_are_those_of_the_models() -> None:
    config = importlib.import_module("benchmark.ops.training.config")
    shapes = config.dense_gemm_shapes(["llama3.1-8b", "square-4096"], [1, 2])
    assert [(s.case, s.mbs, s.m, s.n, s.k) for s in shapes if s.mbs == 1] == [
        ("Llama-3.1-8B qkv", 1, 8192, 6144, 4096),
        ("Llama-3.1-8B attn_out", 1, 8192, 4096, 4096),
        ("Llama-3.1-8B gate_up", 1, 8192, 28672, 4096),
        ("Llama-3.1-8B down", 1, 8192, 4096, 14336),
        ("Llama-3.1-8B lm_head", 1, 8192, 128256, 4096),
        ("square-4096", 1, 4096, 4096, 4096),
    ]
    assert {s.m for s in shapes if s.mbs == 2} == {16384}
    # what the shapes imply of a model's size: the GEMMs of all layers and the head, against the published count
    layers = {"Llama-2-7B": 32, "Llama-3.1-70B": 80, "Llama-3.1-405B": 126, "Qwen2.5-72B": 80, "Mistral-7B": 32}
    published = {
        "Llama-2-7B": 6.74,
        "Llama-3.1-70B": 70.6,
        "Llama-3.1-405B": 405.9,
        "Qwen2.5-72B": 72.7,
        "Mistral-7B": 7.24,
    }
    for model in config.DENSE_MODELS:
        if model.name in layers:
            gemms = model.gemms()
            head = gemms.pop("lm_head")
            weights = layers[model.name] * sum(n * k for n, k in gemms.values()) + 2 * head[0] * head[1]
            assert weights / 1e9 == pytest.approx(published[model.name], rel=0.005), model.name
    with pytest.raises(ValueError, match=r"case 'llama9' is unknown; there are square-4096, .*Mistral-7B"):
        config.dense_gemm_shapes(["llama9"], [1])


def test_a_cpu_is_not_sent_through_the_whole_table(bench_gemm: ModuleType) -> None:
    with pytest.raises(SystemExit, match="give --smoke, --shape or --cases"):
        bench_gemm.main(["--device", "cpu"])


# --- bench_dispatch_overhead ----------------------------------------------------------------------------------------


def test_overhead_rows(overhead: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    assert overhead.main([*SMOKE, "-o", str(path)]) == 0
    rows = read(path)
    assert [row["What"] for row in rows if row["Counts"] == "True"] == [
        "dispatcher, default choice",
        "dispatcher, backend named in code",
        "dispatcher, backend named by the variable",
        "dispatcher, auto-tuned winner from the cache",
    ]
    assert [row["What"] for row in rows if row["Counts"] == "False"][0] == "torch.ops.turbo_gemm.gemm"
    assert all(float(row["Direct (us)"]) > 0 for row in rows)
    by_name = {row["What"]: float(row["Added (us)"]) for row in rows}
    assert by_name["turbo_gemm.gemm, recording for autograd"] > by_name["dispatcher, backend named in code"]


def test_overhead_above_the_limit_fails(
    overhead: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a clock that only the dispatcher moves: each choice takes 200 microseconds of it, what it calls none."""
    now = [0.0]
    resolve = overhead.GemmDispatcher.resolve.__func__

    def slow(cls: type, call: object) -> object:
        now[0] += 2e-4
        return resolve(cls, call)

    monkeypatch.setattr(overhead.time, "thread_time", lambda: now[0])
    monkeypatch.setattr(overhead.GemmDispatcher, "resolve", classmethod(slow))
    assert overhead.main([*SMOKE, "--limit-us", "201"]) == 0
    assert "NO" not in capsys.readouterr().out
    assert overhead.main([*SMOKE, "--limit-us", "199"]) == 1
    assert "NO" in capsys.readouterr().out


def test_overhead_measures_the_settings_it_names(overhead: ModuleType) -> None:
    """Each row's setting is in force while it is measured: the reasons that the dispatcher gives say so."""
    call = overhead.GemmCall(torch.ones(2, 2), torch.ones(2, 2), None, False, False, torch.float32)

    def reason() -> str:
        decision = overhead.GemmDispatcher.resolve(call)
        assert decision.backend is BackendType.TORCH
        return str(decision.reason)

    with overhead.setting(backend="TORCH"):
        assert reason() == "set in code"
    with overhead.setting(variable="TORCH"):
        assert reason() == "named by PRIMUS_TURBO_GEMM_BACKEND"
    with overhead.setting(auto_tune=True):
        assert "auto-tuned" in reason()
    with overhead.setting():
        assert "auto-tuned" not in reason() and "TORCH" not in reason()


# --- timing ---------------------------------------------------------------------------------------------------------


def test_timing_takes_turns_and_takes_the_median() -> None:
    timing = importlib.import_module("benchmark.common.timing")
    seen: list[tuple[str, int]] = []
    device = torch.device("cpu")
    result = timing.measure(
        {"a": lambda i: seen.append(("a", i)), "b": lambda i: seen.append(("b", i))}, device, timing.Budget(2, 10, 1.0)
    )
    assert result["a"].calls == result["b"].calls == 10
    timed = seen[6:]  # a first call and two warm-up calls of each
    assert [name for name, _ in timed] == ["a", "a", "b", "b"] * 5
    assert [number for name, number in timed if name == "b"] == list(range(10)), "the inputs rotate by these numbers"


class FakeClock:
    """perf_counter of a machine on which a call takes exactly as long as it says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, timing: ModuleType) -> None:
        self.now = 0.0
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now)

    def take(self, seconds: float) -> None:
        self.now += seconds


def test_timing_settles_each_function_before_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    timing = importlib.import_module("benchmark.common.timing")
    clock = FakeClock(monkeypatch, timing)
    seen: list[str] = []

    def call(name: str) -> None:
        seen.append(name)
        clock.take(0.001)

    budget = timing.Budget(2, 5, 1.0, settle=0.0095)
    result = timing.measure({"a": lambda i: call("a"), "b": lambda i: call("b")}, torch.device("cpu"), budget)
    assert result["a"].calls == 5, "settling is not timed"
    turns = [len(list(same)) for _, same in itertools.groupby(seen)][2:]
    assert turns == [13] * 2 * timing.ROUNDS, "every turn begins with 9.5 milliseconds, in fours, and times one"


def test_timing_stops_early_for_slow_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    timing = importlib.import_module("benchmark.common.timing")
    clock = FakeClock(monkeypatch, timing)
    budget = timing.Budget(warm_up=20, timed=100, seconds=0.05)
    result = timing.measure({"slow": lambda i: clock.take(0.01)}, torch.device("cpu"), budget)
    assert result["slow"].calls == 5
    assert result["slow"].milliseconds == pytest.approx(10)


def test_input_sets_do_not_fit_into_the_cache() -> None:
    timing = importlib.import_module("benchmark.common.timing")
    assert timing.input_sets(bytes_per_set=10 << 20, cache_bytes=60 << 20) == 16  # the most
    assert timing.input_sets(bytes_per_set=50 << 20, cache_bytes=60 << 20) * 50 > 2 * 60
    assert timing.input_sets(bytes_per_set=200 << 20, cache_bytes=60 << 20) == 1


# --- bench_host_overhead --------------------------------------------------------------------------------------------


def test_host_overhead_measures_every_op_and_puts_the_dispatchers_back(tmp_path: Path) -> None:
    host = importlib.import_module("benchmark.core.bench_host_overhead")
    before = vars(host.AutoKernelDispatcher)["resolve"]
    path = tmp_path / "out.csv"
    assert host.main([*SMOKE, "-o", str(path)]) == 0
    rows = read(path)
    ops = {"gemm", "grouped_gemm", "rmsnorm", "swiglu", "flash_attn_func", "gemm_fp8"}
    assert {row["Op"].split()[0] for row in rows} == ops
    assert all(float(row[column]) > 0 for row in rows for column in host.COLUMNS[1:4])
    assert vars(host.AutoKernelDispatcher)["resolve"] is before and not host.Replay.known
