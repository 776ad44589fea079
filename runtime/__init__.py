"""What runs on a worker: process groups, collectives, executor, profiler, checkpoint."""

from __future__ import annotations

from ..ir.mesh import Mesh
from ..ir.unit_tasks import Task, in_each_part
from .communicator import Communicator
from .counter_random import (
    random_bernoulli,
    random_dropout,
    random_exponential,
    random_integers,
    random_normal,
    random_uniform,
)
from .cross_entropy import cross_entropy_backward, sum_exp
from .executor import Executor
from .fused_attention import attention, attention_backward
from .grouped_products import grouped_bmm, grouped_bmm_backward, grouped_mm, grouped_mm_backward
from .indexed import (
    add_rows,
    embedding_dense_backward_part,
    embedding_part,
    gather_part,
    index_add_part,
    index_put_part,
    index_select_part,
    index_tensor_part,
    nll_loss_backward_part,
    nll_loss_forward_part,
    scatter_add_part,
    scatter_src_part,
    scatter_value_part,
    take_rows,
)
from .launch import launch, main
from .layers import by_layer, from_each, grouped, in_order, per_layer, split, updated
from .optimizers import (
    adam_,
    adamw_,
    assign_,
    foreach,
    foreach_,
    increment,
    joined_adam_,
    joined_adamw_,
    joined_sgd_,
    sgd_,
    sum_of_squares,
)
from .pieces import Sums, part_of
from .plan import Plan, Result, Value
from .recurrent import recurrent, recurrent_backward
from .spawn import run_ranks
from .stages import Stage
from .transfers import Holders, Transfer

__all__ = [
    "Communicator", "Executor", "Holders", "Mesh", "Plan", "Result", "Stage", "Sums", "Task", "Transfer",
    "Value", "adam_", "adamw_", "add_rows", "assign_", "attention", "attention_backward", "by_layer",
    "cross_entropy_backward", "embedding_dense_backward_part", "embedding_part", "foreach", "foreach_",
    "from_each", "gather_part", "grouped", "grouped_bmm", "grouped_bmm_backward", "grouped_mm",
    "grouped_mm_backward", "in_each_part", "in_order", "increment", "index_add_part", "index_put_part",
    "index_select_part", "index_tensor_part", "joined_adam_", "joined_adamw_", "joined_sgd_", "launch", "main",
    "nll_loss_backward_part", "nll_loss_forward_part", "part_of", "per_layer", "random_bernoulli",
    "random_dropout", "random_exponential", "random_integers", "random_normal", "random_uniform", "recurrent",
    "recurrent_backward", "run_ranks", "scatter_add_part", "scatter_src_part", "scatter_value_part", "sgd_",
    "split", "sum_exp", "sum_of_squares", "take_rows", "updated",
]  # fmt: skip
