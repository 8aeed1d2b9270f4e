# SPDX-License-Identifier: MIT
"""Finds, for each mnemonic of tests/census.tsv, a test that executes it, and writes the test's name beside it.

    pytest -n 0 -p census_recorder --census-out executed.json packages/turbo-sim/tests   # tests/ on PYTHONPATH
    python packages/turbo-sim/tools/census.py executed.json

Few tests that cover all, those of single instructions first. A mnemonic that no test executes is printed, and exits 1.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

CENSUS = Path(__file__).parents[1] / "tests" / "census.tsv"
WHOLE_KERNELS = ("test_triton_kernels.py", "test_aiter.py")
# These are about something else than what an instruction computes.
NO_VECTORS = ("test_wait_states.py", "test_checks.py", "test_cost.py", "test_decode.py", "test_hip_library.py")


def main() -> int:
    executed = {
        test: {name for names in archs.values() for name in names}
        for test, archs in json.loads(Path(sys.argv[1]).read_text()).items()
    }
    lines = CENSUS.read_text().splitlines()
    missing = {line.split("\t")[0] for line in lines if line and not line.startswith("#")}
    chosen: dict[str, str] = {}

    def cover(tests: dict[str, set[str]]) -> None:
        while gain := {test: names & missing for test, names in tests.items() if names & missing}:
            best = min(gain, key=lambda test: (-len(gain[test]), test))
            chosen.update(dict.fromkeys(gain[best], best))
            missing.difference_update(gain[best])

    cover({test: names for test, names in executed.items() if not test.startswith((*WHOLE_KERNELS, *NO_VECTORS))})
    cover({test: names for test, names in executed.items() if test.startswith(WHOLE_KERNELS[0])})
    print(f"{len(chosen)} mnemonics by {len(set(chosen.values()))} tests")
    print("no test executes: " + (", ".join(sorted(missing)) or "none"))
    rows = [line.split("\t") for line in lines if line and not line.startswith("#")]
    head = [line for line in lines if line.startswith("#")]
    body = ["\t".join([name, archs, chosen.get(name, "")]) for name, archs, *_ in rows]
    CENSUS.write_text("\n".join([*head, *body]) + "\n")
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main())
