# SPDX-License-Identifier: MIT
"""primus-turbo admits the current version of every wheel and re-exports every public op."""

import importlib

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tools.monorepo import ALLOWED_ARROWS, PACKAGES, Wheel, wheels

META = Wheel(PACKAGES / "primus-turbo")
REQUIREMENTS = {requirement.name: requirement for requirement in map(Requirement, META.requirements)}
OPS = [wheel for wheel in wheels() if wheel.name in ALLOWED_ARROWS["primus-turbo"]]
per_wheel = pytest.mark.parametrize("wheel", OPS, ids=lambda wheel: wheel.name)


def test_it_depends_on_every_wheel_there_is_and_on_nothing_else():
    assert set(REQUIREMENTS) == {wheel.name for wheel in OPS}


@per_wheel
def test_its_ranges_admit_the_current_version_and_not_the_next_breaking_one(wheel):
    specifier = REQUIREMENTS[wheel.name].specifier
    version = Version(wheel.version)
    assert specifier.contains(version, prereleases=True), f"{specifier} does not admit {wheel.name} {version}"
    breaking = f"{version.major + 1}.0.0" if version.major else f"0.{version.minor + 1}.0"
    assert not specifier.contains(breaking), f"{specifier} admits {wheel.name} {breaking}"


@per_wheel
def test_wheels_admit_each_others_current_version(wheel):
    current = {other.name: other.version for other in wheels()}
    for requirement in map(Requirement, wheel.requirements):
        if requirement.name in current:
            assert requirement.specifier.contains(current[requirement.name], prereleases=True), f"{requirement}"


@pytest.mark.parametrize("wheel", [w for w in OPS if w.name != "turbo-core"], ids=lambda wheel: wheel.name)
def test_every_public_op_and_module_is_re_exported(wheel):
    import torch

    turbo = importlib.import_module("primus_turbo.pytorch")
    package = importlib.import_module(wheel.import_name)
    for name in package.__all__:
        value = getattr(package, name)
        is_module = isinstance(value, type) and issubclass(value, torch.nn.Module)
        home = turbo.modules if is_module else turbo.ops
        if name in turbo.core.quantized_tensor.__all__:
            home = turbo.core.quantized_tensor
        assert getattr(home, name, None) is value, f"{home.__name__}.{name} is not {wheel.import_name}.{name}"
        assert name in home.__all__
