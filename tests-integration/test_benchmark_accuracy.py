# SPDX-License-Identifier: MIT
"""The accuracy tools: figures with known answers, rows that hold them, dump on one run and replay on the next."""

from __future__ import annotations

import csv
import importlib
import math
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from benchmark.accuracy.figures import FIGURES, figures, ulp  # noqa: E402
from turbo_core import GlobalBackendManager, why_no_triton  # noqa: E402

SMOKE = ["--smoke", "--device", "cpu"]


@pytest.fixture
def gemm_accuracy() -> ModuleType:
    return importlib.import_module("benchmark.accuracy.eval_gemm_accuracy")


@pytest.fixture
def grouped_accuracy() -> ModuleType:
    return importlib.import_module("benchmark.accuracy.eval_grouped_gemm_accuracy")


@pytest.fixture
def attention_accuracy() -> ModuleType:
    return importlib.import_module("benchmark.accuracy.eval_attention_accuracy")


@pytest.fixture
def functions_accuracy() -> ModuleType:
    return importlib.import_module("benchmark.accuracy.eval_sf_accuracy")


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# --- figures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "value", "spacing"),
    [
        (torch.bfloat16, 1.0, 2**-7),
        (torch.bfloat16, 1.9, 2**-7),
        (torch.bfloat16, -256.0, 2.0),
        (torch.float16, 1.0, 2**-10),
        (torch.float16, 2.0**-20, 2**-24),  # among the subnormals
        (torch.float32, 0.0, 2.0**-149),
        (torch.float32, 3.0, 2**-22),
    ],
)
def test_ulp_is_the_distance_to_the_next_number(dtype: torch.dtype, value: float, spacing: float) -> None:
    assert ulp(torch.tensor([value], dtype=torch.float64), dtype).item() == spacing
    number = torch.tensor([value]).to(dtype).abs()
    steps = number.view(torch.int16 if dtype.itemsize == 2 else torch.int32) + 1
    assert (steps.view(dtype).double() - number.double()).item() == spacing


def test_figures_of_known_errors() -> None:
    exact = torch.tensor([3.0, 4.0], dtype=torch.float64)
    found = figures(torch.tensor([3.0, 4.5]), exact)
    assert found["Relative Error"] == pytest.approx(0.1)
    assert found["MSE"] == pytest.approx(0.125)
    assert found["Max Abs Error"] == 0.5
    assert found["SNR (dB)"] == pytest.approx(20.0)
    assert found["Cosine"] == pytest.approx(27 / (5 * math.hypot(3, 4.5)))
    assert found["Max ULP"] == 0.5 / 2**-21
    assert found["Mean ULP"] == found["Max ULP"] / 2
    assert found["Wrong Specials"] == 0


def test_special_values_out_of_place_are_counted_and_left_out() -> None:
    exact = torch.tensor([math.nan, math.inf, 1.0, 1e39, 2.0], dtype=torch.float64)
    right = torch.tensor([math.nan, math.inf, 1.0, math.inf, 2.0])  # 1e39 is beyond float32
    assert figures(right, exact)["Wrong Specials"] == 0
    assert figures(right, exact)["Max Abs Error"] == 0.0
    wrong = torch.tensor([0.0, -math.inf, math.nan, 3e38, 2.0])
    assert figures(wrong, exact)["Wrong Specials"] == 4
    assert figures(wrong, exact)["Max Abs Error"] == 0.0
    assert list(figures(wrong, exact)) == FIGURES


# --- the GEMMs ------------------------------------------------------------------------------------------------------


def test_gemm_rows_hold_the_promised_accuracy(gemm_accuracy: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "gemm.csv"
    assert gemm_accuracy.main([*SMOKE, "--ops", ",".join(gemm_accuracy.OPS), "-o", str(path)]) == 0
    rows = read(path)
    assert list(rows[0]) == gemm_accuracy.COLUMNS
    assert [(row["Op"], row["Part"]) for row in rows] == [
        (op, part) for op in gemm_accuracy.OPS for part in ("y", "dx", "dw")
    ]
    snr = {row["Op"]: float(row["SNR (dB)"]) for row in rows}
    assert snr["gemm"] > 50 > 30 > snr["rowwise-e4m3"] > 25 > snr["mx-e5m2"] > 20 > snr["mxfp4"] > 10
    assert {row["Backend"] for row in rows} == {"TORCH"}


def test_a_result_that_misses_its_gate_fails(
    gemm_accuracy: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    product = gemm_accuracy.product
    monkeypatch.setattr(gemm_accuracy, "product", lambda *arguments: product(*arguments) * 1.2)
    path = tmp_path / "gemm.csv"
    assert gemm_accuracy.main([*SMOKE, "--ops", "tensorwise-e4m3", "-o", str(path)]) == 1
    assert [row["Check"] for row in read(path)] == ["FAIL"] * 3


@pytest.mark.parametrize("inputs", ["uniform", "outliers"])
def test_other_inputs(gemm_accuracy: ModuleType, tmp_path: Path, inputs: str) -> None:
    path = tmp_path / "gemm.csv"
    arguments = ["--device", "cpu", "--shape", "64,48,256", "--shape", "33,17,65", "--inputs", inputs]
    assert gemm_accuracy.main([*arguments, "--ops", "gemm,rowwise-e4m3,mxfp4", "-o", str(path)]) == 0
    assert len(read(path)) == 2 * 3 * 3
    assert all(row["Inputs"] == inputs for row in read(path))


def test_gemm_dump_and_replay(gemm_accuracy: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recorded, path = tmp_path / "recorded", tmp_path / "again.csv"
    ops = ["--ops", "gemm,mx-e4m3"]
    assert gemm_accuracy.main([*SMOKE, *ops, "--dump", str(recorded)]) == 0
    replay = [*SMOKE, *ops, "--seed", "7", "--replay", str(recorded), "-o", str(path)]  # inputs are those of the dump
    assert gemm_accuracy.main(replay) == 0
    for row in read(path):
        assert (float(row["Max Abs Difference To Dump"]), row["Bits Differ From Dump"]) == (0.0, "0")
        assert row["Dumped On"].startswith("CPU")
    product = gemm_accuracy.product
    monkeypatch.setattr(gemm_accuracy, "product", lambda *arguments: product(*arguments) + 0.5)
    gemm_accuracy.main(replay)
    assert all(float(row["Max Abs Difference To Dump"]) > 0.3 for row in read(path) if row["Part"] == "y")
    with pytest.raises(SystemExit, match=r"mx-hybrid_96x64x160_bf16.pt is missing"):
        gemm_accuracy.main([*SMOKE, "--ops", "mx-hybrid", "--replay", str(recorded)])


def test_a_forced_backend_is_named(gemm_accuracy: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "gemm.csv"
    try:
        gemm_accuracy.main([*SMOKE, "--ops", "gemm", "--backend", "torch", "-o", str(path)])
    finally:
        GlobalBackendManager.reset()
    assert {row["Backend"] for row in read(path)} == {"TORCH"}
    with pytest.raises(SystemExit):
        gemm_accuracy.main([*SMOKE, "--ops", "gemm_fp9"])


# --- the grouped GEMMs ----------------------------------------------------------------------------------------------


def test_grouped_gemm_rows_hold_the_promised_accuracy(grouped_accuracy: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "grouped.csv"
    ops = ",".join(grouped_accuracy.OPS)
    assert grouped_accuracy.main([*SMOKE, "--ops", ops, "--lens", "many-empty", "-o", str(path)]) == 0
    rows = read(path)
    assert list(rows[0]) == grouped_accuracy.COLUMNS
    assert [(row["Op"], row["Part"]) for row in rows] == [
        (op, part) for op in grouped_accuracy.OPS for part in ("y", "dx", "dw")
    ]
    snr = {row["Op"]: float(row["SNR (dB)"]) for row in rows}
    assert snr["grouped_gemm"] > 50 > 30 > snr["rowwise-e4m3"] > 25 > snr["mx-e5m2"] > 20 > snr["mxfp4"] > 10
    assert {row["Backend"] for row in rows} == {"TORCH"}


def test_grouped_gemm_that_misses_its_gate_fails(
    grouped_accuracy: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    product = grouped_accuracy.product
    monkeypatch.setattr(grouped_accuracy, "product", lambda *arguments: product(*arguments) * 1.2)
    path = tmp_path / "grouped.csv"
    assert grouped_accuracy.main([*SMOKE, "--ops", "rowwise-e4m3", "--lens", "zipf", "-o", str(path)]) == 1
    assert [row["Check"] for row in read(path)] == ["FAIL"] * 3


def test_grouped_gemm_dump_and_replay(
    grouped_accuracy: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recorded, path = tmp_path / "recorded", tmp_path / "again.csv"
    options = [*SMOKE, "--ops", "grouped_gemm", "--lens", "zipf,one-takes-all"]
    assert grouped_accuracy.main([*options, "--dump", str(recorded)]) == 0
    replay = [*options, "--seed", "7", "--replay", str(recorded), "-o", str(path)]  # inputs are those of the dump
    assert grouped_accuracy.main(replay) == 0
    assert {(row["Lens"], row["Bits Differ From Dump"]) for row in read(path)} == {
        ("zipf", "0"),
        ("one-takes-all", "0"),
    }
    product = grouped_accuracy.product
    monkeypatch.setattr(grouped_accuracy, "product", lambda *arguments: product(*arguments) + 0.5)
    grouped_accuracy.main(replay)
    assert all(float(row["Max Abs Difference To Dump"]) > 0.3 for row in read(path) if row["Part"] == "y")


# --- attention ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["--causal", "--with-outliers"], ["--uniform-dist"]], ids=" ".join)
def test_attention_rows(attention_accuracy: ModuleType, tmp_path: Path, options: list[str]) -> None:
    path = tmp_path / "attention.csv"
    shapes = ["--shape", "2,65,4,2,24", "--shape", "1,33,3,1,16"]
    assert attention_accuracy.main(["--device", "cpu", *shapes, *options, "-o", str(path)]) == 0
    rows = read(path)
    assert list(rows[0]) == attention_accuracy.COLUMNS
    assert [(row["Op"], row["Part"]) for row in rows] == [
        (op, part) for op in attention_accuracy.OPS for part in ("out", "lse", "dq", "dk", "dv")
    ] * 2
    inputs = {"--with-outliers": "outliers", "--uniform-dist": "uniform"}.get((options or [""])[-1], "normal")
    assert {row["Inputs"] for row in rows} == {inputs}
    assert {row["Causal"] for row in rows} == {str("--causal" in options)}
    for row in rows:
        assert float(row["SNR (dB)"]) > (45 if row["Op"] == "attention" else 15), row


def test_attention_that_misses_its_gate_fails(
    attention_accuracy: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    attend = attention_accuracy.attend
    monkeypatch.setattr(attention_accuracy, "attend", lambda *arguments: [x * 1.2 for x in attend(*arguments)])
    path = tmp_path / "attention.csv"
    assert attention_accuracy.main([*SMOKE, "--ops", "attention-fp8", "-o", str(path)]) == 1
    assert [row["Check"] for row in read(path)] == ["FAIL"] * 5


def test_attention_dump_and_replay(
    attention_accuracy: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recorded, path = tmp_path / "recorded", tmp_path / "again.csv"
    assert attention_accuracy.main([*SMOKE, "--dump", str(recorded)]) == 0
    replay = [*SMOKE, "--seed", "7", "--replay", str(recorded), "-o", str(path)]  # inputs are those of the dump
    assert attention_accuracy.main(replay) == 0
    assert {row["Bits Differ From Dump"] for row in read(path)} == {"0"}
    attend = attention_accuracy.attend

    def moved(*arguments: object) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = attend(*arguments)
        return out + 0.5, lse

    monkeypatch.setattr(attention_accuracy, "attend", moved)
    attention_accuracy.main(replay)
    assert all(float(row["Max Abs Difference To Dump"]) > 0.3 for row in read(path) if row["Part"] == "out")
    with pytest.raises(SystemExit, match=r"attention_1x70x4x2x32_causal_bf16.pt is missing"):
        attention_accuracy.main([*SMOKE, "--causal", "--replay", str(recorded)])


def test_a_shape_of_attention_has_five_sizes(attention_accuracy: ModuleType) -> None:
    with pytest.raises(SystemExit, match="must be B,S,HQ,HKV,D"):
        attention_accuracy.main(["--device", "cpu", "--shape", "64,64,64"])


# --- elementary functions -------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, for infinities in Triton's interpreter
def test_functions_are_within_an_ulp_in_16_bits(functions_accuracy: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "functions.csv"
    assert functions_accuracy.main([*SMOKE, "--dtypes", "fp16,fp32", "-o", str(path)]) == 0
    rows = read(path)
    assert list(rows[0]) == functions_accuracy.COLUMNS
    assert {row["Function"] for row in rows} == set(functions_accuracy.FUNCTIONS)
    for row in rows:
        assert row["Wrong Specials"] == "0", row
        if row["Dtype"] == "fp16":
            assert float(row["Max ULP"]) < 1.5, row
    libraries = {row["Library"] for row in rows if row["Function"] == "exp"}
    assert libraries == ({"torch"} if why_no_triton(torch.device("cpu")) else {"torch", "triton"})


def test_functions_dump_and_replay(functions_accuracy: ModuleType, tmp_path: Path) -> None:
    recorded, path = tmp_path / "recorded", tmp_path / "again.csv"
    arguments = [*SMOKE, "--functions", "exp,pow", "--dtypes", "bf16"]
    functions_accuracy.main([*arguments, "--dump", str(recorded)])
    dumped = torch.load(recorded / "exp_bf16.pt", weights_only=True)
    dumped["results"]["torch"][20] += 8
    torch.save(dumped, recorded / "exp_bf16.pt")
    assert functions_accuracy.main([*arguments, "--seed", "3", "--replay", str(recorded), "-o", str(path)]) == 0
    rows = {(row["Function"], row["Library"]): row for row in read(path)}
    assert rows["exp", "torch"]["Bits Differ From Dump"] == "1"
    assert rows["pow", "torch"]["Bits Differ From Dump"] == "0"


@pytest.mark.parametrize(
    "arguments",
    [["--functions", "sin"], ["--dtypes", "fp8"], ["--count", "7"], ["--dump", "a", "--replay", "b"]],
)
def test_what_makes_no_sense_is_refused(functions_accuracy: ModuleType, arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        functions_accuracy.main(arguments)
