# SPDX-License-Identifier: MIT
"""What a wheel imports, what it declares and what it may depend on are the same arrows."""

import importlib

import pytest
from packaging.requirements import Requirement

from tools.monorepo import ALLOWED_ARROWS, Wheel, imported_wheels, private_imports, wheels
from tools.new_wheel import render

every_wheel = pytest.mark.parametrize("wheel", wheels(), ids=lambda wheel: wheel.name)


@every_wheel
def test_imports_are_the_declared_dependencies(wheel):
    imported = imported_wheels(wheel)
    undeclared = {name: places for name, places in imported.items() if name not in wheel.wheel_requirements}
    assert not undeclared, f"{wheel.name} imports wheels that its pyproject.toml does not declare: {undeclared}"
    unused = wheel.wheel_requirements - set(imported)
    assert not unused, f"{wheel.name} declares wheels that it does not import: {unused}"


@every_wheel
def test_dependencies_are_allowed(wheel):
    assert wheel.wheel_requirements <= ALLOWED_ARROWS[wheel.name]


@every_wheel
def test_wheels_depend_on_ranges(wheel):
    """A pin to one version would tie the releases of two wheels together; no upper bound would admit a broken pair."""
    for requirement in map(Requirement, wheel.requirements):
        if requirement.name in ALLOWED_ARROWS:
            operators = {specifier.operator for specifier in requirement.specifier}
            assert operators == {">=", "<"}, f"{wheel.name}: {requirement} must be a range, such as >=0.1,<0.2"


def test_the_table_holds_all_planned_wheels_and_no_circle():
    assert len(ALLOWED_ARROWS) == 10
    remaining = dict(ALLOWED_ARROWS)
    while remaining:
        free = [name for name, needs in remaining.items() if not needs & set(remaining)]
        assert free, f"a circle among {sorted(remaining)}"
        for name in free:
            del remaining[name]


def test_no_op_depends_on_the_simulator_or_the_meta_package():
    for name, needs in ALLOWED_ARROWS.items():
        assert not needs & {"turbo-sim", "primus-turbo"}, name


@pytest.mark.parametrize(
    "line",
    [
        "import turbo_gemm",
        "import turbo_gemm.pytorch.ops as gemm_ops",
        "from turbo_gemm import gemm",
        "def f():\n    from turbo_gemm.pytorch import ops",
        "import importlib\nimportlib.import_module('turbo_gemm.pytorch')",
        "from turbo_core.lazy import attach\nattach(__name__, {'gemm': 'turbo_gemm.pytorch.ops'})",
    ],
)
def test_every_form_of_import_is_seen(tmp_path, line):
    wheel = render("turbo-foo", tmp_path)
    assert set(imported_wheels(wheel)) == {"turbo-core"}
    (wheel.source / "pytorch" / "ops" / "foo.py").write_text(line + "\n")
    found = imported_wheels(Wheel(wheel.path))
    assert set(found) == {"turbo-core", "turbo-gemm"}
    assert found["turbo-gemm"][0].startswith("src/turbo_foo/pytorch/ops/foo.py:")


# --- what one wheel takes from another is declared --------------------------------------------------------------------


@every_wheel
def test_no_wheel_imports_what_is_private_to_another(wheel):
    assert private_imports(wheel) == []


@pytest.mark.parametrize(
    "line",
    [
        "from turbo_quant.calls import QuantizeMxCall",
        "from turbo_quant.pytorch.kernels import shuffle",
        "from turbo_quant import pytorch",
        "import turbo_quant.formats",
        "def f():\n    from turbo_quant.pytorch.ops.library import run_quantize_float",
        "import importlib\nimportlib.import_module('turbo_quant.pytorch')",
        "from turbo_core.lazy import attach\nattach(__name__, {'run': 'turbo_quant.pytorch.ops.library'})",
    ],
)
def test_a_private_import_is_found(tmp_path, line):
    wheel = render("turbo-foo", tmp_path)
    assert private_imports(wheel) == []
    (wheel.source / "pytorch" / "ops" / "foo.py").write_text(line + "\n")
    found = private_imports(Wheel(wheel.path))
    assert found and all(place.startswith("src/turbo_foo/pytorch/ops/foo.py:") for place in found)


@pytest.mark.parametrize(
    "line",
    [
        "import turbo_quant",
        "from turbo_quant import QuantizedTensor",
        "from turbo_quant.developer import MxDirection",
        "from turbo_quant import developer",
        "from turbo_core.sharding import shardable",
        "from turbo_core.lazy import attach\nattach(__name__, {'QuantizedTensor': 'turbo_quant'})",
    ],
)
def test_what_is_declared_may_be_imported(tmp_path, line):
    wheel = render("turbo-foo", tmp_path)
    (wheel.source / "pytorch" / "ops" / "foo.py").write_text(line + "\n")
    assert private_imports(Wheel(wheel.path)) == []


SURFACES = [wheel for wheel in wheels() if (wheel.source / "developer.py").is_file()]


@pytest.mark.parametrize("wheel", SURFACES, ids=lambda wheel: wheel.name)
def test_every_name_of_a_developer_module_is_there_and_explained(wheel):
    pytest.importorskip("torch")
    developer = importlib.import_module(f"{wheel.import_name}.developer")
    for name in developer.__all__:
        value = getattr(developer, name)
        assert getattr(value, "fn", value).__doc__, name  # Triton's interpreter keeps a function as `fn`
