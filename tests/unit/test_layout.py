"""What the repository's layout promises."""

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_operator_folder_never_shadows_the_standard_library() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists()
    code = "import operator; print(operator.__file__)"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not found.stdout.startswith(str(ROOT))


def test_every_package_of_a_room_is_shipped() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    shipped = set(project["tool"]["setuptools"]["packages"])
    rooms = project["tool"]["setuptools"]["package-dir"]
    found = {
        ".".join([name, *module.parent.relative_to(ROOT / folder).parts])
        for name, folder in rooms.items()
        for module in (ROOT / folder).rglob("*.py")
        if "migrations" not in module.parts  # scripts that Alembic loads by path, shipped as data
    }
    found = {name for name in found if not name.startswith("paceline.paceline")}
    assert found <= shipped, f"add to [tool.setuptools] packages: {sorted(found - shipped)}"


def test_every_room_is_linked_for_tools_that_read_the_tree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    rooms = {folder for name, folder in project["tool"]["setuptools"]["package-dir"].items() if name != "paceline"}
    for room in rooms:
        assert (ROOT / "src" / "paceline" / room).resolve() == ROOT / room
