"""What `paceline up` says about a profile's file: the field, what is wrong with it, and what to do."""

from pathlib import Path

import pytest

from paceline.cli.errors import CliError, ExitCode
from paceline.cli.profile_file import load_profile

GOOD = """\
apiVersion: paceline.dev/v1alpha1
kind: InferenceProfile
metadata: {name: tiny}
spec:
  model: {source: "file:///models/tiny"}
  pacing: {mode: Fixed, interval: 4}
"""


def message_for(tmp_path: Path, text: str) -> str:
    """Return what is said about a profile with this text."""
    path = tmp_path / "profile.yaml"
    path.write_text(text)
    with pytest.raises(CliError) as caught:
        load_profile(path)
    assert caught.value.code == ExitCode.INVALID
    return caught.value.message.replace(str(path), "FILE") + "\n" + (caught.value.advice or "")


def test_a_good_profile_is_read_with_its_defaults(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(GOOD)
    profile = load_profile(path)
    assert (profile.metadata.namespace, profile.metadata.name, profile.spec.pacing.interval) == ("default", "tiny", 4)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("interval: 4", "interval: -1", "spec.pacing.interval: should be greater than or equal to 0 (found -1)"),
        (
            "interval: 4",
            "interval: 1000000000",
            "spec.pacing.interval: should be less than or equal to 1024 (found 1000000000)",
        ),
        ("interval: 4", "interval: 4.5", "spec.pacing.interval: should be a valid integer (found 4.5)"),
        ("interval: 4", "intervall: 4", "spec.pacing.intervall: there is no such field; did you mean interval?"),
        ("pacing:", "paceing:", "spec.paceing: there is no such field; did you mean pacing?"),
        (
            "mode: Fixed",
            "mode: Off",
            "spec.pacing.mode: should be 'Disabled', 'Fixed' or 'SLO' (found False)",
        ),
        ("mode: Fixed, interval: 4", "mode: SLO", "spec.pacing: mode SLO needs the field slo, at least"),
        ("metadata: {name: tiny}", "metadata: {}", "metadata.name: is required"),
        (
            "name: tiny",
            "name: Tiny_1",
            "metadata.name: should be lower-case letters, digits, - and ., and begin and end with",
        ),
        (
            "file:///models/tiny",
            "/models/tiny",
            "spec.model.source: should be hf://org/name, file:///folder or pvc://claim/folder (found '/models/tiny')",
        ),
        (
            "{source:",
            "{max_model_length: 9, source:",
            "spec.model.max_model_length: there is no such field; did you mean maxModelLen?",
        ),
        (
            "spec:",
            'spec:\n  engine: {extraArgs: ["--port=9"]}',
            "spec.engine.extraArgs: --port is not allowed: Paceline chooses the engine's port",
        ),
        ("paceline.dev/v1alpha1", "paceline.dev/v2", "FILE: apiVersion is 'paceline.dev/v2', expected paceline.dev/v1"),
        ("kind: InferenceProfile", "kind: Pod", "FILE: kind is 'Pod', expected InferenceProfile"),
        ("kind: InferenceProfile\n", "", "FILE: kind is missing, expected InferenceProfile"),
        ("interval: 4", "interval: 4, interval: 5", "line 6, column 38: the key interval is there twice"),
        ("{name: tiny}", "{name: tiny", "FILE is not valid YAML at line 4"),
        ("name: tiny", "name: !!python/name:os.system x", "could not determine a constructor for the tag"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in GOOD
    assert expected in message_for(tmp_path, GOOD.replace(old, new))


def test_every_problem_is_told_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("interval: 4", "interval: -1").replace("name: tiny", "nam: tiny")
    message = message_for(tmp_path, text)
    assert "FILE has 2 problems" in message
    assert "metadata.name: is required" in message
    assert "spec.pacing.interval" in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD + "---\n" + GOOD, "holds 2 documents, expected one"),
        ("", "is empty"),
        ("- a\n- b\n", "holds a list, expected a mapping"),
        ("hello\n", "holds a single value, expected a mapping"),
    ],
)
def test_a_file_that_is_no_profile(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in message_for(tmp_path, text)


def test_a_closing_document_mark_is_no_second_document(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text("---\n" + GOOD + "---\n")
    assert load_profile(path).metadata.name == "tiny"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CliError, match="there is no file"):
        load_profile(tmp_path / "nothing.yaml")
    with pytest.raises(CliError, match="is a folder"):
        load_profile(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CliError, match="is not UTF-8 text"):
        load_profile(binary)
    huge = tmp_path / "huge.yaml"
    huge.write_bytes(b"#" * (1 << 20) + b"\n")
    with pytest.raises(CliError, match="is larger than"):
        load_profile(huge)
