# SPDX-License-Identifier: MIT
"""The pytest plugin, seen from outside: each test runs pytest on a small file in a process of its own."""

import functools
import os
import re
import sys
from pathlib import Path

import pytest

import turbo_core
from turbo_testing import devices, plugin

pytest_plugins = ("pytester",)

COMMON = Path(plugin.__file__).parents[1]
CORE = Path(turbo_core.__file__).parents[1]


TORCH = ("torch", "functorch", "triton")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """site(*names) -> a folder with links to the installed packages, less those whose names start with one of names."""

    @functools.cache
    def make(*names):
        folder = tmp_path_factory.mktemp("site")  # outside pytester's folder, which is searched for tests
        for entry in Path(pytest.__file__).parents[1].iterdir():
            if not entry.name.startswith((*names, "__pycache__")) and not entry.name.endswith(".pth"):
                (folder / entry.name).symlink_to(entry)
        return folder

    return make


@pytest.fixture
def run(pytester, monkeypatch, site):
    """run(source, *arguments) -> result of pytest on that source, in a fresh process with only our plugin added.

    Without torch and triton unless `lacking` says otherwise: they take seconds to import. `first` goes before all
    other folders on the path.
    """
    for name in list(os.environ):
        if name.startswith(("PYTEST_", "TURBO_", "TRITON_INTERPRET")) or name.endswith("_VISIBLE_DEVICES"):
            monkeypatch.delenv(name)
    launcher = pytester.path / "launcher"  # -S: only our path, not the environment's site-packages
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    launcher.chmod(0o755)

    def go(source, *arguments, lacking=TORCH, first=None, gpus=False):
        path = [*([] if first is None else [first]), site(*lacking), COMMON, CORE]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, path)))
        if not gpus:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
            monkeypatch.setenv("HIP_VISIBLE_DEVICES", "")
        pytester.makepyfile(source)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(launcher))
            # turbo-sim's plugin announces itself to every pytest, but an editable install cannot be imported under -S
            ours = ("-p", "no:turbo_sim", "-p", "turbo_testing.plugin")
            return pytester.runpytest_subprocess(*ours, *arguments, timeout=120)

    return go


SELECTION = """
    import pytest

    class MultiProcessTestCase: pass

    def test_plain(): pass
    @pytest.mark.deterministic
    def test_repeat(): pass
    @pytest.mark.dist
    def test_ranks(): pass
    class TestTorch(MultiProcessTestCase):
        def test_derived(self): pass
    @pytest.mark.audit_full
    def test_long_audit(): pass
"""


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ([], {"test_plain", "test_repeat", "test_ranks", "test_derived"}),
        (["--deterministic-only"], {"test_repeat"}),
        (["--dist-only"], {"test_ranks", "test_derived"}),
        (["-m", "audit_full"], {"test_long_audit"}),
        (["-m", "not dist"], {"test_plain", "test_repeat", "test_derived"}),
    ],
)
def test_selection(run, arguments, expected):
    result = run(SELECTION, "-v", "--strict-markers", *arguments)
    assert set(re.findall(r"(test_\w+) PASSED", result.stdout.str())) == expected
    assert result.ret == 0


def test_both_only_options_are_a_usage_error(run):
    result = run(SELECTION, "--deterministic-only", "--dist-only")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*exclude each other*"])


def test_what_was_left_out_is_counted(run):
    result = run(SELECTION, "--deterministic-only")
    result.stdout.fnmatch_lines(["*skipped, by reason*", "4  --deterministic-only (deselected)"])
    run(SELECTION).stdout.fnmatch_lines(["1  run with -m audit_full (deselected)"])


def test_skips_are_counted_by_reason(run):
    result = run("""
        import pytest

        @pytest.mark.gpu
        def test_a(): raise AssertionError
        @pytest.mark.gpu(count=2)
        def test_b(): raise AssertionError
        @pytest.mark.skipif(True, reason="no such thing")
        def test_c(): pass
        def test_d(): pytest.skip("no such thing")
        def test_e(): pass
    """)
    result.stdout.fnmatch_lines(
        ["*skipped, by reason*", "2  needs a GPU; this run is on the CPU", "2  no such thing"], consecutive=False
    )
    result.assert_outcomes(passed=1, skipped=4)


def test_a_skipped_module_says_so(run):
    run("import pytest; pytest.skip('not here', allow_module_level=True)").stdout.fnmatch_lines(
        ["1  not here (whole module)"]
    )


def test_no_table_when_nothing_was_skipped(run):
    assert "by reason" not in run("def test(): pass").stdout.str()


def header(result) -> str:
    """The first line that a plugin adds below pytest's own `platform` line (and its `cachedir` line with -v)."""
    lines = [line for line in result.stdout.lines if not line.startswith("cachedir")]
    return lines[next(i for i, line in enumerate(lines) if line.startswith("platform")) + 1]


def test_header_and_interpreter_without_a_gpu(run):
    pytest.importorskip("triton", reason="triton is not installed")
    result = run(
        """
        import os

        def test():
            import triton
            assert os.environ["TRITON_INTERPRET"] == "1"
            assert triton.runtime.interpreter._turbo_core_patched
    """,
        lacking=(),
    )
    assert result.ret == 0
    assert re.fullmatch(r"turbo: CPU; torch \S+; triton \d\S+; interpreter on", header(result))


def test_the_callers_interpreter_choice_holds(run, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setenv("TURBO_TEST_ARCH", "gfx950")
    result = run("import os\ndef test(): assert os.environ['TRITON_INTERPRET'] == '0'")
    assert result.ret == 0
    assert header(result).startswith("turbo: CPU standing for gfx950; ")
    assert header(result).endswith("interpreter off")


PURE = """
    import random, sys

    def test_seeded(seed): assert random.getrandbits(8) == random.Random(seed).getrandbits(8)
    def test_device(device): assert device.type == "cpu"
    def test_modules(): assert {name: name in sys.modules for name in ("torch", "triton")} == EXPECTED
"""


def test_without_torch_and_triton(run):
    result = run(PURE.replace("EXPECTED", "{'torch': False, 'triton': False}"))
    result.assert_outcomes(passed=2, skipped=1)
    assert header(result) == "turbo: CPU; torch none; triton none; interpreter on"
    result.stdout.fnmatch_lines(["1  torch is not installed"])


def test_without_triton(run):
    result = run(PURE.replace("EXPECTED", "{'torch': True, 'triton': False}"), lacking=("triton",))
    result.assert_outcomes(passed=3)
    assert "triton none" in header(result)


FAKE_TORCH = """
import os
from types import SimpleNamespace

def device_count():
    listed = os.environ.get(VARIABLE)
    return 2 if listed is None else len(listed.split(","))

def touch(*_):
    assert "PYTEST_XDIST_WORKER" in os.environ, "the controller initialised a device"
    return SimpleNamespace(name="Fake", gcnArchName="gfx950:sramecc+", major=9, minor=0)

version = SimpleNamespace(hip=HIP)
cuda = SimpleNamespace(device_count=device_count, is_available=lambda: True, get_device_properties=touch)
manual_seed = lambda value: None
"""


@pytest.mark.parametrize("hip, variable", [("'7.0'", "HIP_VISIBLE_DEVICES"), ("None", "CUDA_VISIBLE_DEVICES")])
@pytest.mark.parametrize("given, expected", [(None, ["0", "1"]), ("7,5", ["7", "5"])])
def test_each_worker_takes_one_gpu(run, monkeypatch, tmp_path_factory, pytester, hip, variable, given, expected):
    """Three workers on two GPUs, or on the two that the caller listed; the controller touches no device."""
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    folder = tmp_path_factory.mktemp("fake")
    (folder / "torch.py").write_text(FAKE_TORCH.replace("VARIABLE", repr(variable)).replace("hip=HIP", f"hip={hip}"))
    if given:
        monkeypatch.setenv(variable, given)
    source = f"""
        import os, time, pytest
        from pathlib import Path

        @pytest.mark.parametrize("i", range(12))
        def test(i):
            Path(os.environ["PYTEST_XDIST_WORKER"]).write_text(os.environ["{variable}"])
            time.sleep(0.02)

        @pytest.mark.gpu(count=2)
        def test_two(): raise AssertionError
    """
    result = run(source, "-n", "3", first=folder, gpus=True)
    result.assert_outcomes(passed=12, skipped=1)
    result.stdout.fnmatch_lines(["1  needs 2 GPUs; this process sees 1"])
    assert f"turbo: {len(expected)} GPU(s), one per worker" in result.stdout.str()
    assert "interpreter off" in result.stdout.str()
    seen = {path.name: path.read_text() for path in pytester.path.glob("gw*")}
    assert seen == {f"gw{i}": expected[i % len(expected)] for i in range(3)}


@pytest.mark.parametrize(
    "environ, rocm, expected",
    [
        ({}, True, {"HIP_VISIBLE_DEVICES": "1"}),
        ({}, False, {"CUDA_VISIBLE_DEVICES": "1"}),
        ({"CUDA_VISIBLE_DEVICES": "4, 6"}, True, {"HIP_VISIBLE_DEVICES": "6", "CUDA_VISIBLE_DEVICES": "6"}),
        ({"CUDA_VISIBLE_DEVICES": "GPU-aa,GPU-bb"}, False, {"CUDA_VISIBLE_DEVICES": "GPU-bb"}),
        ({"HIP_VISIBLE_DEVICES": "3"}, True, {"HIP_VISIBLE_DEVICES": "3"}),
        ({"HIP_VISIBLE_DEVICES": "5"}, False, {"HIP_VISIBLE_DEVICES": "5", "CUDA_VISIBLE_DEVICES": "1"}),
        ({"ROCR_VISIBLE_DEVICES": "2,3"}, True, {"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"}),
    ],
)
def test_pin_worker(environ, rocm, expected):
    devices.pin_worker(environ, "gw1", 2, rocm)
    assert environ == expected


def test_pin_worker_without_gpus_or_worker_changes_nothing():
    environ = {}
    assert devices.pin_worker(environ, "gw0", 0, True) is None
    assert devices.pin_worker(environ, "master", 4, True) is None
    assert environ == {}


SEEDED = """
    import random, pytest
    from pathlib import Path

    @pytest.mark.parametrize("i", range(3))
    def test_draw(i, seed):
        import torch
        random.random()
        with Path("drawn").open("a") as f:
            f.write(f"{i} {seed} {random.random()} {torch.rand(1).item()}\\n")
"""


def test_a_test_draws_the_same_numbers_alone_and_in_company(run, pytester):
    pytest.importorskip("torch")
    drawn = pytester.path / "drawn"
    run(SEEDED, lacking=("triton",))
    together = drawn.read_text().splitlines()
    drawn.unlink()
    run(SEEDED, "-k", "2", lacking=("triton",))
    assert len(together) == 3
    assert drawn.read_text().splitlines() == together[2:]
    assert len({line.split(" ", 1)[1] for line in together}) == 3


def test_backends_are_reset_after_each_test(run):
    result = run("""
        from turbo_core import GlobalBackendManager, PrecisionType

        def test_sets():
            GlobalBackendManager.set_gemm_backend("triton")
            GlobalBackendManager.set_auto_tune(True)
        def test_finds_nothing():
            assert GlobalBackendManager.get_gemm_backend(PrecisionType.FP8) is None
            assert not GlobalBackendManager.auto_tune_enabled()
    """)
    result.assert_outcomes(passed=2)


PRODUCT = """
    import pytest

    @pytest.mark.covering
    @pytest.mark.parametrize("a", range(3))
    @pytest.mark.parametrize("b", range(3))
    @pytest.mark.parametrize("c", range(3))
    def test_three(a, b, c): pass

    @pytest.mark.covering(each="backend", keep=lambda p: (p["a"], p["b"], p["c"]) == (1, 1, 1))
    @pytest.mark.parametrize("a", range(2))
    @pytest.mark.parametrize("b", range(2))
    @pytest.mark.parametrize("c", range(2))
    @pytest.mark.parametrize("backend", ["one", "two"])
    def test_each(a, b, c, backend): pass

    @pytest.mark.covering(strength=1)
    @pytest.mark.parametrize("a", range(2))
    @pytest.mark.parametrize("b", range(4))
    def test_values(a, b): pass

    @pytest.mark.full
    def test_more(): pass
"""


def passed(result, name):
    return [tuple(found.split("-")) for found in re.findall(rf"{name}\[(\S+)\] PASSED", result.stdout.str())]


def test_products_are_thinned_to_pairs(run):
    result = run(PRODUCT, "-v", "--strict-markers")
    three = passed(result, "test_three")
    assert len(three) < 14
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert len({(row[one], row[other]) for row in three}) == 9
    each = passed(result, "test_each")
    for backend in ("one", "two"):  # the order of the id is that of the decorators from below
        rows = [row[1:] for row in each if row[0] == backend]
        assert ("1", "1", "1") in rows and len(rows) < 8
        for one, other in ((0, 1), (0, 2), (1, 2)):
            assert len({(row[one], row[other]) for row in rows}) == 4
    values = passed(result, "test_values")
    assert len(values) == 4 and {row[0] for row in values} == set("0123") and {row[1] for row in values} == set("01")
    assert "test_more" not in result.stdout.str()
    result.stdout.fnmatch_lines(["*run with --full (deselected)*"])


def test_all_of_a_product_on_demand(run):
    result = run(PRODUCT, "-v", "--full")
    assert len(passed(result, "test_three")) == 27 and len(passed(result, "test_each")) == 16
    assert "test_more PASSED" in result.stdout.str()


def test_what_k_leaves_is_thinned(run):
    """A test that is named by its parameters runs."""
    for named in passed(run(PRODUCT, "-v", "--full", "-k", "test_three"), "test_three")[:3]:
        assert passed(run(PRODUCT, "-v", "-k", f"test_three[{'-'.join(named)}]"), "test_three") == [named]


def test_the_cost_of_each_wheel_is_printed(run):
    source = """
        import os, subprocess, sys, time

        def test_here():
            while time.process_time() < 1: pass
        def test_in_a_child():
            subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 1: pass"], check=True)
    """
    result = run(source, "--budgets", "-p", "xdist", "-n", "1")
    (line,) = [line for line in result.stdout.lines if line.startswith("of several wheels")]
    *_, tests, seconds, _ = line.split()
    assert int(tests) == 2 and int(seconds) >= 1  # the child's second at the least


@pytest.mark.parametrize("options", [[], ["--full"]], ids=["checked", "full"])
def test_a_run_that_costs_too_much_fails(run, options):
    source = """
        import time
        from turbo_testing.budgets import BUDGETS, Budget

        BUDGETS["of several wheels"] = Budget(0.001, 0.001)

        def test_here():
            start = time.process_time()
            while time.process_time() < start + 0.5: pass
    """
    result = run(source, "--budgets", *options)
    assert result.ret == (pytest.ExitCode.OK if options else pytest.ExitCode.TESTS_FAILED)
    assert ("more than 1.5 times their budget of" in result.stdout.str()) is (not options)
    result.assert_outcomes(passed=1)
