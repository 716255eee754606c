"""Build the CPU kernels into the wheel; everything else of the package stands in pyproject.toml.

PACELINE_CPU_KERNELS says what happens: `Auto` (default) builds them where a C++ compiler can and says clearly where
none is found or it refuses them, `Require` fails then, `Skip` leaves them out, as environments without an engine do.
"""

import importlib.util
import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

RECIPE = Path(__file__).resolve().parent / "kernels" / "build_cpu.py"
MODES = ("Auto", "Require", "Skip")


def load_recipe():
    """Return the module with the recipe, which can't be imported as part of a package that is not built yet."""
    spec = importlib.util.spec_from_file_location("paceline_build_cpu", RECIPE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kernels_wanted(recipe) -> bool:
    """Tell whether the kernels are built. Ends the build where they are required and can't be."""
    mode = os.environ.get("PACELINE_CPU_KERNELS") or "Auto"
    if mode not in MODES:
        sys.exit(f"PACELINE_CPU_KERNELS is {mode!r}: it must be one of {', '.join(MODES)}")
    if mode == "Skip":
        return False
    try:
        recipe.cached_library()
    except (recipe.NoCompilerError, recipe.CompileError, OSError) as error:
        if mode == "Require":
            sys.exit(f"PACELINE_CPU_KERNELS=Require, but {error}")
        print(f"warning: paceline is built WITHOUT its CPU kernels, engines will serve without the page gate: {error}")
        return False
    return True


class PlainLibrary(build_ext):
    """A shared library with a C interface, made by the recipe: no Python in its name, none in its symbols."""

    def get_ext_filename(self, fullname):
        """Return the library's place below the package."""
        return fullname.replace(".", "/") + ".so"

    def build_extension(self, ext):
        """Compile, or take from the cache, the library of these sources."""
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        self.recipe.install(target)

    recipe = load_recipe()


class AnyPython(bdist_wheel):
    """The wheel serves every Python of its platform."""

    def get_tag(self):
        """Return the tag, with the platform only when there is a library in the wheel."""
        _, _, platform = super().get_tag()
        return "py3", "none", platform


wanted = kernels_wanted(PlainLibrary.recipe)
setup(
    ext_modules=[Extension("paceline.kernels.paged_prefill_cpu", sources=[])] if wanted else [],
    cmdclass={"build_ext": PlainLibrary, "bdist_wheel": AnyPython},
)
