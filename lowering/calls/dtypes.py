"""The dtypes of torch that element types stand for."""

from __future__ import annotations

import torch
from xdsl.utils.exceptions import VerifyException


def torch_dtype(name: str) -> torch.dtype:
    """torch's dtype of a name that `dialects.compute.dtype_of` gives; VerifyException where it has none."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise VerifyException(f"torch has no dtype for elements of type {name[:60]}; expected f32, bf16, i64, i1, ...")
    return found
