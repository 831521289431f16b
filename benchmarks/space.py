"""Whether the Space stays quick at the size of the Hub: 400,000 listed models and 20,000 rows.

Makes a Space of that size, builds its index beforehand, starts `trnready serve` and asks it at a steady rate
for views, filters, searches and pages chosen at random, on the pages and the API alike, and for a static
file, which says what the machine itself takes at that moment. Prints the start-up, the latencies of each kind
of question, the processor time a question, and the most memory the process held; exit status 1 when a limit
is not held.

    .venv/bin/python benchmarks/space.py            # 400,000 models, 20,000 rows, 20 requests a second, 60 s
    .venv/bin/python benchmarks/space.py --models 20000 --rows 1000 --seconds 10
"""

from __future__ import annotations

import argparse
import http.client
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote, urlencode

import pyarrow.parquet as pq

from trnready.hub import catalog
from trnready.hub.catalog import About, Listed
from trnready.results import dataset
from trnready.results.row import REASONS, Row
from trnready.results.schema import to_table

P95_MS, MEMORY_MIB, START_S = 50.0, 1024.0, 5.0
TASKS = ("text-generation", "image-text-to-text")
PAIRS = (
    ("2.28.7631.0", "5.24.0", "hardware"),
    ("2.27.5334.0", "5.23.0", "hardware"),
    ("soft-0.1.0", "5.24.0", "software"),
    ("soft-0.0.9", "5.23.0", "software"),
)
CHECKOUT = Path(__file__).resolve().parents[1]


def names(count: int, chance: random.Random) -> list[str]:
    """Names made of the parts of real ones, as many and as alike as the Hub's."""
    real = [
        name
        for task in TASKS
        for name in catalog.read(CHECKOUT / "catalog" / f"{task}.parquet").table["model_id"].to_pylist()
    ]
    owners = [name.split("/")[0] for name in real if "/" in name]
    words = [word for name in real for word in name.split("/")[-1].split("-")]
    found = dict.fromkeys(real[:count])
    while len(found) < count:
        parts = chance.sample(words, chance.randint(2, 6))
        found[f"{chance.choice(owners)}/{'-'.join(parts)}"[:96]] = None
    return list(found)


def write_catalogs(folder: Path, listed: list[str], chance: random.Random) -> None:
    """Two lists, three quarters of the models in the first, with both orders."""
    types = ["llama", "qwen3", "mistral", "gemma3", "phi3", "gpt2", "qwen3_moe", "mixtral", None]
    folder.mkdir(parents=True)
    cut = len(listed) * 3 // 4
    for task, part in zip(TASKS, (listed[:cut], listed[cut:]), strict=True):
        trend = {name: place for place, name in enumerate(chance.sample(part, len(part) // 4), 1)}
        models = [
            Listed(
                model_id=name,
                task=task,
                model_type=chance.choice(types),
                parameters=chance.choice([None, 10**9, 8 * 10**9, 70 * 10**9]),
                license="apache-2.0",
                gated="no",
                likes=chance.randint(0, 9999),
                downloads=10**8 // place,
                downloads_position=place,
                trending_score=1e6 / trend[name] if name in trend else None,
                trending_position=trend.get(name),
            )
            for place, name in enumerate(part, 1)
        ]
        about = About("made for benchmarks/space.py", "2026-10", "2026-10")
        (folder / f"{task}.parquet").write_bytes(catalog.encode(about, models))
    (folder / "selected.yaml").write_bytes((CHECKOUT / "catalog" / "selected.yaml").read_bytes())


def write_rows(results: Path, tested: list[str], count: int, chance: random.Random) -> None:
    """Rows as large as real ones, spread over the pairs of versions."""
    (results / "data").mkdir(parents=True)
    script = "".join(f"line_{i} = {chance.random()}  # what a script holds\n" for i in range(60))
    start = datetime(2026, 10, 1, tzinfo=UTC)
    for number, (compiler, version, kind) in enumerate(PAIRS):
        rows = []
        for i in range(count // len(PAIRS)):
            result = chance.choices(["PASS", "FAIL", "SKIPPED"], [7, 2, 1])[0]
            reason = chance.choice(REASONS[result])
            rows.append(
                Row(
                    model_id=tested[i],
                    task=TASKS[0],
                    library="transformers",
                    library_version=version,
                    neuronx_cc=compiler,
                    neuron_cores=chance.choice([1, 2, 4, 8, 16]),
                    result=result,
                    reason=reason,
                    stage="verify",
                    device_kind=kind,
                    instance="trn2.3xlarge",
                    dtype="bfloat16",
                    wall_time_s=chance.uniform(20, 3000),
                    peak_memory_bytes=chance.randint(10**8, 2 * 10**10),
                    fingerprint=f"{chance.randint(0, 300):08x}" if result == "FAIL" else None,
                    error="something went wrong" if result == "FAIL" else None,
                    score=chance.uniform(0.1, 2.9),
                    score_steps=[chance.random() for _ in range(32)],
                    tokens_device=list(range(32)),
                    tokens_reference=list(range(32)),
                    text="The capital of France is Paris. " * 4,
                    text_reference="The capital of France is Paris. " * 4,
                    run_py=script,
                    log_tail=script[: chance.randint(500, 3000)],
                    plan="{}",
                    versions={f"package-{n}": "1.0.0" for n in range(40)},
                    tested_at=start + timedelta(minutes=i, days=number),
                    run_id=f"run-{number}-{i}",
                )
            )
        pq.write_table(to_table(rows), results / "data" / dataset.pair_file(rows[0]), compression="zstd")


@dataclass(frozen=True)
class Question:
    """An address to ask for, and the kind of question it is."""

    kind: str
    address: str


def questions(listed: list[str], tested: list[str], chance: random.Random) -> Iterator[Question]:
    """Questions without end: every kind as often as the others, each in a state chosen at random."""

    def pair() -> tuple[str, str, str]:
        return chance.choice(PAIRS)

    def part() -> str:
        name = chance.choice(listed)
        start = chance.randrange(len(name))
        return name[start : start + chance.choice([1, 2, 3, 4, 5, 8, 12])]

    def api(**values: object) -> str:
        return "/api/v1/models?" + urlencode({k: v for k, v in values.items() if v is not None})

    def page(path: str, **values: object) -> str:
        return f"{path}?{urlencode(values)}"

    def lists() -> dict[str, object]:
        return {"view": chance.choice(["selected", "trending", "downloads", "results"]), "task": TASKS[0]}

    def address(name: str) -> str:
        return quote(name)

    kinds: dict[str, Callable[[], str]] = {
        # What the machine itself takes: nothing is looked up or rendered for it.
        "(a static file)": lambda: "/static/icon.svg",
        "api view": lambda: api(**lists(), page=1),
        "api deep page": lambda: api(view="downloads", task=TASKS[0], page=chance.randint(1, 5000)),
        "api search": lambda: api(**lists(), search=part()),
        "api two words": lambda: api(view="downloads", search=f"{part()} {part()}"),
        "api filter": lambda: api(
            **lists(),
            neuronx_cc=pair()[0],
            result=chance.choice(["PASS", "FAIL", "SKIPPED", "untested"]),
            search=chance.choice(["", part()]),
        ),
        "api sort": lambda: api(
            **lists(),
            sort=chance.choice(
                ["name", "wall_time", "memory", "downloads", "parameters", "tested_at", "likes"]
            ),
            search=chance.choice(["", part()]),
        ),
        "api model": lambda: f"/api/v1/models/{address(chance.choice(listed))}",
        "api row": lambda: f"/api/v1/runs/run-{chance.randrange(len(PAIRS))}-{chance.randrange(len(tested))}",
        "api overview": lambda: chance.choice(
            ["/api/v1/coverage", "/api/v1/pairs", "/api/v1/failures", "/api/v1/compare", "/feed.xml"]
        ),
        "badge": lambda: f"/badge/{address(chance.choice(tested))}.svg",
        "page selected": lambda: page("/", device=pair()[2]),
        "page downloads": lambda: page("/downloads", task=TASKS[0], page=chance.randint(1, 1000)),
        "page trending": lambda: page("/trending", task=chance.choice(TASKS), q=part()),
        "page search": lambda: page("/downloads", q=part()),
        "page results": lambda: page("/results", result=chance.choice(["PASS", "FAIL"]), sort="wall_time"),
        "page model": lambda: f"/models/{address(chance.choice(tested))}",
        "page untested": lambda: f"/models/{address(chance.choice(listed))}",
        "page overview": lambda: chance.choice(["/compare", "/failures", "/coverage", "/about"]),
    }
    while True:
        for kind in chance.sample(list(kinds), len(kinds)):
            yield Question(kind, kinds[kind]())


def ask(port: int, question: Question, due: float) -> tuple[str, float, int, str]:
    """Ask, and give the kind, the milliseconds since the question was due, the status, and the address."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", question.address)
    response = connection.getresponse()
    response.read()
    connection.close()
    return question.kind, (time.perf_counter() - due) * 1e3, response.status, question.address


def load(
    port: int, asked: Iterator[Question], rate: float, seconds: float
) -> list[tuple[str, float, int, str]]:
    """Ask at a steady rate, whether or not the answers keep up, and give what came of each question."""
    with ThreadPoolExecutor(16) as pool:
        waiting = []
        start = time.perf_counter()
        for number in range(int(rate * seconds)):
            due = start + number / rate
            time.sleep(max(0.0, due - time.perf_counter()))
            waiting.append(pool.submit(ask, port, next(asked), due))
        return [each.result() for each in waiting]


def percentile(values: list[float], share: float) -> float:
    """Give the value that this share of the values does not pass."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def cpu_s(pid: int) -> float:
    """Give the processor time that a process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int, name: str) -> float:
    """Give VmHWM (the most so far) or VmRSS (now) of a process, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise ValueError(name)


def main() -> int:
    """Make the Space, ask it, print what came of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=int, default=400_000)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--kinds", default="", help="only kinds of questions whose name begins so: api, page")
    parser.add_argument("--folder", type=Path, help="keep the Space here, and use it when it is there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        return run(options, options.folder or Path(temporary))


def run(options: argparse.Namespace, folder: Path) -> int:
    """Run the benchmark in a folder."""
    chance = random.Random(20261001)
    listed = names(options.models, chance)
    tested = [*listed[:100], *chance.sample(listed[100:], options.rows // len(PAIRS) - 100)]
    results, catalogs = folder / "results", folder / "catalog"
    if not results.exists():
        write_catalogs(catalogs, listed, chance)
        write_rows(results, tested, options.rows, chance)
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache"), "PYTHONUNBUFFERED": "1"}
    program = [sys.executable, "-m", "trnready"]
    where = ["--results", str(results), "--catalog", str(catalogs)]
    start = time.perf_counter()
    built = subprocess.run(
        [*program, "space", "index", *where], env=environment, check=True, capture_output=True, text=True
    )
    print(built.stdout.strip())
    print(f"index built in {time.perf_counter() - start:.1f} s")
    start = time.perf_counter()
    serving = subprocess.Popen(
        [*program, "serve", *where, "--port", "0"], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert serving.stdout is not None
        port = int(serving.stdout.readline().split(":")[-1].split()[0])
        ask(port, Question("", "/"), 0)
        ready = time.perf_counter() - start
        print(f"start-up with the index built: {ready:.2f} s until the first page (limit {START_S:g} s)")
        asked = (
            each for each in questions(listed, tested, chance) if each.kind.startswith(("(", options.kinds))
        )
        load(port, asked, options.rate, min(5, options.seconds))
        before = cpu_s(serving.pid)
        answers = load(port, asked, options.rate, options.seconds)
        each_ms = (cpu_s(serving.pid) - before) * 1e3 / len(answers)
        print(f"processor time of the Space: {each_ms:.1f} ms a question")
        return report(answers, memory_mib(serving.pid, "VmHWM"), ready)
    finally:
        serving.terminate()
        serving.wait()


def report(answers: list[tuple[str, float, int, str]], memory: float, ready: float) -> int:
    """Print the latencies of each kind, and say whether the limits are held."""
    kinds: dict[str, list[float]] = defaultdict(list)
    for kind, took, _, _ in answers:
        kinds[kind].append(took)
    print(f"{'question':18}{'asked':>7}{'median ms':>11}{'p95 ms':>9}{'most ms':>9}")
    for kind, values in sorted(kinds.items()):
        told = (statistics.median(values), percentile(values, 0.95), max(values))
        print(f"{kind:18}{len(values):7}{told[0]:11.1f}{told[1]:9.1f}{told[2]:9.1f}")
    everything = [took for kind, took, _, _ in answers if not kind.startswith("(")]
    p95 = percentile(everything, 0.95)
    print(
        f"{'all':18}{len(everything):7}{statistics.median(everything):11.1f}{p95:9.1f}{max(everything):9.1f}"
    )
    for kind, took, _, address in sorted(answers, key=lambda each: -each[1])[:5]:
        print(f"  slowest: {took:7.1f} ms {kind}: {address[:120]}")
    wrong = [(status, address) for _, _, status, address in answers if status >= 500]
    refused = sum(400 <= status < 500 for _, _, status, _ in answers)
    print(f"memory at most {memory:.0f} MiB (limit {MEMORY_MIB:.0f} MiB); {refused} answers of status 4xx")
    for status, address in wrong[:5]:
        print(f"  status {status}: {address}")
    held = p95 <= P95_MS and memory <= MEMORY_MIB and ready <= START_S and not wrong
    print("all limits are held" if held else "a limit is NOT held")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
