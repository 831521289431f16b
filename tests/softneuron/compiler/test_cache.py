"""The NEFF cache: written whole, never handed out damaged, harmless when the folder cannot be written."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from softneuron.compiler.cache import DEFAULT_ROOT, DONE, META, PACKAGE, NeffCache

KEY = "0123456789abcdef"


def build(package: Path) -> dict[str, object]:
    package.write_bytes(b"machine code" * 100)
    return {"graph_name": "test"}


def never(package: Path) -> dict[str, object]:
    raise AssertionError("nothing should be built")


def test_a_built_entry_is_found_again(tmp_path: Path):
    entry, hit = NeffCache(tmp_path).find_or_build(KEY, build)
    assert (entry.name, hit) == (f"MODULE_{KEY}", False)
    assert sorted(path.name for path in (tmp_path / entry.name).iterdir()) == sorted([DONE, PACKAGE, META])
    assert json.loads((tmp_path / entry.name / META).read_text())["graph_name"] == "test"
    again, hit = NeffCache(tmp_path).find_or_build(KEY, never)
    assert hit
    assert again.package.read_bytes() == b"machine code" * 100


def test_an_entry_works_after_the_folder_was_copied(tmp_path: Path):
    entry, _ = NeffCache(tmp_path / "one").find_or_build(KEY, build)
    (tmp_path / "one").rename(tmp_path / "two")
    assert NeffCache(tmp_path / "two").find_or_build(KEY, never)[0].name == entry.name


def test_an_entry_that_was_copied_over_another_one_is_never_run(tmp_path: Path):
    cache = NeffCache(tmp_path)
    other, _ = cache.find_or_build("fedcba9876543210", build)
    entry, _ = cache.find_or_build(KEY, build)
    for path in (tmp_path / other.name).iterdir():
        shutil.copy(path, tmp_path / entry.name / path.name)
    assert cache.find(KEY) is None
    (fault,) = (module.fault for module in cache.modules() if module.fault)
    assert fault == "it is another graph's entry"
    assert cache.find_or_build(KEY, build)[1] is False
    assert cache.find(KEY) == entry


def truncate(folder: Path) -> None:
    (folder / PACKAGE).write_bytes((folder / PACKAGE).read_bytes()[:50])


def flip_a_byte(folder: Path) -> None:
    content = bytearray((folder / PACKAGE).read_bytes())
    content[700] ^= 1
    (folder / PACKAGE).write_bytes(bytes(content))


def say(**facts: str):
    """Damage that makes `meta.json` say something else."""

    def damage(folder: Path) -> None:
        meta = json.loads((folder / META).read_text())
        (folder / META).write_text(json.dumps(meta | facts))

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        truncate,
        flip_a_byte,
        say(compiler="soft-0.0.0"),
        say(torch="1.0"),
        say(cpu="another"),
        say(key="fedcba9876543210"),
        lambda folder: (folder / DONE).unlink(),
        lambda folder: (folder / META).unlink(),
        lambda folder: (folder / META).write_text("{"),
        lambda folder: (folder / META).write_text("[]"),
        lambda folder: (folder / PACKAGE).unlink(),
    ],
)
def test_a_damaged_entry_is_rebuilt(tmp_path: Path, damage):
    cache = NeffCache(tmp_path, {"compiler": "soft-1", "torch": "2", "cpu": "this"})
    entry, _ = cache.find_or_build(KEY, build)
    damage(tmp_path / entry.name)
    assert cache.find(KEY) is None
    rebuilt, hit = cache.find_or_build(KEY, build)
    assert not hit
    assert rebuilt.package.read_bytes() == b"machine code" * 100
    assert cache.find(KEY) == rebuilt


def test_a_failed_build_leaves_nothing_behind(tmp_path: Path):
    def fail(package: Path) -> dict[str, object]:
        package.write_bytes(b"half")
        raise RuntimeError("no compiler")

    with pytest.raises(RuntimeError, match="no compiler"):
        NeffCache(tmp_path).find_or_build(KEY, fail)
    assert [path.name for path in tmp_path.iterdir()] == [".locks"]
    assert NeffCache(tmp_path).find_or_build(KEY, build)[1] is False


def test_eight_threads_build_an_entry_once(tmp_path: Path):
    built = []

    def slow_build(package: Path) -> dict[str, object]:
        built.append(package)
        return build(package)

    threads = [
        threading.Thread(target=lambda: NeffCache(tmp_path).find_or_build(KEY, slow_build)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1


def test_a_process_killed_while_building_blocks_nobody(tmp_path: Path):
    program = (
        "import sys, time; from pathlib import Path; from softneuron.compiler.cache import NeffCache\n"
        "def build(package):\n"
        "    package.write_bytes(b'half'); print('building', flush=True); time.sleep(600)\n"
        f"NeffCache(Path(sys.argv[1])).find_or_build({KEY!r}, build)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as builder:
        assert builder.stdout is not None
        assert builder.stdout.readline() == "building\n"
        builder.send_signal(signal.SIGKILL)
    assert NeffCache(tmp_path).find(KEY) is None
    assert NeffCache(tmp_path).find_or_build(KEY, build)[1] is False
    assert sorted(path.name for path in tmp_path.iterdir()) == [".locks", f"MODULE_{KEY}"]


def test_a_read_only_folder_gives_hits(tmp_path: Path):
    cache = NeffCache(tmp_path)
    cache.find_or_build(KEY, build)
    for path in (*tmp_path.rglob("*"), tmp_path):
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        assert cache.find_or_build(KEY, never)[1] is True
    finally:
        for path in (tmp_path, *tmp_path.rglob("*")):
            path.chmod(path.stat().st_mode | 0o200)


def test_a_folder_that_cannot_be_made_is_a_warning(tmp_path: Path):
    (tmp_path / "file").write_text("")
    cache = NeffCache(tmp_path / "file" / "cache")
    with pytest.warns(RuntimeWarning, match="takes no new entry"):
        entry, hit = cache.find_or_build(KEY, build)
    assert (hit, entry.kept) == (False, False)
    assert entry.package.read_bytes() == b"machine code" * 100


def test_what_could_not_be_kept_is_gone_with_its_process(tmp_path: Path):
    (tmp_path / "file").write_text("")
    program = (
        "import sys, warnings; from pathlib import Path; from softneuron.compiler.cache import NeffCache\n"
        "warnings.simplefilter('ignore')\n"
        "def build(package):\n"
        "    package.write_bytes(b'whole'); return {}\n"
        f"entry, _ = NeffCache(Path(sys.argv[1])).find_or_build({KEY!r}, build)\n"
        "print(entry.package.read_bytes().decode())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "file" / "cache")],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_default_folder_is_that_of_aws(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TORCH_NEURONX_NEFF_CACHE_DIR", raising=False)
    assert NeffCache.from_environment().root == Path(DEFAULT_ROOT) == Path("/tmp/neff_cache")
    monkeypatch.setitem(os.environ, "TORCH_NEURONX_NEFF_CACHE_DIR", "/elsewhere")
    assert NeffCache.from_environment().root == Path("/elsewhere")
