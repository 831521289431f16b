"""What each fault is tried on. `python -m faults.workloads NAME OUT [ARGUMENT…]` runs one in this process,
with the faults that `SOFTNEURON_FAULTS` asks for, and writes what came of it as JSON to OUT. The table starts
them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FOLDER = "FAULTS_FOLDER"
"""Names the folder for checkpoints, NEFF caches and logs."""


@dataclass(frozen=True)
class Got:
    """What a workload came to: `outcome` such as "FAIL mismatch"; a score where there is one; a remark."""

    outcome: str
    score: float | None = None
    remark: str = ""


def _folder() -> Path:
    return Path(os.environ[FOLDER])


def _model(name: str) -> Path:
    from faults.checkpoints import checkpoint

    return checkpoint(_folder() / "checkpoints", name)


def _got(checked: Any, remark: str = "") -> Got:
    verdict = checked.verdict
    warned = f" ({', '.join(verdict.warnings)})" if verdict.warnings and verdict.result == "PASS" else ""
    return Got(f"{verdict.result} {verdict.reason}{warned}", checked.score, remark or verdict.error or "")


def generate(model: str, dtype: str = "bfloat16") -> Got:
    """Greedy generation of 32 tokens with a static cache, against the CPU."""
    from faults.one_check import check

    return _got(check(_model(model), dtype))


def several(model: str, *texts: str) -> Got:
    """The same generation with one fault after another, switched on and off in one process; the outcomes are
    told in the remark, as JSON, with whether the fault fired. The empty text is the unbroken device."""
    import torch

    from faults.one_check import check
    from softneuron import _C
    from softneuron.diagnostics import faults

    assert torch.neuron.is_available()
    folder = _model(model)
    outcomes = {}
    for text in texts:
        faults.switch(_C, faults.parse_faults(text))
        try:
            checked = check(folder)
            got = _got(checked)
            outcomes[text] = (got.outcome, all(faults.fired(_C).values()), got.score, checked.verdict.error)
        finally:
            faults.switch(_C, ())
    return Got(f"{len(outcomes)} tried", None, json.dumps(outcomes))


PROMPTS = ("The capital of France is", "She opened the old book,", "In winter the harbour is")
"""Equally long, so that a tokenizer of bytes gives them one shape and one graph."""


def three_prompts(*models: str) -> Got:
    """Three prompts in two dtypes for each model; every one must pass. The runs are told in the remark, as
    JSON; a model that cannot be run has one line, without a dtype."""
    runs: list[dict[str, object]] = []
    for model in models:
        try:
            runs += list(_three_prompts(model))
        except Exception as error:
            traceback.print_exc()
            why = f"{type(error).__name__}: {error}"
            runs.append({"model": model, "outcome": "died", "score": None, "why": why})
    passed = sum(str(each["outcome"]).startswith("PASS") for each in runs)
    return Got(f"{passed} of {len(runs)} pass", None, json.dumps(runs))


def _three_prompts(model: str) -> Iterator[dict[str, object]]:
    from faults.one_check import check

    folder = _model(model)
    for dtype in ("bfloat16", "float32"):
        for prompt in PROMPTS:
            checked = check(folder, dtype, prompt)
            told = {"model": model, "dtype": dtype, "prompt": prompt, "outcome": _got(checked).outcome}
            yield told | {"score": checked.score, "why": checked.verdict.error}


def float32_by_both_rules(model: str) -> Got:
    """A float32 model by the rule for software cores, and by that for hardware."""
    from faults.one_check import by_the_hardware_rule, check

    folder = _model(model)
    checked = check(folder, "float32")
    hardware = by_the_hardware_rule(folder, checked, "float32", "bfloat16")
    soft = checked.verdict
    return Got(
        f"{soft.result} {soft.reason}; by the hardware rule {hardware.result}",
        None if hardware.comparison is None else hardware.comparison.score,
        soft.error or "",
    )


def seq2seq_twice(model: str) -> Got:
    """An encoder-decoder that is given two different inputs, one after the other; the second is judged."""
    import numpy as np
    import torch

    from trnready.plan import twin

    made = twin.of_model_type(model, "AutoModelForSeq2SeqLM")
    first = torch.tensor([list(made.prompt)])
    second = first.roll(3, 1) + 1
    host: Any = made.build("bfloat16")
    wide: Any = made.build("float32")
    device: Any = made.build("bfloat16").to("neuron")

    def logits(model: Any, ids: Any) -> Any:
        inputs = ids.to(model.device)
        output = model.generate(
            input_ids=inputs,
            attention_mask=torch.ones_like(inputs),
            do_sample=False,
            max_new_tokens=32,
            min_new_tokens=32,
            disable_compile=True,
            output_logits=True,
            return_dict_in_generate=True,
        )
        return torch.cat(output.logits).float().cpu().numpy()

    outcomes = []
    for inputs in (first, second):
        # One forward pass over the whole is enough for the noise: its first token is not fed back.
        got, same, other = (logits(each, inputs) for each in (device, host, wide))
        outcomes.append(np.array_equal(got, same))
        score = float(np.median(_rms(got - same)[:1] / _rms(same - other)[:1]))
    if not outcomes[0]:
        return Got("the first input already differs", score)
    return Got("PASS match" if outcomes[1] else "FAIL mismatch", score)


def _rms(values: Any) -> Any:
    import numpy as np

    return np.sqrt(np.mean(np.square(values.astype(np.float64)), axis=-1))


def tied_weights() -> Got:
    """Peak bytes against the plan, and three training steps against the CPU."""
    import torch
    from transformers import Qwen3ForCausalLM

    folder = _model("qwen3")
    config = json.loads((folder / "config.json").read_text())
    plan = sum(path.stat().st_size for path in folder.glob("*.safetensors")) * 2  # stored in bfloat16

    def losses(place: str) -> list[float]:
        torch.manual_seed(0)
        model = Qwen3ForCausalLM.from_pretrained(folder, dtype="float32")
        # Tied as SmolLM2 is; with weights that come apart the optimizer trains two tables.
        model.lm_head.weight = model.model.embed_tokens.weight
        model.to(place).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        tokens = torch.arange(1, 17)[None].to(place) % config["vocab_size"]
        found = []
        for _ in range(3):
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(float(loss.detach().cpu()))
        return found

    torch.neuron.reset_peak_memory_stats()
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype="float32")
    model.lm_head.weight = model.model.embed_tokens.weight
    tied = sum(each.nbytes for each in model.parameters())
    model.to("neuron")
    held = torch.neuron.memory_allocated()
    del model
    out_of_plan = held > tied * 1.02
    same = losses("cpu") == losses("neuron")
    parts = ["in plan" if not out_of_plan else "out of plan", "losses equal" if same else "losses differ"]
    return Got(
        f"{'FAIL' if out_of_plan or not same else 'PASS'} {', '.join(parts)}", None, f"{held}/{tied}/{plan}"
    )


def two_cores() -> Got:
    """A model with a layer on each of two cores of one process; the rule looks at the bytes of each core."""
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM

    from trnready.run.report import Evidence
    from trnready.verdict import rule

    folder = _model("qwen3")
    place = {"model.embed_tokens": 0, "model.rotary_emb": 0, "model.layers.0": 0}
    place |= {"model.layers.1": 1, "model.norm": 1, "lm_head": 1}
    device_map = {name: f"neuron:{core}" for name, core in place.items()}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="bfloat16", device_map=device_map)
    inputs = torch.arange(2, 10)[None]
    with torch.no_grad():
        got = model(input_ids=inputs).logits.float().cpu().numpy()
        host = AutoModelForCausalLM.from_pretrained(folder, dtype="bfloat16")
        same = np.array_equal(got, host(input_ids=inputs).logits.float().numpy())
    parameters = list(model.parameters())
    shares = [sum(each.nbytes for each in parameters if each.device.index == core) for core in range(2)]
    peaks = tuple(int(torch.neuron.max_memory_allocated(core)) for core in range(2))
    evidence = Evidence(
        device="neuron",
        dtypes=("bfloat16",),
        cores=2,
        text="",
        load_s=0.0,
        first_call_s=0.0,
        later_call_s=0.0,
        parameter_devices=tuple(sorted({str(each.device) for each in parameters})),
        parameter_bytes=sum(shares),
        graphs_first_call=(),
        graphs=(),
        graph_breaks=0,
        fallback_ops=(),
        instance=None,
        peak_bytes=peaks,
        versions={},
        parameter_bytes_per_core=tuple(shares),
        graphs_per_core=(0, 0),
    )
    verdict = rule.without_evidence(evidence, "software")
    if verdict is not None:
        return Got(f"{verdict.result} {verdict.reason}", None, verdict.error or "")
    return Got("PASS match" if same else "FAIL mismatch", None, f"{peaks} bytes")


def unset_buffer() -> Got:
    """A model that was loaded by way of the meta device, with a buffer that nobody filled."""
    import numpy as np
    import torch
    from transformers import Qwen3ForCausalLM

    folder = _model("qwen3")
    host = Qwen3ForCausalLM.from_pretrained(folder, dtype="float32")
    with torch.device("meta"):
        model = Qwen3ForCausalLM(host.config)
    model.to_empty(device="neuron")
    # The rotary frequencies are no part of the checkpoint: who loads so must work them out.
    model.load_state_dict(host.state_dict())
    inputs = torch.arange(2, 34)[None]
    with torch.no_grad():
        got = model(input_ids=inputs.to("neuron")).logits.float().cpu().numpy()
        same = host(input_ids=inputs).logits.float().numpy()
    if not np.isfinite(got).all():
        return Got("FAIL non_finite")
    return Got("PASS match" if np.array_equal(got, same) else "FAIL mismatch")


def data_dependent() -> Got:
    """A forward pass with a shape that depends on data: experts that are run on the tokens that chose
    them."""
    import torch
    from transformers import AutoModelForCausalLM

    from trnready.run.failure import FINDERS

    model = AutoModelForCausalLM.from_pretrained(
        _model("qwen2_moe"), dtype="bfloat16", device_map="neuron", experts_implementation="eager"
    )
    try:
        model.generate(torch.arange(2, 10)[None], do_sample=False, max_new_tokens=2)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        found = next((each for each in FINDERS if each.pattern.search(text)), None)
        return Got(f"FAIL {found.reason if found else 'error'}", None, text.splitlines()[0])
    return Got("PASS")


def sampling() -> Got:
    """32 tokens drawn on the device with a seed, twice, and on the CPU."""
    import torch

    def drawn(place: str) -> list[int]:
        torch.manual_seed(1)
        odds = torch.rand(32, 100, generator=torch.Generator().manual_seed(2)).to(place)
        return torch.multinomial(odds, 1)[:, 0].tolist()

    first, second, host = drawn("neuron"), drawn("neuron"), drawn("cpu")
    return Got("PASS match" if first == second == host else "FAIL mismatch")


def poisoned_cache(fault: str) -> Got:
    """The NEFF cache holds the model's graph; the fault spoils the entry before it is looked up again."""
    import torch
    import torch_neuronx

    from faults.one_check import check
    from softneuron import _C
    from softneuron.diagnostics import faults

    folder = _model("qwen3")
    with torch.no_grad():
        torch.compile(lambda x: x * 2 + 1, backend="neuron")(torch.ones(8, device="neuron"))
    outcomes, hits = [], []
    for active in ("", fault, ""):
        faults.switch(_C, faults.parse_faults(active))
        torch._dynamo.reset()
        torch_neuronx.reset_dynamo_metrics()
        checked = check(folder)
        outcomes.append(checked.verdict.result)
        hits.append(sum(bool(graph.cache_hit) for graph in checked.device.graphs or ()))
        if active:
            fired = faults.fired(_C)[fault]
    if not fired:
        return Got(f"{fault} NEVER FIRED")
    rebuilt = "rebuilt" if hits[1] == 0 else "not rebuilt"
    return Got(
        f"{outcomes[1]} {rebuilt}, then {outcomes[2]} with {hits[2]} hit", checked.score, f"hits {hits}"
    )


def command(model: str, *options: str) -> Got:
    """The whole of `trnready check`, as a user types it."""
    from trnready.results import dataset

    results = _folder() / "results" / f"{os.getpid()}"
    model_folder = str(_model(model))
    faults = os.environ.pop("ASKED_FAULTS", "")
    ran = subprocess.run(
        [sys.executable, "-m", "trnready", "check", model_folder, "--results", str(results), *options],
        env=os.environ | {"SOFTNEURON_FAULTS": faults},
        capture_output=True,
        text=True,
    )
    rows = dataset.read(results)
    for log in sorted(results.glob("runs/*/run.log")):
        sys.stderr.write(log.read_text(encoding="utf-8", errors="replace"))
    if not rows:
        return Got(f"no row, exit status {ran.returncode}", None, ran.stderr[-300:])
    row = max(rows, key=lambda each: each.tested_at)
    flaky = " flaky" if row.flaky else ""
    cores = f" on {row.neuron_cores} cores" if (row.neuron_cores or 1) > 1 else ""
    return Got(f"{row.result} {row.reason}{flaky}{cores}", row.score, row.error or "")


def sharded_text(cores: str) -> Got:
    """SmolLM2 split over several cores by Transformers, one process each, and judged by what it writes."""
    from trnready.verdict.judge import judge_text

    out = _folder() / f"sharded-{os.getpid()}.json"
    environment = os.environ | {
        "SOFTNEURON_FAULTS": os.environ.get("ASKED_FAULTS", ""),
        "SOFTNEURON_INSTANCE": "custom",
        "SOFTNEURON_CORES": "4",
    }
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={cores}"]
    ran = subprocess.run(
        [*launcher, str(Path(__file__).with_name("sharded.py")), str(_model("smollm2")), str(out)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    sys.stderr.write(ran.stdout)
    if not out.exists():
        return Got("no answer", None, ran.stdout[-300:])
    text = json.loads(out.read_text())["text"]
    judgement = judge_text(text)
    outcome = "PASS judged" if judgement.sound else "FAIL garbled_text"
    return Got(outcome, None, f"{judgement.because or 'sound'}: {text[:60]!r}")


WORKLOADS: dict[str, Callable[..., Got]] = {
    each.__name__: each
    for each in (
        generate,
        several,
        three_prompts,
        float32_by_both_rules,
        seq2seq_twice,
        tied_weights,
        two_cores,
        unset_buffer,
        data_dependent,
        sampling,
        poisoned_cache,
        command,
        sharded_text,
    )
}


def main() -> None:
    """Run the workload that is named and leave what it came to."""
    name, out, *arguments = sys.argv[1:]
    got = WORKLOADS[name](*arguments)
    Path(out).write_text(json.dumps(asdict(got)), encoding="utf-8")


if __name__ == "__main__":
    main()
