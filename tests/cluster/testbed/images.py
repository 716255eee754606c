"""Paceline's images, built on this machine from the checkout, since there is no registry to pull from.

The Dockerfiles are the users' own; the base is made of this machine's distribution and Python (scripts/base_image.sh).
Everything that they need is brought along: a build has no network.
"""

import fcntl
import hashlib
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testbed.commands import ROOT, cache_folder, run, shell_library

BASE_IMAGE = "localhost/paceline-base"
REGISTRY = "paceline.local"
KEPT = 2


@dataclass(frozen=True)
class Image:
    """An image by its reference in the cluster, and the docker archive that holds it."""

    reference: str
    archive: Path


def control_plane_image() -> Image:
    """Build the operator's and control API's image, or take it from the cache."""
    requirements = ROOT / "constraints" / "control-plane.txt"
    return _build("control-plane", (requirements,), _wheels(requirements))


def engine_image() -> Image:
    """Build the engine's image, or take it from the cache.

    The base has no vLLM: a node's folder `VLLM_FOLDER` with its packages is expected at the same path in the pod.
    """
    return _build("engine", (), None)


VLLM_FOLDER = "/var/lib/paceline/vllm"
"""Where the nodes of the tests have vLLM's packages, 6 GB that are in no image."""


def next_version(image: Image, version: str) -> Image:
    """Build an image of the same code that calls itself by another version, as the next release will."""
    tag = f"{version}-{image.reference.rpartition(':')[2]}"
    made = Image(f"{REGISTRY}/next-control-plane:{tag}", image.archive.with_name(f"next-control-plane-{tag}.tar"))
    with tempfile.TemporaryDirectory(prefix="paceline-image-") as folder, _locked(image.archive.parent / "lock"):
        if not made.archive.exists():
            buildah = _buildah_command(Path(folder))
            if not _is_stored(buildah, image.reference):
                run([*buildah, "pull", "--quiet", f"docker-archive:{image.archive}"], seconds=300)
            container = run([*buildah, "from", "--pull-never", image.reference]).stdout.strip()
            file = "/opt/paceline/lib/python3*/site-packages/paceline/__init__.py"
            edit = f"sed -i 's/^__version__.*/__version__ = \"{version}\"/' {file}"
            run([*buildah, "run", "--isolation", "chroot", "--user", "0", container, "--", "sh", "-euc", edit])
            run([*buildah, "commit", "--quiet", "--rm", container, made.reference], seconds=300)
            _save(buildah, made)
        made.archive.touch()
        _forget_older(made.archive.parent, "next-control-plane")
    return made


def _build(name: str, inputs: tuple[Path, ...], wheels: Path | None) -> Image:
    base = Path(shell_library("bash scripts/base_image.sh"))
    dockerfile = ROOT / "images" / f"Dockerfile.{name}"
    with tempfile.TemporaryDirectory(prefix="paceline-image-") as folder:
        context = Path(folder)
        wheel = _wheel(context / "dist")
        key = _key([base.name, VLLM_FOLDER, *_contents(wheel)], [dockerfile, *inputs])
        archive = cache_folder() / "images" / f"{name}-{key}.tar"
        image = Image(f"{REGISTRY}/{name}:{key}", archive)
        archive.parent.mkdir(exist_ok=True)
        with _locked(archive.parent / "lock"):
            if not archive.exists():
                for path in inputs:
                    target = context / path.relative_to(ROOT)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, target)
                _buildah(image, base, dockerfile, context, wheels)
            archive.touch()
            _forget_older(archive.parent, name)
    return image


def _buildah(image: Image, base: Path, dockerfile: Path, context: Path, wheels: Path | None) -> None:
    buildah = _buildah_command(context)
    print(f"building the image {image.reference}", file=sys.stderr)
    reference = _import_base(buildah, base)
    pip_config = context / "pip.conf"
    pip_config.write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    volumes = [] if wheels is None else ["--volume", f"{wheels}:/wheels:ro"]
    options = ["--isolation", "chroot", "--layers", "--pull-never", "--secret", f"id=pip,src={pip_config}", *volumes]
    arguments = ["--build-arg", f"BASE_IMAGE={reference}", "--file", dockerfile, "--tag", image.reference]
    run([*buildah, "build", *options, *arguments, context], seconds=1_800)
    _save(buildah, image)


def _buildah_command(folder: Path) -> list[object]:
    storage = cache_folder() / "buildah"
    return ["buildah", "--root", storage, "--runroot", folder / "run", "--storage-driver", "overlay"]


def _is_stored(buildah: list[object], reference: str) -> bool:
    return run([*buildah, "inspect", "--type", "image", reference], check=False).status == 0


def _save(buildah: list[object], image: Image) -> None:
    part = image.archive.with_suffix(".part")
    part.unlink(missing_ok=True)
    run([*buildah, "push", image.reference, f"docker-archive:{part}:{image.reference}"], seconds=600)
    part.rename(image.archive)


def _import_base(buildah: list[object], archive: Path) -> str:
    reference = f"{BASE_IMAGE}:{archive.stem.removeprefix('base-image-')}"
    if not _is_stored(buildah, reference):
        container = run([*buildah, "from", "scratch"]).stdout.strip()
        run([*buildah, "add", "--quiet", container, archive, "/"], seconds=300)
        run([*buildah, "commit", "--quiet", "--rm", container, reference], seconds=300)
    return reference


def _wheel(folder: Path) -> Path:
    """Build the checkout's wheel into `folder`."""
    uv = shell_library("find_uv")
    run([uv, "build", "--wheel", "--quiet", "--out-dir", folder, ROOT], seconds=300)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _wheels(requirements: Path) -> Path:
    """Return a folder with the wheels of all requirements, downloaded by this machine's own pip."""
    folder = cache_folder() / "wheels" / _key([], [requirements])
    with _locked(cache_folder() / "wheels.lock"):
        if not folder.exists():
            part = folder.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            python = shell_library("find_python")
            pip = [python, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
            run([*pip, "--requirement", requirements, "--dest", part], seconds=600)
            part.rename(folder)
    return folder


def _contents(wheel: Path) -> Iterator[str]:
    """Yield what the wheel holds, apart from the times at which it was written."""
    with zipfile.ZipFile(wheel) as archive:
        for entry in sorted(archive.infolist(), key=lambda entry: entry.filename):
            yield f"{entry.filename} {entry.CRC}"


def _key(words: Iterable[str], files: Iterable[Path]) -> str:
    digest = hashlib.sha256("\n".join(words).encode())
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _forget_older(folder: Path, name: str) -> None:
    archives = sorted(folder.glob(f"{name}-*.tar"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in archives[KEPT:]:
        path.unlink()
