# torchrun --nproc-per-node 2 examples/hf_trainer.py
"""The Trainer of transformers with int8 gradients: one callback."""

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from compressa.integrations.transformers import CompressaCallback

WORDS, LENGTH = 64, 16


def data(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Draw sentences of numbers, and whether word 1 is in each."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(2, WORDS, (count, LENGTH), generator=generator)
    labels = torch.randint(0, 2, (count,), generator=generator)
    columns = torch.randint(0, LENGTH, (count,), generator=generator)
    words[torch.arange(count), columns] = torch.where(labels.bool(), 1, words[:, 0])
    return [{"input_ids": w, "labels": y} for w, y in zip(words, labels, strict=True)]


def make(folder: str) -> tuple[Trainer, CompressaCallback]:
    """Make a Trainer of a small BERT."""
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=LENGTH,
    )
    torch.manual_seed(0)
    arguments = TrainingArguments(
        folder,
        use_cpu=True,
        max_steps=80,
        per_device_train_batch_size=32,
        learning_rate=2e-3,
        lr_scheduler_type="constant",
        save_steps=60,
        logging_strategy="no",
        disable_tqdm=True,
        report_to=[],
        dataloader_pin_memory=False,
    )
    trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=data(5120, 1))
    callback = CompressaCallback(trainer, {"compressor": "int8"})  # the line
    trainer.add_callback(callback)  # and where it goes
    return trainer, callback


def weights(model: nn.Module) -> torch.Tensor:
    """Return all parameters in one."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def main() -> None:
    """Train, and train once more from the checkpoint of step 60."""
    whole, _ = make("checkpoints")
    whole.train()
    resumed, callback = make("checkpoints")
    resumed.train(resume_from_checkpoint="checkpoints/checkpoint-60")
    same = torch.equal(weights(whole.model), weights(resumed.model))

    test = data(1024, 2)
    words = torch.stack([row["input_ids"] for row in test])
    labels = torch.stack([row["labels"] for row in test])
    resumed.model.eval()
    right = (resumed.model(words).logits.argmax(dim=1) == labels).float().mean()
    if resumed.is_world_process_zero():
        again = "repeats its bits" if same else "differs"
        ratio = callback.handle.stats().ratio
        print(f"{right:.0%} right; {ratio:.1f} times fewer bytes; it {again}")


if __name__ == "__main__":
    main()
