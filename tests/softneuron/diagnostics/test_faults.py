"""Fault modes: parsed strictly, announced, and felt by eager operators and compiled graphs alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softneuron.diagnostics.faults import FAULTS, Fault, UnknownFault, parse_faults


@given(st.lists(st.tuples(st.sampled_from(sorted(FAULTS)), st.integers(0, 99)), max_size=4))
def test_faults_are_read_back_from_their_text(pairs):
    faults = tuple(Fault(name, argument) for name, argument in pairs)
    assert parse_faults(",".join(map(str, faults))) == faults


def test_an_argument_may_be_left_out_or_be_a_word():
    assert parse_faults(" nan_logits , ") == (Fault("nan_logits", 0),)
    assert parse_faults("attention_scale") == (Fault("attention_scale", 10),)
    assert parse_faults("silent_cpu:model,silent_cpu") == (Fault("silent_cpu", 2), Fault("silent_cpu", 0))


UNKNOWN = ["slow", "skip_layer:last", "silent_cpu:all", "skip_layer:-1", "nan_logits skip_layer"]


@pytest.mark.parametrize("text", UNKNOWN)
def test_an_unknown_fault_is_refused_with_the_known_ones(text):
    with pytest.raises(UnknownFault, match="there are nan_logits, skip_layer"):
        parse_faults(text)


PROGRAM = """
import warnings
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    import torch
print([str(w.message) for w in seen])

class Decoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(50, 8)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(24, 8, bias=False) for _ in range(2))
        self.head = torch.nn.Linear(8, 50, bias=False)
    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            heads = x.unsqueeze(1)
            x = x + torch.nn.functional.scaled_dot_product_attention(heads, heads, heads).squeeze(1)
            x = x + layer(torch.cat([x, x * 2, x * 3], -1))
        return self.head(x)

tokens = torch.arange(6)[None]
with torch.no_grad():
    model = Decoder()
    right = model(tokens)
    model.to("neuron")
    compiled = torch.compile(model, backend="neuron")
    wrong = [run(tokens.to("neuron")).cpu() for run in (model, compiled)]
    skipped = list(model.cpu().layers)
    x = model.embed(tokens)
    heads = x.unsqueeze(1)
    x = x + torch.nn.functional.scaled_dot_product_attention(heads, heads, heads).squeeze(1)
    expected = model.head(x + skipped[0](torch.cat([x, x * 2, x * 3], -1)))
print([bool(torch.isnan(logits).all()) for logits in wrong])
print([bool(torch.allclose(logits, right)) for logits in wrong])
print([bool(torch.allclose(logits, expected, atol=1e-5)) for logits in wrong])
"""


@pytest.mark.slow
def test_without_a_fault_the_device_is_right(run_python, neff_cache):
    assert run_python(PROGRAM).splitlines() == ["[]", "[False, False]", "[True, True]", "[False, False]"]


@pytest.mark.slow
def test_nan_logits(run_python, neff_cache):
    announced, nan, right, _ = run_python(PROGRAM, SOFTNEURON_FAULTS="nan_logits").splitlines()
    assert "wrong on purpose (SOFTNEURON_FAULTS=nan_logits)" in announced
    assert (nan, right) == ("[True, True]", "[False, False]")


@pytest.mark.slow
def test_skip_layer_leaves_out_exactly_that_layer(run_python, neff_cache):
    _, _, right, skipped = run_python(PROGRAM, SOFTNEURON_FAULTS="skip_layer:1").splitlines()
    assert (right, skipped) == ("[False, False]", "[True, True]")


def test_an_unknown_fault_makes_the_device_unusable(run_python):
    program = (
        "import torch\n"
        "print(torch.neuron.device_count())\n"
        "try: torch.ones(1, device='neuron')\n"
        "except RuntimeError as error: print(str(error)[:46])"
    )
    assert run_python(program, SOFTNEURON_FAULTS="slow").splitlines() == [
        "0",
        "SOFTNEURON_FAULTS: 'slow' is no fault mode; th",
    ]
