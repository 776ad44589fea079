"""Training steps in which a vocabulary of odd size is the largest thing by far."""

from shardwright.api.training_step import TrainingStep
from shardwright.models.bert import BertConfig, bert_step
from shardwright.models.gpt2 import GPT2Config, gpt2_step

WORDS = 101


def gpt2() -> TrainingStep:
    """GPT-2 of one layer, with its embedding as its head."""
    config = GPT2Config(vocabulary=WORDS, positions=4, width=16, layers=1, heads=2)
    return gpt2_step(config, batch=4, length=4)


def bert() -> TrainingStep:
    """BERT of one layer, with its embedding as its head, of which most labels are ignored."""
    config = BertConfig(vocabulary=WORDS, positions=4, width=16, layers=1, heads=2)
    return bert_step(config, batch=4, length=4)
