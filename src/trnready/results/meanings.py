"""What every result, reason, warning and stage means, in words for a reader. The dataset card and the Space
both say it from here."""

from __future__ import annotations

THRESHOLD = 3.0
"""Largest score that passes: so many times the model's own rounding noise. Right devices score up to 2.5,
wrong ones from 3.3."""

TEST = (
    "Each row is one test of one model: it is loaded on the fewest NeuronCores that hold its weights, it "
    "generates 32 tokens, and these are checked."
)

DEVICES = (
    "The device kind says where it ran: hardware is Trainium, software is software cores on a host CPU. A "
    "result from software cores says nothing about speed on Trainium, and is a forecast, not a proof, of "
    "what Trainium would do."
)

PASS_SAYS = (
    "PASS says that the device computes the right thing over 32 tokens. It says nothing about longer "
    "generations unless one was tested, and nothing about speed."
)

RULE = (
    "The device's logits are compared with the CPU's, step by step, on the device's own tokens. The measure "
    "is the model's own rounding noise: how far the CPU's logits in the model's type are from the CPU's in "
    "float32. The score is the median over the steps of rms(device − CPU) / noise. Up to "
    f"{THRESHOLD:g} passes; right devices were seen to score up to 2.5, wrong ones from 3.3. A score cannot "
    "see an error that no prompt reaches, such as an expert that is never chosen."
)

RESULTS: dict[str, str] = {
    "PASS": "The model ran on the device, and what it generated was checked and found right.",
    "FAIL": "The model was run, and it did not run or did not generate what it should.",
    "SKIPPED": "The model was not judged: it was left out on purpose, or could not be tested.",
}

REASONS: dict[str, str] = {
    "match": (
        "What the device computed agrees with the CPU within the model's rounding noise, and so does every "
        "token, the order of the sentences, or every pixel."
    ),
    "match_within_noise": (
        "What the device computed agrees with the CPU within the model's rounding noise; tokens, order or "
        "pixels part where the CPU's own choice was that close."
    ),
    "judged": (
        "The CPU could not hold the model, so a small judge model read the text and found it sound English."
    ),
    "out_of_memory": "A core ran out of device memory.",
    "host_out_of_memory": "The host ran out of memory.",
    "unsupported_operator": "The device does not have an operator that the model needs.",
    "unsupported_dtype": "The device does not have a number type that the model needs.",
    "dynamic_shape": "The model needs a shape that is known only while it runs, and graphs have fixed ones.",
    "compile_error": "The compiler failed on one of the model's graphs.",
    "recompiles": (
        "More graphs were compiled than one input shape needs: too many in the first call, any in a "
        "second call of the same shape, or any in a second process, which should have found all in the cache."
    ),
    "runs_on_cpu": "Part of the model stayed on the CPU, so the device did not do the work.",
    "shard_error": "The model could not be split over the cores as planned.",
    "mismatch": "What the device computed differs from the CPU by more than rounding can explain.",
    "non_finite": "What the device computed holds NaN or infinity.",
    "garbled_text": "The judge model found that the text is not sound English.",
    "timeout": "The run took longer than its time limit.",
    "crash": "The process died, by a signal or a fatal error.",
    "error": "The run ended with an error that has no reason of its own yet.",
    "not_a_priority": "Nobody has asked for this model yet.",
    "incompatible": "The model is known not to work on this device.",
    "too_large": "The model does not fit on 4 Trainium2 chips, 16 cores.",
    "no_parallel_plan": "The model needs more than one core, and the library has no plan to split it.",
    "gated": "The Hub gives the model only to accounts that have accepted its terms.",
    "not_found": "There is no such model on the Hub, and no such folder.",
    "remote_code": "The model brings its own modelling code, which is not run without being asked.",
    "no_safetensors": "The model has no weights in the safetensors format, or they are damaged.",
    "invalid_config": "The model's configuration is missing, damaged or makes no sense.",
    "unsupported_quantization": "The weights are quantized in a way that this stack cannot load.",
    "unsupported_architecture": "The library does not know this architecture, or not for this task.",
    "processor_unavailable": "The model's tokenizer or processor could not be loaded.",
    "reference_failed": (
        "There is nothing to compare the device with: the CPU could not run the model, or its numbers are no "
        "measure, being NaN or hardly above their own rounding noise."
    ),
}

WARNINGS: dict[str, str] = {
    "not_compiled": (
        "On at least one core, no graph ran as compiled code: the model ran operator by operator."
    ),
    "fallback_ops": "Some operators ran on the CPU instead of the device.",
    "graph_breaks": "The model did not compile as one graph: it was broken into several.",
    "degenerate_text": "The text repeats itself, so the comparison says less than usual.",
}

STAGES: dict[str, str] = {
    "resolve": "finding the model and its files",
    "plan": "choosing cores and how to split",
    "load": "loading the weights onto the device",
    "shard": "splitting the model over the cores",
    "compile": "running the model for the first time, which compiles its graphs",
    "run": "running the model again, with its graphs compiled",
    "verify": "checking what was generated",
}
