"""Training steps dominated by a vocabulary of odd size."""

from shardwright.api.training_step import TrainingStep
from shardwright.models.bert import BertConfig, bert_step
from shardwright.models.gpt2 import GPT2Config, gpt2_step

WORDS = 101


def gpt2() -> TrainingStep:
    """Return GPT-2 with one layer and tied embeddings."""
    config = GPT2Config(vocabulary=WORDS, positions=4, width=16, layers=1, heads=2)
    return gpt2_step(config, batch=4, length=4)


def bert() -> TrainingStep:
    """Return BERT with one layer and tied embeddings; most labels are ignored."""
    config = BertConfig(vocabulary=WORDS, positions=4, width=16, layers=1, heads=2)
    return bert_step(config, batch=4, length=4)
