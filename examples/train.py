"""Train on one NeuronCore with Transformers' Trainer, compiled, with one shape for every step.

    python examples/train.py MODEL [--steps 8] [--eager]

MODEL is a checkpoint folder or a Hub id. Inputs are padded to one length and the last batch is dropped, so
the run compiles exactly one forward and one backward graph; what was compiled is printed at the end.
"""

from __future__ import annotations

import argparse

import torch
import torch_neuronx
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

TEXTS = [
    "The French Bread Law states what a baker may call bread.",
    "Flour, water, salt and yeast; nothing else goes into it.",
    "It is sold where it was kneaded and baked.",
]
LENGTH = 32


class PaddedTexts(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """The texts in turn, each `LENGTH` tokens long; padding has the label -100, which the loss leaves out."""

    def __init__(self, tokenizer: object, size: int) -> None:
        encoded = tokenizer(
            TEXTS, padding="max_length", max_length=LENGTH, truncation=True, return_tensors="pt"
        )
        labels = encoded["input_ids"].masked_fill(encoded["attention_mask"] == 0, -100)
        self.rows = [
            {"input_ids": ids, "attention_mask": mask, "labels": label}
            for ids, mask, label in zip(encoded["input_ids"], encoded["attention_mask"], labels, strict=True)
        ]
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self.rows[index % len(self.rows)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--eager", action="store_true", help="do not compile")
    parser.add_argument("--output", default="./outputs")
    args = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    training_args = TrainingArguments(
        output_dir=args.output,
        bf16=True,
        torch_compile=not args.eager,
        dataloader_drop_last=True,
        per_device_train_batch_size=2,
        max_steps=args.steps,
        logging_steps=1,
        report_to=[],
    )
    trainer = Trainer(
        model=AutoModelForCausalLM.from_pretrained(args.model),
        args=training_args,
        # An odd number of texts: the last batch would be smaller.
        train_dataset=PaddedTexts(tokenizer, 2 * args.steps + 1),
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print("losses", *(f"{loss:.4f}" for loss in losses))
    for graph in torch_neuronx.get_dynamo_metrics():
        how = "loaded" if graph["cache_hit"] else "compiled"
        print(graph["role"], graph["graph_node_count"], "operators,", how)


if __name__ == "__main__":
    main()
