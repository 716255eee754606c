"""Write the files that are generated from code, or tell which of them differ from it."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from paceline.operator.api.crd import crd_yaml

ROOT = Path(__file__).resolve().parent.parent
GENERATED: dict[str, Callable[[], str]] = {
    "charts/paceline/files/paceline.dev_inferenceprofiles.yaml": crd_yaml,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, epilog="example: scripts/generate.py --check")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file differs from its code")
    arguments = parser.parse_args()
    stale = []
    for name, text_of in GENERATED.items():
        path, text = ROOT / name, text_of()
        if path.is_file() and path.read_text() == text:
            continue
        stale.append(name)
        if not arguments.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    for name in stale:
        print(f"{name} differs from its code; run `make generate`" if arguments.check else f"wrote {name}")
    return 1 if arguments.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
