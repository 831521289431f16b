"""`make false-alarms`: the unbroken device over 21 different models, 3 prompts and 2 dtypes. Every one must
pass; the scores are kept, as those of right devices. Stopped, it goes on with the next model, as long as
nothing has changed that a score may depend on."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from importlib import metadata
from pathlib import Path

from rich.console import Console

from faults.checkpoints import SMOLLM2
from faults.running import Result, run_all
from faults.table import COMPILED, INTERPRETED, Case

ROOT = Path(__file__).resolve().parents[2]
DECIDING = (
    "src/softneuron",
    "src/trnready/plan",
    "src/trnready/script",
    "src/trnready/verdict",
    "tests/faults",
)
"""What a score may depend on, besides the libraries."""

MODELS = (
    SMOLLM2,
    "llama",
    "qwen2",
    "qwen3",
    "gpt2",
    "gpt_neox",
    "gptj",
    "phi",
    "phi3",
    "opt",
    "bloom",
    "falcon",
    "starcoder2",
    "stablelm",
    "olmo2",
    "granite",
    "smollm3",
    "mamba2",
    "qwen2_moe",
    "qwen3_next",
    "bart",
)


def main() -> int:
    """Run them all; 1 when one of them does not pass."""
    parser = argparse.ArgumentParser(prog="faults.alarms", description=__doc__)
    parser.add_argument(
        "--folder", type=Path, default=Path(".faults"), help="where to keep models and scores"
    )
    parser.add_argument("--level", choices=(INTERPRETED, COMPILED), default=COMPILED)
    parser.add_argument("--models", default=",".join(MODELS), help="which of them, with commas")
    parser.add_argument(
        "--together",
        type=int,
        default=3,
        help="how many models share a process, which takes seconds to start",
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2)
    args = parser.parse_args()
    folder = args.folder.resolve()
    console = Console(stderr=True)
    start = time.monotonic()
    name = "alarms.json" if args.level == COMPILED else "alarms-interpreted.json"
    folder.mkdir(parents=True, exist_ok=True)
    code = _code()
    runs = _kept(folder / name, code)
    done = {each["model"] for each in runs}
    models = args.models.split(",")
    left = [each for each in models if each not in done]
    if not left:
        # A finished time is no unfinished one: run all of it again.
        runs = [each for each in runs if each["model"] not in models]
        left = models
    elif len(left) < len(models):
        console.print(f"{len(models) - len(left)} of {len(models)} models were run before; going on.")
    groups = [tuple(left[first : first + args.together]) for first in range(0, len(left), args.together)]
    cases = [Case("", "three_prompts", each, (), args.level) for each in groups]

    def seen(result: Result) -> None:
        runs.extend(each | {"code": code} for each in _runs(result))
        # Whatever ends this early, what was measured stays.
        (folder / name).write_text(json.dumps(runs, indent=1), encoding="utf-8")
        spent = time.monotonic() - start
        console.print(
            f"[{spent:6.1f} s] {result.case.on}: {result.outcome}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )

    run_all(cases, folder, args.workers, seen)
    runs = [each for each in runs if each["model"] in models]
    alarms = [each for each in runs if not str(each["outcome"]).startswith("PASS")]
    scores = [each["score"] for each in runs if isinstance(each["score"], float)]
    print(
        f"{len(runs)} runs of {len(models)} models in {(time.monotonic() - start) / 60:.1f} minutes, "
        f"{len(alarms)} false alarms, highest score {max(scores, default=0):.3g}."
    )
    for each in alarms:
        print(f"  {each}")
    return 1 if alarms else 0


def _code() -> str:
    """Name the code and the libraries that make the scores."""
    digest = hashlib.sha256()
    for library in ("torch", "transformers", "numpy"):
        digest.update(f"{library} {metadata.version(library)}\0".encode())
    for folder in DECIDING:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".so", ".jinja"):
                digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _kept(path: Path, code: str) -> list[dict[str, object]]:
    """Give the runs of an earlier, unfinished time, if they are of this code; a model without runs in it is
    run again."""
    if not path.exists():
        return []
    runs: list[dict[str, object]] = json.loads(path.read_text(encoding="utf-8"))
    return [each for each in runs if each.get("code") == code and "dtype" in each]


def _runs(result: Result) -> list[dict[str, object]]:
    try:
        runs: list[dict[str, object]] = json.loads(result.remark)
    except ValueError:
        told: dict[str, object] = {"outcome": result.outcome, "score": None, "why": result.remark}
        return [{"model": model} | told for model in result.case.arguments]
    return runs


if __name__ == "__main__":
    sys.exit(main())
